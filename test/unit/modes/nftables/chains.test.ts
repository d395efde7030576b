import { describe, expect, it } from 'vitest'
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
import { IS_QUICK } from '../../../support/runs.ts'

const CONTEXT: RuleContext = { layout: LAYOUTS.ip, masqueradeMark: 0x4000, detector: undefined }

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
