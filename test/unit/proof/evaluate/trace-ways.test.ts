import { describe, expect, test } from 'vitest'
import { u32host } from '../../../../src/base/octets.ts'
import * as nft from '../../../../src/kernel/nft/constants.ts'
import type { Expression } from '../../../../src/kernel/nft/state.ts'
import type { DynamicElements } from '../../../../src/proof/evaluate/single.ts'
import { createTracer } from '../../../../src/proof/evaluate/trace.ts'
import { dnat, drop, find, is, readMark, roll, writeMark } from '../expressions.ts'
import { type Chains, PACKET, ruleset, SURROUNDINGS } from './tracing.ts'

describe('what packets remember', () => {
  const key: Expression = { kind: 'meta', key: nft.NFT_META_MARK, dreg: 0 }
  const value: Expression = { kind: 'numgen', modulus: 100, dreg: 1 }
  const dynset = (op: 'update' | 'delete'): Expression => ({
    kind: 'dynset',
    op,
    set: 'memory',
    keyReg: 0,
    dataReg: op === 'delete' ? undefined : 1,
    timeoutMs: 1000,
  })

  function remember(chains: Chains, marks: readonly number[], values: readonly number[]): DynamicElements {
    const tracer = createTracer(ruleset(chains))
    let dynamic: DynamicElements = new Map()
    for (const [index, mark] of marks.entries()) {
      const surroundings = { ...SURROUNDINGS, dynamic, random: () => values[index] ?? 0 }
      dynamic = tracer.trace({ ...PACKET, mark }, surroundings).dynamic
    }
    return dynamic
  }

  test('a full set ends the rule', () => {
    const chains = { pre: [[key, value, dynset('update'), drop]] }
    const tracer = createTracer(ruleset(chains))
    const dynamic = remember(chains, [1, 2], [1, 1])
    expect(tracer.trace({ ...PACKET, mark: 2 }, { ...SURROUNDINGS, dynamic }).verdict).toBe('drop')
    expect(tracer.trace({ ...PACKET, mark: 3 }, { ...SURROUNDINGS, dynamic }).verdict).toBe('accept')
  })

  test('a later packet finds it', () => {
    const chains = {
      pre: [
        [key, find('memory', 4), drop],
        [key, value, dynset('update')],
      ],
    }
    const tracer = createTracer(ruleset(chains))
    const first = tracer.trace({ ...PACKET, mark: 5 }, SURROUNDINGS)
    expect(first.verdict).toBe('accept')
    const second = tracer.trace({ ...PACKET, mark: 5 }, { ...SURROUNDINGS, dynamic: first.dynamic })
    expect(second.verdict).toBe('drop')
  })
})

describe('ways', () => {
  test('numbers that a rule wrote before it ended stay several ways', () => {
    const pre = [
      [roll(4), writeMark, find('endpoints', 4), dnat],
      [readMark, is(u32host(1)), drop],
    ]
    const ways = createTracer(ruleset({ pre })).ways(PACKET, SURROUNDINGS)
    const found = ways.map(({ trace, probability }) => [trace.verdict, probability])
    expect(Object.fromEntries(found)).toEqual({ accept: 0.75, drop: 0.25 })
  })

  test('too many sequences of random numbers are an error', () => {
    const chains = { pre: [[roll(100), roll(100), roll(100), drop]] }
    expect(() => createTracer(ruleset(chains)).ways(PACKET, SURROUNDINGS, 1000)).toThrow('too many ways')
  })
})
