import * as fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { compileRule } from '../../../../src/kernel/xt/compile.ts'
import { printRule } from '../../../../src/kernel/xt/print.ts'
import { readRule } from '../../../../src/kernel/xt/read.ts'
import type { XtRule } from '../../../../src/kernel/xt/rule.ts'
import * as structs from '../../../../src/kernel/xt/struct.ts'
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
  const recent = (name: string) => ({ kind: 'recent', mode: 'set', name, seconds: 0, reap: false }) as const
  const refused: readonly (readonly [what: string, parts: Partial<XtRule>])[] = [
    ['a long comment', { matches: [{ kind: 'comment', text: 'é'.repeat(128) }] }],
    ['a comment with a NUL', { matches: [{ kind: 'comment', text: 'a\0b' }] }],
    ['a long name', { inInterface: { name: 'x'.repeat(16), inverted: false } }],
    ['no name', { outInterface: { name: '', inverted: false } }],
    ['an address of the other family', { source: address('::1', 128) }],
    ['no address at all', { source: address('10.0.0.0', 0, true) }],
    ['a protocol above 255', { protocol: { number: 256, inverted: false } }],
    ['words of the other family', { target: { kind: 'REJECT', with: 'icmp6-no-route' } }],
    ['DNAT to the other family', { target: { kind: 'DNAT', ip: '\0'.repeat(16), port: 1 } }],
    ['a nameless list', { matches: [recent('')] }],
    ['a list of 200 bytes', { matches: [recent('n'.repeat(200))] }],
    ['a counter of 32 bytes', { matches: [{ kind: 'nfacct', name: 'n'.repeat(32) }] }],
  ]
  const compile = (parts: Partial<XtRule>) =>
    compileRule({ matches: [], target: undefined, ...parts }, 'ip', indexOf)

  it.each(refused)('%s', (_, parts) => {
    expect(() => compile(parts)).toThrow('EMSGSIZE')
  })

  it('a set that does not exist', () => {
    const none = { kind: 'set', set: 'none', dimensions: ['src'], inverted: false } as const
    expect(() => compile({ matches: [none] })).toThrow('ENOENT')
  })
})

const tables = Object.entries(structs).flatMap(([name, its]) =>
  typeof its === 'object' && 'fields' in its ? [{ title: name, ...its }] : [],
)

// Gaps between fields are found, and structures written, in the order of the table.
it.each(tables)('the fields of $title are in the order of their offsets, and fit', ({ size, fields }) => {
  const ends = Object.values(fields).map(({ offset, length }) => ({ from: offset, to: offset + length }))
  for (const [i, { from }] of ends.entries()) expect(from).toBeGreaterThanOrEqual(ends[i - 1]?.to ?? 0)
  expect(ends.at(-1)?.to).toBeLessThanOrEqual(size)
})
