import { describe, expect, it } from 'vitest'
import { u32host } from '../../../src/base/octets.ts'
import {
  IPS_DST_NAT,
  IPS_SRC_NAT,
  NF_DROP,
  NF_INET_FORWARD,
  NF_INET_POST_ROUTING,
  NF_INET_PRE_ROUTING,
  NFT_CT_MARK,
  NFT_CT_STATE,
  NFT_CT_STATUS,
} from '../../../src/kernel/nft/constants.ts'
import { readCompiled } from '../../../src/kernel/nft/decode.ts'
import type { AnyTable, Expression, NftFamily, Rule } from '../../../src/kernel/nft/state.ts'
import { compileRule } from '../../../src/kernel/xt/compile.ts'
import {
  XT_CONNTRACK_STATE_INVALID,
  XT_CONNTRACK_STATE_NEW,
  XT_STATISTIC_UNITS,
  type XtMatch,
} from '../../../src/kernel/xt/rule.ts'
import { change, computeIn, ip, NFTABLES } from '../../support/pipeline.ts'
import { doubtsOf, NODE, other, proofOf, rule, webService } from '../../support/proof.ts'
import { LOCAL_IPS } from '../../support/scenario.ts'
import { accept, address, drop, is, isFrom, jump, mask, source } from './expressions.ts'

const { resolved, state } = change(computeIn(NFTABLES, {}, LOCAL_IPS), { objects: [NODE, ...webService()] })
const OWN = state.ruleset.tables
const proofWith = (...tables: readonly AnyTable[]) => proofOf({}, resolved.snapshot, [...OWN, ...tables])

/** Before connection tracking, behind it, and where it stands itself. */
const [RAW, TRACKED, TRACKING] = [-300, -150, -200] as const
const early = (priority: number, rules: readonly Rule[], more: Partial<AnyTable> = {}) =>
  proofWith(other({ hooknum: NF_INET_PRE_ROUTING, priority }, rules, more))
const decides = (priority: number, ...expressions: readonly Expression[]): boolean =>
  early(priority, [rule(...expressions, drop)]).wrong > 0

const hasBits = (key: number, bits: number): readonly Expression[] => [
  { kind: 'ct', key, dreg: 0 },
  mask(bits, 0),
  is('\0\0\0\0', 'neq'),
]
const isEqual = (key: number, op: 'eq' | 'neq'): readonly Expression[] => [
  { kind: 'ct', key, dreg: 0 },
  is('\0\0\0\0', op),
]
const xt = (family: NftFamily, match: XtMatch): Rule =>
  readCompiled(compileRule({ matches: [match], target: { kind: 'DROP' } }, family))
const decidesXt = (priority: number, match: XtMatch): boolean => early(priority, [xt('ip', match)]).wrong > 0

describe('connection tracking', () => {
  it('has seen no packet before its priority: the state is invalid', () => {
    const [invalid, isNew] = [1, 8]
    expect([RAW, TRACKED].map(at => decides(at, ...hasBits(NFT_CT_STATE, invalid)))).toEqual([true, false])
    expect([RAW, TRACKED].map(at => decides(at, ...hasBits(NFT_CT_STATE, isNew)))).toEqual([false, true])
    const allowed = (priority: number) => {
      const hook = { hooknum: NF_INET_PRE_ROUTING, priority, policy: NF_DROP }
      return proofWith(other(hook, [rule(...hasBits(NFT_CT_STATE, isNew), accept)])).wrong
    }
    expect(allowed(RAW)).toBeGreaterThan(0)
    expect(allowed(TRACKED)).toBe(0)
  })

  it('has no mark and no status there, whatever is compared', () => {
    for (const op of ['eq', 'neq'] as const) {
      expect(decides(RAW, ...isEqual(NFT_CT_MARK, op))).toBe(false)
      expect(decides(TRACKED, ...isEqual(NFT_CT_MARK, op))).toBe(op === 'eq')
    }
    const isStatus: readonly Expression[] = [
      ...hasBits(NFT_CT_STATUS, IPS_DST_NAT).slice(0, 2),
      is('\0\0\0\0'),
    ]
    expect([RAW, TRACKED].map(at => decides(at, ...isStatus))).toEqual([false, true])
  })

  it('is the same for the matches of xtables', () => {
    const states = { kind: 'conntrack', inverted: false } as const
    const at = (match: XtMatch) => [RAW, TRACKED].map(priority => decidesXt(priority, match))
    expect(at({ ...states, states: XT_CONNTRACK_STATE_INVALID })).toEqual([true, false])
    expect(at({ ...states, states: XT_CONNTRACK_STATE_NEW })).toEqual([false, true])
    const mark = (inverted: string): XtMatch => ({
      kind: 'unknown',
      name: 'connmark',
      revision: 1,
      info: `\0\0\0\0\xff\xff\xff\xff${inverted}\0\0\0\0\0\0\0`,
    })
    expect(at(mark('\0'))).toEqual([false, true])
    expect(at(mark('\x01'))).toEqual([false, false])
  })

  it('is beyond the evaluator at its own priority', () => {
    const { wrong, unknowns } = early(TRACKING, [rule(...hasBits(NFT_CT_STATE, 9), drop)])
    expect(wrong).toBe(0)
    expect(doubtsOf({ unknowns })).toContain(
      'ip other first, rule 1: cannot trace a chain with the priority of connection tracking',
    )
  })
})

