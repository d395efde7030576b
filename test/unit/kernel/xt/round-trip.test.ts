import * as fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { compileRule } from '../../../../src/kernel/xt/compile.ts'
import { printRule } from '../../../../src/kernel/xt/print.ts'
import { readRule } from '../../../../src/kernel/xt/read.ts'
import type { XtRule } from '../../../../src/kernel/xt/rule.ts'
import { runs } from '../../../support/runs.ts'
import { IPSETS, ruleOf } from '../../../support/xt-arbitraries.ts'
import { address } from '../../../support/xt-words.ts'

const indexOf = (name: string) => (IPSETS.includes(name) ? IPSETS.indexOf(name) + 300 : undefined)
const nameOf = (index: number) => IPSETS[index - 300]

describe.each(['ip', 'ip6'] as const)('rules of %s at random', family => {
  it('are read as they were written, whatever they ask', () => {
    fc.assert(
      fc.property(ruleOf(family), rule => {
        const { compiled, protocol, protocolInverted } = compileRule(rule, family, indexOf)
        expect(readRule(compiled, family, nameOf)).toEqual(rule)
        // What -p asks, which the kernel wants beside the bytes.
        const asked = rule.protocol ?? { number: 0, inverted: false }
        expect({ number: protocol, inverted: protocolInverted }).toEqual(asked)
      }),
      { seed: 61, numRuns: runs(1000) },
    )
  })

  it('have one text a rule, and other texts for other rules', () => {
    const texts = new Map<string, string>()
    fc.assert(
      fc.property(ruleOf(family), rule => {
        const text = printRule(rule, family)
        const { compiled } = compileRule(rule, family, indexOf)
        const read = readRule(compiled, family, nameOf)
        expect(printRule(read, family)).toBe(text)
        // What differs in its bytes differs in its words: observed rules are compared by them.
        if (isAllInWords(rule)) expect(texts.get(text) ?? compiled).toBe(compiled)
        texts.set(text, compiled)
      }),
      { seed: 62, numRuns: runs(1000) },
    )
  })
})

/** An inversion of no types, and any interface at all, have no words, and ask nothing. */
function isAllInWords({ inInterface, outInterface, matches }: XtRule): boolean {
  if (inInterface?.name === '+' || outInterface?.name === '+') return false
  return matches.every(
    match => match.kind !== 'addrtype' || (match.sourceTypes !== 0 && match.destinationTypes !== 0),
  )
}

describe('what no rule can say', () => {
  const rule = (parts: Partial<XtRule>): XtRule => ({ matches: [], target: undefined, ...parts })
  const refused: readonly (readonly [what: string, rule: XtRule, why: string])[] = [
    ['a long comment', rule({ matches: [{ kind: 'comment', text: 'é'.repeat(128) }] }), 'EMSGSIZE'],
    ['a comment with a NUL', rule({ matches: [{ kind: 'comment', text: 'a\0b' }] }), 'EMSGSIZE'],
    ['a long name', rule({ inInterface: { name: 'x'.repeat(16), inverted: false } }), 'EMSGSIZE'],
    ['no name', rule({ outInterface: { name: '', inverted: false } }), 'EMSGSIZE'],
    ['an address of the other family', rule({ source: address('::1', 128) }), 'EMSGSIZE'],
    ['no address at all', rule({ source: address('10.0.0.0', 0, true) }), 'EMSGSIZE'],
    ['a protocol above 255', rule({ protocol: { number: 256, inverted: false } }), 'EMSGSIZE'],
    ['words of the other family', rule({ target: { kind: 'REJECT', with: 'icmp6-no-route' } }), 'EMSGSIZE'],
    [
      'DNAT to the other family',
      rule({ target: { kind: 'DNAT', ip: '\0'.repeat(16), port: 1 } }),
      'EMSGSIZE',
    ],
    ['a nameless list', rule({ matches: [recent('')] }), 'EMSGSIZE'],
    ['a list of 200 bytes', rule({ matches: [recent('n'.repeat(200))] }), 'EMSGSIZE'],
    ['a counter of 32 bytes', rule({ matches: [{ kind: 'nfacct', name: 'n'.repeat(32) }] }), 'EMSGSIZE'],
    [
      'a set that does not exist',
      rule({ matches: [{ kind: 'set', set: 'none', dimensions: ['src'], inverted: false }] }),
      'ENOENT',
    ],
  ]
  it.each(refused)('%s', (_, one, why) => {
    expect(() => compileRule(one, 'ip', indexOf)).toThrow(why)
  })

  function recent(name: string) {
    return { kind: 'recent', mode: 'set', name, seconds: 0, reap: false } as const
  }
})
