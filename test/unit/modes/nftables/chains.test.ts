import { describe, expect, it } from 'vitest'
import { formatRule } from '../../../../src/kernel/nft/print-rule.ts'
import type { RuleContext } from '../../../../src/modes/common/rules.ts'
import { LAYOUTS } from '../../../../src/modes/common/tables.ts'
import {
  chainsBehind,
  externalChain,
  externalLocalChain,
  firewallChain,
  makeChain,
  nextChain,
  parseChain,
  pickChain,
  quantise,
  rolls,
} from '../../../../src/modes/nftables/chains.ts'
import { SET_NAMES } from '../../../../src/modes/nftables/layout.ts'
import { declareSet } from '../../../../src/modes/nftables/state.ts'
import { ip4 } from '../../../support/frontends.ts'
import { IS_QUICK } from '../../../support/runs.ts'

const CONTEXT: RuleContext = { layout: LAYOUTS.ip, masqueradeMark: 0x4000, detector: undefined }
const SETS = new Map(
  SET_NAMES.map(
    name => [name, declareSet(name, { layout: LAYOUTS.ip, size: 1, connectionCounters: false })] as const,
  ),
)
const PODS = { kind: 'cidr', cidr: { ip: ip4(10, 20, 0, 0), bits: 16 } } as const

function text(name: string, context: RuleContext = CONTEXT): string[] {
  const chain = makeChain(name, context)
  if (chain === undefined) throw new Error(`not a chain: ${name}`)
  return chain.rules.map(rule => formatRule(rule, { family: 'ip', sets: SETS }))
}

describe('counts', () => {
  it.skipIf(IS_QUICK)('never fall below the number of endpoints, nor more than an eighth above it', () => {
    for (let n = 1; n < 5000; n++) {
      expect(quantise(n)).toBeGreaterThanOrEqual(n)
      expect(quantise(n)).toBeLessThanOrEqual(Math.max(n, n * 1.125))
      expect(quantise(quantise(n))).toBe(quantise(n))
    }
  })

  it('roll again at the same modulus and then at the step below, all of whose slots exist', () => {
    expect(rolls(16)).toEqual([16])
    expect(rolls(18)).toEqual([18, 18, 16])
    expect(rolls(36)).toEqual([36, 36, 32])
    for (let n = 17; n < 2000; n++) expect(rolls(quantise(n))[2]).toBeLessThan(n)
  })
})

describe('the name of a chain', () => {
  const names = [
    ...[1, 2, 16, 17, 300].flatMap(n => [
      pickChain(false, n, 0),
      pickChain(true, n, 0),
      pickChain(false, n, 60),
    ]),
    pickChain(true, 3, 10800),
    externalChain(3, 0),
    externalChain(33, 60),
    externalLocalChain(5, 0, 0),
    externalLocalChain(0, 2, 0),
    externalLocalChain(20, 3, 60),
    firewallChain(externalChain(3, 60)),
    firewallChain(externalLocalChain(2, 1, 0)),
    firewallChain('refuse'),
  ]

  it.each(names)('says all about it: %s', name => {
    expect(parseChain(name)).toBeDefined()
    expect(makeChain(name, CONTEXT)?.rules.length).toBeGreaterThan(0)
    for (const behind of chainsBehind(name)) expect(parseChain(behind)).toBeDefined()
  })

  it.each([
    'mod-17',
    'mod-0',
    'mod-',
    'mod-1-',
    'mod-01',
    'mod-1e1',
    'loc-1',
    'ext-3-',
    'fw-',
    'fw-services',
    'fw-fw-mod-1',
    'web',
    '',
  ])('is refused when we would not give it: "%s"', name => expect(parseChain(name)).toBeUndefined())

  it('leads to the one that the next endpoint needs', () => {
    expect(nextChain('mod-3')).toBe('mod-4')
    expect(nextChain('mod-16')).toBe('mod-18')
    expect(nextChain('mod-32')).toBe('mod-36')
    expect(nextChain('lmod-3')).toBeUndefined()
    expect(nextChain('ext-3')).toBe('mod-4')
    expect(nextChain('fw-loc-3-1')).toBe('mod-4')
    expect(nextChain('fw-refuse')).toBeUndefined()
    expect(nextChain('aff-3-60')).toBeUndefined()
  })
})

describe('rules', () => {
  it("of mod-N pick a slot of the packet's protocol and fall back to slot 0", () => {
    const pick = (protocol: string) =>
      `meta l4proto ${protocol} dnat ip to meta priority & ffff:e000 . numgen random mod 2 map @endpoints-${protocol}`
    expect(text('mod-2')).toEqual([pick('tcp'), pick('udp'), pick('sctp'), 'goto mod-1'])
    expect(text('mod-1')).toHaveLength(3)
    expect(text('lmod-2')[0]).toContain('& ffff:f000 | 0:1000')
    expect(text('lmod-2')[3]).toBe('goto lmod-1')
  })

  it('of mod-N above 16 roll up to three times', () => {
    const moduli = text('mod-20').flatMap(line => /mod (\d+) map/.exec(line)?.[1] ?? [])
    expect(moduli).toEqual(['20', '20', '20', '20', '20', '20', '18', '18', '18'])
  })

  it('of ext-N masquerade', () => {
    expect(text('ext-3')).toEqual(['meta mark set meta mark | 0x00004000 goto mod-3'])
    expect(text('ext-3-60')).toEqual(['meta mark set meta mark | 0x00004000 goto aff-3-60'])
  })

  it('of loc-N-M send pods and this node to the cluster and others to local endpoints', () => {
    expect(text('loc-3-2', { ...CONTEXT, detector: PODS })).toEqual([
      'ip saddr 10.20.0.0/16 goto mod-3',
      'fib saddr type local meta mark set meta mark | 0x00004000 goto mod-3',
      'goto lmod-2',
    ])
  })

  it('of aff-N-T know a client, else remember it, else serve it all the same', () => {
    const rules = text('aff-2-60')
    expect(rules).toHaveLength(12)
    expect(rules[0]).toMatch(/map @affinity update @affinity .* timeout 1m/)
    expect(rules[1]).toMatch(/numgen random mod 2 map @slots delete @affinity .* update @affinity/)
    expect(rules[2]).toMatch(/numgen random mod 1 map @slots .*update @affinity/)
    expect(rules[3]).toMatch(/numgen random mod 2 map @slots/)
    expect(rules[3]).not.toContain('@affinity')
  })
})
