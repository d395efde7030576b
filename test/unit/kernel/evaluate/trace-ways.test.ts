import { describe, expect, test } from 'vitest'
import { u32host } from '../../../../src/base/octets.ts'
import type { DynamicElements } from '../../../../src/kernel/evaluate/single.ts'
import { createTracer } from '../../../../src/kernel/evaluate/trace.ts'
import * as nft from '../../../../src/kernel/nft/constants.ts'
import type { Expression } from '../../../../src/kernel/nft/state.ts'
import { ip } from '../../../support/pipeline.ts'
import {
  type Chains,
  dnat,
  drop,
  endpoint,
  find,
  is,
  PACKET,
  readMark,
  roll,
  ruleset,
  SURROUNDINGS,
  writeMark,
} from './tracing.ts'

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

  test('update writes once and never replaces, delete makes room', () => {
    const update = { pre: [[key, value, dynset('update')]] }
    expect(remember(update, [1, 1], [10, 20]).get('ip t memory')).toEqual(
      new Map([[u32host(1), u32host(10)]]),
    )
    const replace = { pre: [[key, value, dynset('delete'), dynset('update')]] }
    expect(remember(replace, [1, 1], [10, 20]).get('ip t memory')).toEqual(
      new Map([[u32host(1), u32host(20)]]),
    )
  })

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
  test('every end is found, with its probability', () => {
    const chains = {
      pre: [
        [roll(4), find('endpoints', 4), dnat],
        [roll(2), find('endpoints', 4), dnat],
      ],
    }
    const elements = [endpoint(0, '10.0.0.1', 80), endpoint(1, '10.0.0.2', 80), endpoint(2, '10.0.0.3', 80)]
    const ways = createTracer(ruleset(chains, elements)).ways(PACKET, SURROUNDINGS)
    const found = ways.map(({ trace, probability }) => [trace.destination.ip, probability])
    expect(found).toEqual([
      [ip('10.0.0.1'), 0.375],
      [ip('10.0.0.2'), 0.375],
      [ip('10.0.0.3'), 0.25],
    ])
  })

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
