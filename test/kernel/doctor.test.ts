import { execFileSync } from 'node:child_process'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import { surveyChains, surveyTable } from '../../src/kernel/nft/survey.ts'
import { probe } from '../../src/kernel/xt/probe.ts'
import { neighborsOf } from '../../src/modes/foreign/neighbors.ts'
import { nftablesFeatures } from '../../src/modes/nftables/doctor.ts'
import { userspace } from '../../src/modes/userspace/mode.ts'
import { Connection } from '../../src/netlink/connection.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import type { Transport } from '../../src/netlink/transport.ts'
import { freshNetns } from '../support/lab/netns.ts'

let transport: Transport
let client: NftClient

beforeEach(() => {
  freshNetns()
  transport = openNetlink({ protocol: NETLINK_NETFILTER })
  client = createNftClient({ transport: openNetlink({ protocol: NETLINK_NETFILTER }), clock: systemClock })
})

afterEach(async () => {
  await client.close()
  await transport.close()
})

const survey = () => surveyChains(new Connection({ transport, clock: systemClock }))

it('finds every feature of the nftables mode in this kernel, and leaves nothing behind', async () => {
  const generation = client.generation()
  const missing: string[] = []
  for (const feature of nftablesFeatures({ logRejects: 7 })) {
    const { works, reason } = await probe(client, feature.transaction)
    if (!works) missing.push(`${feature.name}: ${reason}`)
  }
  expect(missing).toEqual([])
  expect(nftablesFeatures({ logRejects: 0 }).some(({ kind }) => kind === 'log')).toBe(false)
  expect(client.generation()).toBe(generation)
  expect(execFileSync('nft', ['list', 'ruleset'], { encoding: 'utf8' })).toBe('')
})

it('asks nothing of userspace mode that it has no rule for', () => {
  const without = nftablesFeatures({ logRejects: 7 }).filter(({ kind }) => !userspace.needsFeature(kind))
  expect(without.map(({ name }) => name)).toEqual(
    ['ip', 'ip6'].flatMap(family => [
      `${family} numgen random`,
      `${family} jhash`,
      `${family} masquerade fully-random`,
      `${family} maps filled by packets`,
      `${family} log with a limit`,
    ]),
  )
})

it('tells in the words of the kernel what it does not take', async () => {
  const at = { family: 'ip', table: 'kprobe-doctor' } as const
  const result = await probe(client, [
    { ...at, verb: 'add-table', flags: 0, comment: undefined },
    { ...at, verb: 'add-chain', chain: { name: 'probe', hook: undefined, rules: [] } },
    {
      ...at,
      verb: 'add-rule',
      chain: 'probe',
      rule: {
        expressions: [
          { kind: 'masquerade', flags: 0 },
          { kind: 'numgen', modulus: 0, dreg: 0 },
        ],
        comment: '',
      },
    },
  ])
  expect(result.works).toBe(false)
  expect(result.reason).toMatch(/EINVAL|ERANGE|EOPNOTSUPP|ENOENT/)
})

it('sees the chains of others, and says what each means for Services', async () => {
  const rules = [
    'add table ip kube-proxy',
    'add chain ip kube-proxy service-endpoints-check',
    'add table inet firewall',
    'add chain inet firewall in { type filter hook forward priority 0; policy drop; }',
    'add table ip netpol',
    'add chain ip netpol forward { type filter hook forward priority 0; }',
    'add chain ip netpol pods',
    'add rule ip netpol forward jump pods',
    'add rule ip netpol pods ip daddr 10.1.0.5 drop',
    'add chain ip netpol count { type filter hook output priority 0; }',
    'add rule ip netpol count counter',
    'add table ip nat',
    'add chain ip nat KUBE-SERVICES',
    'add chain ip nat PREROUTING { type nat hook prerouting priority dstnat; }',
    'add rule ip nat PREROUTING jump KUBE-SERVICES',
    'add rule ip nat KUBE-SERVICES counter',
  ].join('\n')
  execFileSync('nft', ['-f', '-'], { input: rules })
  const chains = await survey()
  const legacyTables = [{ family: 'ip' as const, name: 'nat', chains: [] }]
  const policy = await surveyTable(new Connection({ transport, clock: systemClock }), {
    family: 'ip',
    name: 'netpol',
  })
  const around = {
    chains,
    tables: [policy],
    tableName: 'kube-proxy',
    legacyTables,
    virtualServers: [],
    writesIptables: false,
  }
  expect(neighborsOf(around).map(({ severity, what }) => `${severity}: ${what}`)).toEqual([
    "warning: kube-proxy's nftables mode holds ip kube-proxy",
    "warning: an iptables mode, kube-proxy's or kprobe's, left chains in ip nat",
    'note: inet firewall in drops packets that it does not accept (hook forward)',
    'note: ip netpol forward may drop packets by pods (hook forward)',
    'note: ip nat PREROUTING translates addresses too (prerouting, priority -100)',
    'warning: legacy iptables tables are in use: ip nat, beside those of iptables-nft',
  ])
})
