import { execFileSync } from 'node:child_process'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { slicingOf, systemClock } from '../../src/base/clock.ts'
import { IpsetClient } from '../../src/kernel/ipset/client.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import { commitScope } from '../../src/kernel/xt/scope-commit.ts'
import { codecOf, diffChains, observeChains } from '../../src/modes/ipvs/chains.ts'
import type { RuleWriter } from '../../src/modes/ipvs/settings.ts'
import type { Chains } from '../../src/modes/ipvs/state.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { createSets } from '../support/create-ipsets.ts'
import { destroyIpsets } from '../support/destroy-ipsets.ts'
import { savedLines, writeForeignRules } from '../support/foreign-rules.ts'
import { computeIn, IPVS_CHAINS, type PipelineConfig } from '../support/pipeline.ts'
import { LOCAL_IPS } from '../support/scenario.ts'

/* kube-proxy's chains of the IPVS mode on a kernel, which needs no IPVS for them, as iptables-nft-save prints them. */

let nft: NftClient
let ipset: IpsetClient

function wanted(config: PipelineConfig): Chains {
  return computeIn(IPVS_CHAINS, config, LOCAL_IPS).state.chains
}

async function write(to: Chains, rules: RuleWriter = 'iptables'): Promise<number> {
  const { observed } = await observeChains({ nft, ipset }, { rules })
  const codec = codecOf(ipset)
  const { operations } = diffChains({ kind: 'observed', observed }, to, codec)
  const { outcome, failures } = await commitScope(operations, {
    client: nft,
    codec,
    slicing: slicingOf(systemClock),
    generation: undefined,
  })
  expect({ outcome, failures }).toEqual({ outcome: 'committed', failures: [] })
  return operations.length
}

/** Rules of one table, those of the packets' own counters left out. */
function rules(tool: 'iptables' | 'ip6tables', table: string): readonly string[] {
  const text = execFileSync(`${tool}-nft-save`, ['-t', table], { encoding: 'utf8' })
  return text.split('\n').filter(line => line.startsWith('-A '))
}

beforeEach(() => {
  execFileSync('nft', ['flush', 'ruleset'])
  const open = () => openNetlink({ protocol: NETLINK_NETFILTER })
  ipset = new IpsetClient({ transport: open(), clock: systemClock })
  nft = createNftClient({ transport: open(), clock: systemClock, ipsets: ipset })
  createSets(computeIn(IPVS_CHAINS, {}, LOCAL_IPS).state.sets)
})

afterEach(async () => {
  await Promise.all([nft.close(), ipset.close()])
  execFileSync('nft', ['flush', 'ruleset'])
  await destroyIpsets()
})

