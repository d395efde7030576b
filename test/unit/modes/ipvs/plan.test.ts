import { describe, expect, it } from 'vitest'
import { PersistentMap } from '../../../../src/base/collections.ts'
import type { Element, NftSet, Ruleset } from '../../../../src/kernel/nft/state.ts'
import type { Operation } from '../../../../src/kernel/nft/transaction.ts'
import { splitTransaction } from '../../../../src/modes/ipvs/plan.ts'

const TARGET = { family: 'ip', table: 't' } as const
const SET: NftSet = {
  name: 'verdicts',
  flags: 0,
  keyType: 0,
  keyLength: 4,
  dataType: undefined,
  dataLength: undefined,
  size: 64,
  timeoutMs: 0,
  userdata: '',
}

function element(key: string): Element {
  return { set: SET.name, key, data: undefined, comment: '' }
}

function change(verb: 'add-elements' | 'delete-elements', keys: readonly string[], set = SET): Operation {
  return { ...TARGET, verb, set, elements: keys.map(element), groups: keys.map(key => `ns/${key}`) }
}

function holding(count: number): Ruleset {
  const elements = PersistentMap.from([['g', Array.from({ length: count }, (_, i) => element(`k${i}`))]])
  const table = { ...TARGET, name: 't', flags: 0, comment: undefined, chains: new Map(), sets: new Map() }
  return { tables: [{ ...table, elements }] }
}

const RENDERED = { ruleset: holding(2), observed: false }

function told(operations: readonly Operation[]): readonly string[] {
  return operations.map(operation => {
    const keys = 'elements' in operation ? operation.elements.map(({ key }) => key).join() : ''
    return `${operation.verb} ${keys}`.trim()
  })
}

describe('a transaction is split', () => {
  it('but the old form of an element goes with the new one', () => {
    const { add, remove } = splitTransaction(
      [change('delete-elements', ['a', 'b', 'c']), change('add-elements', ['b'])],
      RENDERED,
    )
    expect(told(add)).toEqual(['delete-elements b', 'add-elements b'])
    expect(told(remove)).toEqual(['delete-elements a,c'])
  })

  it('but all that is old goes first where both have no room', () => {
    const transaction = [change('delete-elements', ['k0', 'k1']), change('add-elements', ['x', 'y'])]
    for (const [count, first] of [
      [63, true],
      [10, false],
    ] as const) {
      const { remove } = splitTransaction(transaction, { ruleset: holding(count), observed: true })
      expect(remove.length === 0).toBe(first)
    }
  })

  it('without a count of what is there, for few new elements of a state that was rendered', () => {
    const [table] = holding(2).tables
    if (table === undefined) throw new Error('no table')
    const unread = {
      ...table,
      get elements(): never {
        throw new Error('the elements were counted')
      },
    }
    const from = { ruleset: { tables: [unread] }, observed: false }
    const deletion = change('delete-elements', ['k0', 'k1'])
    expect(told(splitTransaction([deletion, change('add-elements', ['x'])], from).remove)).toEqual([
      'delete-elements k0,k1',
    ])
    const many = change('add-elements', ['u', 'v', 'w', 'x', 'y'])
    expect(() => splitTransaction([deletion, many], from)).toThrow('counted')
  })

  it('but what a table that is made anew has stays together', () => {
    const anew: Operation[] = [
      { ...TARGET, verb: 'add-table', flags: 0, comment: undefined },
      { ...TARGET, verb: 'delete-table' },
      { ...TARGET, verb: 'add-table', flags: 0, comment: undefined },
    ]
    expect(splitTransaction(anew, RENDERED)).toEqual({ add: anew, remove: [] })
    const [, deletion] = anew
    expect(splitTransaction(deletion === undefined ? [] : [deletion], RENDERED).add).toEqual([])
  })

  it('but a chain that gets other rules never lacks them', () => {
    const rule = { expressions: [], comment: '' }
    const refill: Operation[] = [
      { ...TARGET, verb: 'flush-chain', chain: 'services' },
      { ...TARGET, verb: 'add-rule', chain: 'services', rule },
    ]
    const retire: Operation[] = [
      { ...TARGET, verb: 'flush-chain', chain: 'old' },
      { ...TARGET, verb: 'delete-chain', chain: 'old' },
    ]
    const remake: Operation[] = [
      { ...TARGET, verb: 'delete-chain', chain: 'hooked' },
      { ...TARGET, verb: 'add-chain', chain: { name: 'hooked', hook: undefined, rules: [] } },
    ]
    expect(splitTransaction([...refill, ...remake, ...retire], RENDERED)).toEqual({
      add: [...refill, ...remake],
      remove: retire,
    })
  })
})
