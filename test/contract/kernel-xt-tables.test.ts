import { execFileSync, spawnSync } from 'node:child_process'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { NfacctClient } from '../../src/kernel/nfacct/client.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import type { NftFamily } from '../../src/kernel/nft/state.ts'
import { compileRule } from '../../src/kernel/xt/compile.ts'
import { printTables } from '../../src/kernel/xt/print.ts'
import { missingText, probeXt } from '../../src/kernel/xt/probe.ts'
import { readRule } from '../../src/kernel/xt/read.ts'
import { Connection } from '../../src/netlink/connection.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { FOREIGN, KUBE_PROXY } from '../support/xt-tables.ts'
import { ipsetNames } from './ipsets.ts'
import { inOurOrder } from './our-order.ts'

const open = () => openNetlink({ protocol: NETLINK_NETFILTER })
const TABLES = ['mangle', 'raw', 'filter', 'nat', 'security'] as const

describe('whole tables', () => {
  const family: NftFamily = 'ip'
  let asking: ReturnType<typeof open>
  let names: ReturnType<typeof ipsetNames>
  let client: NftClient

  beforeAll(async () => {
    freshNetns()
    asking = open()
    names = ipsetNames(asking)
    client = createNftClient({ transport: open(), clock: systemClock })
    const accounts = new NfacctClient({ transport: open(), clock: systemClock })
    accounts.ensure('ct_state_invalid_dropped_pkts')
    await accounts.close()
  })
  afterAll(async () => {
    await Promise.all([client.close(), asking.close()])
  })

  const list = async () => (await client.listChains(TABLES.map(table => ({ family, table })))).observed
  const restore = (text: string): void => {
    execFileSync('nft', ['flush', 'ruleset'])
    execFileSync('iptables-nft-restore', { input: text })
  }
  const saved = (): string =>
    execFileSync('iptables-nft-save', { encoding: 'utf8' })
      .split('\n')
      .filter(line => !line.startsWith('#'))
      .join('\n')

  test('of kube-proxy are printed as iptables-save prints them', async () => {
    restore(KUBE_PROXY)
    const ours = printTables(await list(), family)
    expect(ours).toBe(saved())
    expect(ours).toContain('--probability 0.33333333349')
  })

  test('of others too, but for what has no words, which iptables would not take', async () => {
    execFileSync('ipset', ['create', 'cali40all-ipam-pools', 'hash:net'])
    restore(FOREIGN)
    const observed = await list()
    const ours = printTables(observed, family, names.nameOf).split('\n')
    const theirs = saved().split('\n')
    expect(ours.length).toBe(theirs.length)
    const differing = ours.filter((line, at) => line !== theirs[at])
    expect(differing.map(line => line.replace(/ 0x[0-9a-f]+\]/g, ']'))).toEqual([
      '-A PREROUTING [match rpfilter revision 0] -j DROP',
      '-A PREROUTING [target CT revision 2]',
      '-A DOCKER-USER [nf_tables limit] [target LOG revision 0]',
      '-A cali-INPUT -p udp -m comment --comment "cali:w7ud0UgQSEi_zKuQ" [match multiport revision 1] -j ACCEPT',
      '-A cali-INPUT -p tcp [nf_tables payload] [nf_tables bitwise] [nf_tables cmp] -j RETURN',
    ])
    for (const line of differing) {
      const input = `*filter\n:cali-INPUT - [0:0]\n:DOCKER-USER - [0:0]\n${line.replace('PREROUTING', 'INPUT')}\nCOMMIT\n`
      expect(spawnSync('iptables-nft-restore', ['--test', '--noflush'], { input }).status).not.toBe(0)
    }
    const rules = [...observed.values()].flatMap(({ chains }) =>
      [...chains.values()].flatMap(chain => chain.rules),
    )
    for (const { compiled } of rules) {
      const rule = readRule(compiled, family, names.nameOf)
      expect(compileRule(rule, family, names.indexOf).compiled).toBe(inOurOrder(compiled, rule, family))
    }
  })
})

describe('what the kernel has', () => {
  test('is found by name and revision, and what it lacks is told', async () => {
    freshNetns()
    const connection = new Connection({ transport: open(), clock: systemClock })
    const missing = probeXt(connection)
    // The suite of single rules writes one with each of the others; IPVS is no part of every kernel.
    expect(missing.map(({ name }) => name).filter(name => name !== 'ipvs')).toEqual([])
    if (missing.length > 0)
      expect(missingText(missing)).toBe(
        'match ipvs (revision 0) for ip and ip6: CONFIG_NFT_COMPAT, CONFIG_NETFILTER_XT_MATCH_IPVS',
      )
    await connection.close()
  })
})
