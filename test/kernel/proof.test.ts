import { afterEach, beforeAll, describe, expect, it } from 'vitest'
import { finish, systemClock } from '../../src/base/clock.ts'
import { listAllTables } from '../../src/kernel/nft/list.ts'
import type { NftablesState } from '../../src/modes/nftables/state.ts'
import { Connection } from '../../src/netlink/connection.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { type Ended, runInProcess, tool } from '../support/command.ts'
import { EXAMPLES } from '../support/daemon.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { commitAll, NFTABLES, openClient, planeOn } from '../support/pipeline.ts'
import { proofOf } from '../support/proof.ts'
import { allStops } from '../support/walk.ts'

const SOURCE = [
  `--source=file:${EXAMPLES}`,
  '--hostname-override=example-node',
  '--cluster-cidr=10.244.0.0/16,fd00:10:244::/64',
]

const nft = (...args: readonly string[]): string => tool('nft', ...args)
const prove = (...more: string[]): Promise<Ended> => runInProcess(['verify', '--prove', ...SOURCE, ...more])

beforeAll(() => freshNetns())
afterEach(() => void nft('flush', 'ruleset'))

it('every step of every scenario is proved from what the kernel holds', async () => {
  const client = openClient()
  const connection = new Connection({
    transport: openNetlink({ protocol: NETLINK_NETFILTER }),
    clock: systemClock,
  })
  let state: NftablesState | undefined
  for (const { name, computed } of allStops(NFTABLES)) {
    const { config, resolved } = computed
    const plane = planeOn(client, config)
    state = (await plane.observe()).state
    const wanted = finish(plane.render(resolved.table, { base: state, without: new Set() }))
    await commitAll(plane, state, wanted)
    const { value } = await listAllTables({ connection, clock: systemClock, ipsets: undefined })
    const { differences, wrong } = proofOf(config, resolved.snapshot, value)
    expect(differences, name).toEqual([])
    expect(wrong).toBe(0)
  }
  await connection.close()
  await client.close()
})

describe('kprobe verify --prove', () => {
  it('exits 0 where every packet meets its fate, with what is assumed', async () => {
    await runInProcess(['run', '--once', ...SOURCE])
    const { code, out } = await prove()
    expect(out).toMatch(
      /^assumed:\n {2}each packet is the first of its connection[\s\S]*^proved: \d+ classes of packets/m,
    )
    expect(code).toBe(0)
  })

  it('exits 3 before anything is programmed, and proves no packet of a Service', async () => {
    const { code, out } = await prove()
    expect(out).toMatch(/Kubernetes: one of 2 endpoints\n {2}the kernel: pass\n/)
    expect(code).toBe(3)
  })

  it('names a rule of ours that is wrong, although all rules are there', async () => {
    await runInProcess(['run', '--once', ...SOURCE])
    nft('insert', 'rule', 'ip', 'kube-proxy', 'services', 'udp', 'dport', '53', 'drop')
    const { code, out } = await prove()
    expect(out).toContain('  the kernel: drop\n  decided by ip kube-proxy services, rule 1\n')
    expect(out).toMatch(/^NOT proved: \d+ of \d+ classes of packets/m)
    expect(code).toBe(3)
  })

  it('names a chain of another program that drops, and lists what it cannot read', async () => {
    await runInProcess(['run', '--once', ...SOURCE])
    nft('add table inet fw; add chain inet fw forward { type filter hook forward priority 0; }')
    nft('add chain inet fw early { type filter hook ingress device lo priority 0; }')
    nft('add rule inet fw forward tcp dport 8080 drop; add rule inet fw forward limit rate 5/second drop')
    const json = await prove('-o', 'json')
    const { isProved, differences, assumptions, classes, packets } = JSON.parse(json.out)
    expect(json.code).toBe(3)
    expect([isProved, classes > 100, packets > 1e80]).toEqual([false, true, true])
    expect(differences).toContainEqual(
      expect.objectContaining({
        name: 'shop/storefront:http at 10.96.1.2:80/TCP',
        kernel: 'drop on the way to 10.244.0.21:8080',
        rule: 'inet fw forward, rule 1',
      }),
    )
    expect(assumptions).toContain(
      'inet fw forward, rule 2 matches no packet (cannot trace the expression limit)',
    )
    expect(assumptions).toContain('inet fw early lets packets pass: its hook is not read')
  })

  it('proves nothing in a mode without an evaluator, and says so', async () => {
    const { code, out, err } = await prove('--proxy-mode=iptables')
    expect([code, out]).toEqual([1, ''])
    expect(err).toContain('--prove: nothing is proved: iptables mode has no evaluator; nftables mode has one')
  })
})
