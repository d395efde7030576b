import { describe, expect, it } from 'vitest'
import { formatRule } from '../../../../src/kernel/nft/print-rule.ts'
import type { NftFamily } from '../../../../src/kernel/nft/state.ts'
import type { TableContext } from '../../../../src/modes/common/rules.ts'
import { LAYOUTS } from '../../../../src/modes/common/tables.ts'
import { declareNftSet, NFT_SET_NAMES } from '../../../../src/modes/ipvs/layout.ts'
import { rulesOf } from '../../../../src/modes/ipvs/rules.ts'
import type { RuleWriter } from '../../../../src/modes/ipvs/settings.ts'
import { ip4, ip6 } from '../../../support/frontends.ts'

const PODS = { kind: 'cidr', cidr: { ip: ip4(10, 20, 0, 0), bits: 16 } } as const

function inputs(family: NftFamily, more: Partial<TableContext> = {}): TableContext {
  return {
    layout: LAYOUTS[family],
    masqueradeMark: 0x4000,
    masqueradeAll: false,
    detector: undefined,
    nodePorts: { kind: 'all' },
    serviceCidrs: [],
    ...more,
  }
}

function text(its: TableContext, chain: string, writer: RuleWriter = 'nftables'): string[] {
  const { family } = its.layout
  const sets = new Map(NFT_SET_NAMES.map(name => [name, declareNftSet(name, 64, its.layout)] as const))
  const found = rulesOf(writer, its).find(({ name }) => name === chain)
  if (found === undefined) throw new Error(`no chain ${chain}`)
  return found.rules.map(rule => formatRule(rule, { family, sets }))
}

describe('the rules', () => {
  it('ask the sets in this order', () => {
    const its = inputs('ip', { detector: PODS, serviceCidrs: [{ ip: ip4(10, 96, 0, 0), bits: 12 }] })
    expect(text(its, 'services')).toMatchInlineSnapshot(`
      [
        "ip saddr != 10.20.0.0/16 match-set KUBE-CLUSTER-IP dst,dst meta mark set meta mark | 0x00004000",
        "match-set KUBE-CLUSTER-IP dst,dst match-set KUBE-IPVS-IPS src meta mark set meta mark | 0x00004000 comment "the node's own"",
        "match-set KUBE-LOAD-BALANCER-FW dst,dst jump firewall-check",
        "ip daddr . meta l4proto . th dport vmap @verdicts",
        "match-set KUBE-EXTERNAL-IP-LOCAL dst,dst goto external-local",
        "match-set KUBE-LOAD-BALANCER-LOCAL dst,dst goto external-local",
        "match-set KUBE-EXTERNAL-IP dst,dst goto external",
        "match-set KUBE-LOAD-BALANCER dst,dst goto external",
        "ip daddr . meta l4proto . th dport @health-checks accept",
        "ip daddr @nodeport-ips jump node-ports",
        "match-set KUBE-CLUSTER-IP dst,dst accept comment "IPVS has the endpoints"",
        "match-set KUBE-IPVS-IPS dst goto refuse comment "no such port"",
      ]
    `)
    for (const chain of ['late-prerouting', 'late-output'])
      expect(text(its, chain)).toEqual([
        'match-set KUBE-CLUSTER-IP dst,dst accept comment "IPVS has the endpoints"',
        'match-set KUBE-IPVS-IPS dst accept comment "a bound address"',
        'ip daddr 10.96.0.0/12 counter drop comment "no such ClusterIP"',
      ])
  })

  it('are the same for IPv6, with its own sets', () => {
    const six = inputs('ip6', { serviceCidrs: [{ ip: ip6(0x96, 0), bits: 112 }] })
    const count = text(
      inputs('ip', { serviceCidrs: [{ ip: ip4(10, 96, 0, 0), bits: 12 }] }),
      'services',
    ).length
    expect(text(six, 'services')).toHaveLength(count)
    for (const { name } of rulesOf('nftables', six))
      for (const line of text(six, name)) expect(line).not.toMatch(/KUBE-(?!6-)/)
  })
})

describe('the rules beside chains of iptables', () => {
  const its = inputs('ip', { detector: PODS, serviceCidrs: [{ ip: ip4(10, 96, 0, 0), bits: 12 }] })
  const beside = (chain: string) => text(its, chain, 'iptables')

  it('are what those cannot say, or say too late', () => {
    expect(beside('services')).toEqual([
      ...text(its, 'services').slice(2, -1),
      'match-set KUBE-IPVS-IPS dst accept comment "KUBE-IPVS-FILTER knows the ports"',
    ])
    expect(beside('nat-postrouting')).toMatchInlineSnapshot(`
      [
        "match-set KUBE-LOOP-BACK dst,dst,src meta mark set meta mark & 0xffffbfff comment "masqueraded without it"",
      ]
    `)
    for (const chain of [
      'external',
      'external-local',
      'cluster-list',
      'node-ports',
      'firewall-check',
      'late-output',
    ])
      expect(beside(chain)).toEqual(text(its, chain))
  })

  it('are asked first at each hook, and last about what nobody knows', () => {
    const hooks = rulesOf('iptables', its).flatMap(({ name, hook }) =>
      hook === undefined ? [] : [`${name} ${hook.priority}`],
    )
    expect(hooks).toEqual([
      'early-prerouting -101',
      'early-output -101',
      'nat-postrouting 99',
      'late-prerouting -99',
      'late-output -99',
    ])
  })
})