it('finds that packets pass no nat chain where no rule tracks connections', () => {
  const [lonely, ...endpoints] = webService()
  const { resolved: its, state: rendered } = change(computeIn(NFTABLES, {}, LOCAL_IPS), {
    objects: [NODE, lonely],
  })
  expect(endpoints).toHaveLength(1)
  const flushed = rendered.ruleset.tables.map(table => {
    const chain = table.chains.get('nat-postrouting')
    if (chain === undefined) return table
    return { ...table, chains: new Map(table.chains).set('nat-postrouting', { ...chain, rules: [] }) }
  })
  expect(proofOf({}, its.snapshot, rendered.ruleset.tables).wrong).toBe(0)
  const { differences } = proofOf({}, its.snapshot, flushed)
  expect(differences).toContainEqual(expect.objectContaining({ expected: 'reject', kernel: 'pass' }))
})

describe('a rule behind source NAT', () => {
  const late = (...expressions: readonly Expression[]) =>
    proofWith(other({ hooknum: NF_INET_POST_ROUTING, priority: 200 }, [rule(...expressions, drop)]))

  it('finds the status of masqueraded packets, and lists those of processes of this node', () => {
    const { wrong, differences, unknowns } = late(...hasBits(NFT_CT_STATUS, IPS_SRC_NAT))
    expect(wrong).toBeGreaterThan(0)
    expect(differences.every(({ packet }) => packet.startsWith('prerouting'))).toBe(true)
    expect(doubtsOf({ unknowns })).toContain(
      'ip other first, rule 1: cannot trace whether masquerading changes an address of this node',
    )
    expect(late(...hasBits(NFT_CT_STATUS, IPS_DST_NAT)).wrong).toBeGreaterThan(wrong)
  })

  it.each([IPS_SRC_NAT | 8, 0x80])('lists a status with bits that no class has: %i', bits => {
    const { wrong, unknowns } = late(...hasBits(NFT_CT_STATUS, bits))
    expect(wrong).toBe(0)
    expect(doubtsOf({ unknowns })).toContain(
      'ip other first, rule 1: cannot trace the expression ct status beyond snat and dnat',
    )
  })

  it('lists a comparison of the source, which is another one now', () => {
    const { differences, unknowns } = late(source, is(ip('203.0.113.9'), 'neq'))
    expect(differences.length).toBeGreaterThan(0)
    expect(differences.filter(({ kernel }) => kernel.includes('masqueraded'))).toEqual([])
    expect(doubtsOf({ unknowns })).toContain(
      'ip other first, rule 1: cannot trace the source of a masqueraded packet',
    )
  })
})

describe('matches of xtables', () => {
  it('do not match by nfacct for certain: its object may have a quota', () => {
    const { wrong, unknowns } = early(TRACKED, [xt('ip', { kind: 'nfacct', name: 'quota' })])
    expect(wrong).toBe(0)
    expect(doubtsOf({ unknowns })).toContain(
      'ip other first, rule 1: cannot trace the match nfacct of xtables',
    )
  })
})

it('finds SNAT to a loopback address, which is none that masquerading chooses', () => {
  const info = `${u32host(1)}${u32host(1)}${ip('127.0.0.1').repeat(2)}\0\0\0\0\0\0\0\0`
  const target = { kind: 'unknown', name: 'SNAT', revision: 0, info } as const
  const { differences } = proofWith(
    other({ type: 'nat', hooknum: NF_INET_POST_ROUTING, priority: 150 }, [
      readCompiled(compileRule({ matches: [], target }, 'ip')),
    ]),
  )
  expect(differences.map(({ kernel }) => kernel).join()).toContain(':8080, with a source of another machine')
})

it('decides a rule by a whole name of an interface and a destination', () => {
  const network: Expression = { kind: 'bitwise', sreg: 0, dreg: 0, mask: '\xff\xff\xff\0', xor: '\0\0\0\0' }
  const isFromTo = (to: string) => [...isFrom('docker0'), address(), network, is(ip(to))]
  const { differences } = early(TRACKED, [rule(...isFromTo('172.30.0.0'), drop)])
  expect(differences).toContainEqual(expect.objectContaining({ rule: 'ip other first, rule 1' }))
  expect(early(TRACKED, [rule(...isFromTo('172.31.0.0'), drop)]).wrong).toBe(0)
})

it('lists a verdict to a chain that was not read', () => {
  const { wrong, unknowns } = proofWith(other({ hooknum: NF_INET_FORWARD }, [rule(jump('gone'))]))
  expect(wrong).toBe(0)
  expect(doubtsOf({ unknowns })).toContain('ip other first, rule 1: there is no chain gone')
})

it('lists rules of other programs that divide packets by too many chances', () => {
  const mark = (bit: number): Rule =>
    readCompiled(
      compileRule(
        {
          matches: [{ kind: 'statistic', probability: XT_STATISTIC_UNITS / 2 }],
          target: { kind: 'MARK', value: 1 << bit, mask: 1 << bit },
        },
        'ip',
      ),
    )
  const bits = Array.from({ length: 12 }, (_, bit) => bit)
  const few = proofWith(other({ hooknum: NF_INET_POST_ROUTING }, bits.slice(0, 3).map(mark)))
  expect(few).toMatchObject({ wrong: 0 })
  expect(few.unknowns).toEqual([])
  const many = proofWith(other({ hooknum: NF_INET_POST_ROUTING }, bits.map(mark)))
  expect(doubtsOf(many)).toContain('ip other first, rule 11: cannot trace so many chances')
})