const NAT = [
  '-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES',
  '-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES',
  '-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING',
  '-A KUBE-SERVICES -s 127.0.0.0/8 -j RETURN',
  '-A KUBE-SERVICES -m comment --comment "Kubernetes service lb portal" -m set --match-set KUBE-LOAD-BALANCER dst,dst -j KUBE-LOAD-BALANCER',
  '-A KUBE-SERVICES ! -s 10.0.0.0/8 -m comment --comment "Kubernetes service cluster ip + port for masquerade purpose" -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ',
  '-A KUBE-SERVICES -m comment --comment "Kubernetes service external ip + port for masquerade and filter purpose" -m set --match-set KUBE-EXTERNAL-IP dst,dst -j KUBE-MARK-MASQ',
  '-A KUBE-SERVICES -m comment --comment "Kubernetes service external ip + port for masquerade and filter purpose" -m set --match-set KUBE-EXTERNAL-IP dst,dst -m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -j ACCEPT',
  '-A KUBE-SERVICES -m comment --comment "Kubernetes service external ip + port for masquerade and filter purpose" -m set --match-set KUBE-EXTERNAL-IP dst,dst -m addrtype --dst-type LOCAL -j ACCEPT',
  '-A KUBE-SERVICES -m comment --comment "Kubernetes service external ip + port with externalTrafficPolicy=local" -m set --match-set KUBE-EXTERNAL-IP-LOCAL dst,dst -m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -j ACCEPT',
  '-A KUBE-SERVICES -m comment --comment "Kubernetes service external ip + port with externalTrafficPolicy=local" -m set --match-set KUBE-EXTERNAL-IP-LOCAL dst,dst -m addrtype --dst-type LOCAL -j ACCEPT',
  '-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT',
  '-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT',
  '-A KUBE-SERVICES -m set --match-set KUBE-LOAD-BALANCER dst,dst -j ACCEPT',
  '-A KUBE-POSTROUTING -m comment --comment "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose" -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE',
  '-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN',
  '-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0',
  '-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully',
  '-A KUBE-NODE-PORT -p tcp -m comment --comment "Kubernetes nodeport TCP port with externalTrafficPolicy=local" -m set --match-set KUBE-NODE-PORT-LOCAL-TCP dst -j RETURN',
  '-A KUBE-NODE-PORT -p tcp -m comment --comment "Kubernetes nodeport TCP port for masquerade purpose" -m set --match-set KUBE-NODE-PORT-TCP dst -j KUBE-MARK-MASQ',
  '-A KUBE-NODE-PORT -p udp -m comment --comment "Kubernetes nodeport UDP port with externalTrafficPolicy=local" -m set --match-set KUBE-NODE-PORT-LOCAL-UDP dst -j RETURN',
  '-A KUBE-NODE-PORT -p udp -m comment --comment "Kubernetes nodeport UDP port for masquerade purpose" -m set --match-set KUBE-NODE-PORT-UDP dst -j KUBE-MARK-MASQ',
  `-A KUBE-NODE-PORT -p sctp -m comment --comment "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type \\'hash ip:port\\'" -m set --match-set KUBE-NODE-PORT-LOCAL-SCTP-HASH dst,dst -j RETURN`,
  `-A KUBE-NODE-PORT -p sctp -m comment --comment "Kubernetes nodeport SCTP port for masquerade purpose with type \\'hash ip:port\\'" -m set --match-set KUBE-NODE-PORT-SCTP-HASH dst,dst -j KUBE-MARK-MASQ`,
  '-A KUBE-LOAD-BALANCER -m comment --comment "Kubernetes service load balancer ip + port with externalTrafficPolicy=local" -m set --match-set KUBE-LOAD-BALANCER-LOCAL dst,dst -j RETURN',
  '-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ',
  '-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000',
]

/** The only rule that kube-proxy has not. */
const OWN =
  '-A KUBE-IPVS-FILTER -m comment --comment "sent on to another virtual server" -m conntrack --ctstate DNAT -j RETURN'

const FILTER = [
  '-A INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER',
  '-A INPUT -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL',
  '-A INPUT -m comment --comment "kubernetes health check rules" -j KUBE-NODE-PORT',
  '-A FORWARD -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL',
  '-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD',
  '-A OUTPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-OUT-FILTER',
  '-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT',
  '-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT',
  '-A KUBE-NODE-PORT -m comment --comment "Kubernetes health check node port" -m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j ACCEPT',
  '-A KUBE-PROXY-FIREWALL -m comment --comment "Kubernetes service load balancer ip + port for load balancer with sourceRange" -m set --match-set KUBE-LOAD-BALANCER-FW dst,dst -j KUBE-SOURCE-RANGES-FIREWALL',
  '-A KUBE-SOURCE-RANGES-FIREWALL -m comment --comment "Kubernetes service load balancer ip + port + source cidr for packet filter purpose" -m set --match-set KUBE-LOAD-BALANCER-SOURCE-CIDR dst,dst,src -j RETURN',
  '-A KUBE-SOURCE-RANGES-FIREWALL -m comment --comment "Kubernetes service load balancer ip + port + source IP for packet filter purpose" -m set --match-set KUBE-LOAD-BALANCER-SOURCE-IP dst,dst,src -j RETURN',
  '-A KUBE-SOURCE-RANGES-FIREWALL -j DROP',
  '-A KUBE-IPVS-FILTER -m set --match-set KUBE-LOAD-BALANCER dst,dst -j RETURN',
  '-A KUBE-IPVS-FILTER -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN',
  '-A KUBE-IPVS-FILTER -m set --match-set KUBE-EXTERNAL-IP dst,dst -j RETURN',
  '-A KUBE-IPVS-FILTER -m set --match-set KUBE-EXTERNAL-IP-LOCAL dst,dst -j RETURN',
  '-A KUBE-IPVS-FILTER -m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j RETURN',
  OWN,
  '-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst -j REJECT --reject-with icmp-port-unreachable',
]

