import { describe, expect, it } from 'vitest'
import type { IpvsNode } from '../../../support/ipvs-node.ts'
import { ipvsBench } from '../../../support/ipvs-rig.ts'
import { serviceOf } from '../../../support/ipvs-services.ts'

/* kube-proxy's chains before IPVS, by a reconciler on a node in memory. */

const WEB = serviceOf('web', { ip: '172.30.0.1', endpoints: ['10.1.0.1', '10.1.0.2'] })

/** `ip nat KUBE-SERVICES 11`: chains of iptables with the number of their rules. */
function chains({ nft }: IpvsNode): readonly string[] {
  return [...nft.space.tables.values()]
    .filter(({ name }) => name === 'nat' || name === 'filter')
    .flatMap(table =>
      [...table.chains.values()].map(chain => `${table.name} ${chain.name} ${chain.rules.length}`),
    )
    .sort()
}

const ONE_FAMILY = [
  'filter FORWARD 2',
  'filter INPUT 3',
  'filter KUBE-FORWARD 2',
  'filter KUBE-IPVS-FILTER 7',
  'filter KUBE-IPVS-OUT-FILTER 0',
  'filter KUBE-NODE-PORT 1',
  'filter KUBE-PROXY-FIREWALL 1',
  'filter KUBE-SOURCE-RANGES-FIREWALL 3',
  'filter OUTPUT 1',
  'nat KUBE-LOAD-BALANCER 2',
  'nat KUBE-MARK-MASQ 1',
  'nat KUBE-NODE-PORT 6',
  'nat KUBE-POSTROUTING 4',
  'nat KUBE-SERVICES 11',
  'nat OUTPUT 1',
  'nat POSTROUTING 1',
  'nat PREROUTING 1',
]
const BOTH = ONE_FAMILY.flatMap(line => [line, line])
/** Base chains, without rules. */
const LEFT = BOTH.filter(line => !line.includes('KUBE-')).map(line => line.replace(/\d+$/, '0'))

describe("kube-proxy's chains before IPVS", () => {
  it('come before the rules that lean on them, and go before the sets that they ask', async () => {
    const { node, start } = ipvsBench()
    const rig = start({ rules: 'iptables' })
    const seen: string[] = []
    node.afterMessage = () => {
      const marks = [
        node.sets.set('KUBE-CLUSTER-IP') === undefined ? '' : 'sets',
        chains(node).some(line => line.includes('KUBE-SERVICES')) ? 'chains' : '',
        node.nft.space.tables.size > 4 ? 'tables' : '',
        node.addresses().length > 0 ? 'addresses' : '',
      ]
      const text = marks.filter(mark => mark !== '').join(' ')
      if (seen.at(-1) !== text) seen.push(text)
    }
    await rig.sync(WEB)
    expect(seen).toEqual(['', 'sets', 'sets chains', 'sets chains tables', 'sets chains tables addresses'])
    expect(chains(node)).toEqual(BOTH)
    seen.length = 0
    await rig.reconciler.stop()
    await rig.plane.cleanup()
    expect(seen).toEqual(['sets chains tables addresses', 'sets chains tables', 'sets chains', 'sets', ''])
    expect(chains(node)).toEqual(LEFT)
  })

  it('are healed, whatever of them is gone', async () => {
    const { node, clock, start } = ipvsBench()
    const rig = start({ rules: 'iptables' })
    await rig.sync(WEB)
    const table = [...node.nft.space.tables.values()].find(({ name }) => name === 'nat')
    const chain = table?.chains.get('PREROUTING')
    if (chain === undefined) throw new Error('no such chain')
    chain.rules.splice(0)
    node.nft.generation++
    await clock.advance(1_000)
    expect(chains(node)).toEqual(BOTH)
  })

  it('give way to rules of our own when a process starts that has no use for them, and come back', async () => {
    const { node, start, stop } = ipvsBench()
    const first = start({ rules: 'iptables' })
    await first.sync(WEB)
    await stop(first)
    const second = start({ rules: 'nftables' })
    await second.sync(WEB)
    expect(chains(node)).toEqual(LEFT)
    await stop(second)
    await start({ rules: 'iptables' }).sync(WEB)
    expect(chains(node)).toEqual(BOTH)
  })

  it("are left alone when they are kube-proxy's and rules of our own are asked for", async () => {
    const { node, start, stop } = ipvsBench()
    const first = start({ rules: 'iptables' })
    await first.sync(WEB)
    await stop(first)
    for (const { chains: all } of node.nft.space.tables.values()) all.get('KUBE-IPVS-FILTER')?.rules.splice(0)
    const before = chains(node)
    await start({ rules: 'nftables' }).sync(WEB)
    expect(chains(node)).toEqual(before)
  })
})