/** kube-proxy cuts names of sets off at 31 bytes. */
function ofIpv6(line: string): string {
  return line
    .replace(/--match-set KUBE-(\S+)/, (_, stem: string) => `--match-set ${`KUBE-6-${stem}`.slice(0, 31)}`)
    .replace('-s 127.0.0.0/8', '-s ::1/128')
    .replace('10.0.0.0/8', 'fd00:10::/64')
    .replace('icmp-port', 'icmp6-port')
}

const chainsOf = (lines: readonly string[]) => lines.map(line => line.split(' ')[1] ?? '')

/** Chains in any order, the rules of each in theirs. */
function byChain(lines: readonly string[]): Readonly<Record<string, readonly string[]>> {
  const chains: Record<string, readonly string[]> = {}
  for (const name of chainsOf(lines)) chains[name] = lines.filter(line => line.startsWith(`-A ${name} `))
  return chains
}

describe("kube-proxy's chains of the IPVS mode", () => {
  it('are in the words of iptables-save what kube-proxy writes, in both families', async () => {
    await write(wanted({}))
    expect(byChain(rules('iptables', 'nat'))).toEqual(byChain(NAT))
    expect(byChain(rules('iptables', 'filter'))).toEqual(byChain(FILTER))
    expect(byChain(rules('ip6tables', 'nat'))).toEqual(byChain(NAT.map(ofIpv6)))
    expect(byChain(rules('ip6tables', 'filter'))).toEqual(byChain(FILTER.map(ofIpv6)))
  })

  it.each<[string, PipelineConfig, string]>([
    [
      'masqueradeAll',
      { masqueradeAll: true },
      '-A KUBE-SERVICES -m comment --comment "Kubernetes service cluster ip + port for masquerade purpose" -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ',
    ],
    [
      'nothing that tells pods',
      { clusterCIDR: '' },
      '-A KUBE-SERVICES -m comment --comment "Kubernetes service cluster ip + port for masquerade purpose" -m set --match-set KUBE-CLUSTER-IP src,dst -j KUBE-MARK-MASQ',
    ],
    [
      'a prefix of interfaces',
      { detectLocalMode: 'InterfaceNamePrefix', detectLocal: { interfaceNamePrefix: 'veth' } },
      '-A KUBE-SERVICES ! -i veth+ -m comment --comment "Kubernetes service cluster ip + port for masquerade purpose" -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ',
    ],
    ['another mark', { masqueradeBit: 5 }, '-A KUBE-MARK-MASQ -j MARK --set-xmark 0x20/0x20'],
  ])('follow from what kube-proxy is told: %s', async (_, config, line) => {
    await write(wanted({}))
    await write(wanted(config))
    expect(rules('iptables', 'nat')).toContain(line)
    expect(await write(wanted(config))).toBe(0)
  })

  it('are taken over from kube-proxy, of whose rules only one differs', async () => {
    const restore = (tool: string, its: { nat: readonly string[]; filter: readonly string[] }) => {
      const table = (name: string, lines: readonly string[]) => {
        const chains = [...new Set(chainsOf(lines))].filter(chain => chain.startsWith('KUBE-'))
        const extra = name === 'filter' ? ['KUBE-IPVS-OUT-FILTER'] : []
        return [`*${name}`, ...[...chains, ...extra].map(chain => `:${chain} - [0:0]`), ...lines, 'COMMIT']
      }
      const input = `${[...table('nat', its.nat), ...table('filter', its.filter)].join('\n')}\n`
      execFileSync(`${tool}-nft-restore`, ['--noflush'], { input })
    }
    const filter = FILTER.filter(line => line !== OWN)
    restore('iptables', { nat: NAT, filter })
    restore('ip6tables', { nat: NAT.map(ofIpv6), filter: filter.map(ofIpv6) })
    // One chain of each family: flushed, and filled with its seven rules.
    expect(await write(wanted({}))).toBe(2 * 8)
    expect(byChain(rules('iptables', 'filter'))).toEqual(byChain(FILTER))
    expect(byChain(rules('ip6tables', 'nat'))).toEqual(byChain(NAT.map(ofIpv6)))
  })

  it('come and go among the rules of others, which stay byte for byte', async () => {
    writeForeignRules()
    const before = savedLines()
    await write(wanted({}))
    const theirs = new Set(before)
    expect(savedLines().filter(line => theirs.has(line))).toEqual(before)
    expect(savedLines().length).toBeGreaterThan(before.length)
    expect(await write({ kind: 'wanted', fixed: undefined, key: '' }, 'nftables')).toBeGreaterThan(0)
    expect(savedLines()).toEqual(before)
  })

  it('heal: a jump that was deleted, a table that was flushed, a rule too many', async () => {
    await write(wanted({}))
    const before = [rules('iptables', 'nat'), rules('iptables', 'filter')]
    execFileSync('iptables-nft', ['-t', 'nat', '-D', 'OUTPUT', '1'])
    execFileSync('iptables-nft', ['-I', 'KUBE-FORWARD', '-j', 'DROP'])
    execFileSync('iptables-nft', ['-F', 'KUBE-IPVS-FILTER'])
    expect(await write(wanted({}))).toBeGreaterThan(0)
    expect([rules('iptables', 'nat'), rules('iptables', 'filter')]).toEqual(before)
    execFileSync('nft', ['flush', 'table', 'ip', 'nat'])
    await write(wanted({}))
    expect([rules('iptables', 'nat'), rules('iptables', 'filter')]).toEqual(before)
  })

  it('of kube-proxy stay where all our rules are in tables of our own', async () => {
    await write(wanted({}))
    execFileSync('iptables-nft', ['-F', 'KUBE-IPVS-FILTER'])
    execFileSync('ip6tables-nft', ['-F', 'KUBE-IPVS-FILTER'])
    expect(await write({ kind: 'wanted', fixed: undefined, key: '' }, 'nftables')).toBe(0)
  })

  it('leave what they have in common with the iptables mode to that mode, once it has taken it', async () => {
    await write(wanted({}))
    execFileSync('iptables-nft-restore', ['--noflush'], {
      input: [
        '*nat',
        ':KUBE-SERVICES - [0:0]',
        ':KUBE-PROXY-CANARY - [0:0]',
        ':KUBE-MARK-MASQ - [0:0]',
        '-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -j RETURN',
        'COMMIT',
        '',
      ].join('\n'),
    })
    await write({ kind: 'wanted', fixed: undefined, key: '' }, 'nftables')
    const left = rules('iptables', 'nat')
    expect(left).toContain('-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -j RETURN')
    expect(left).toContain('-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES')
    expect(
      left.filter(line => line.includes('KUBE-LOAD-BALANCER') || line.includes('KUBE-NODE-PORT')),
    ).toEqual([])
    expect(
      rules('iptables', 'filter').filter(line => /KUBE-(IPVS|PROXY-FIREWALL|NODE-PORT)/.test(line)),
    ).toEqual([FILTER[9]])
  })
})
