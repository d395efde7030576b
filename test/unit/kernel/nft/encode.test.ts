import { describe, expect, it } from 'vitest'
import { finish } from '../../../../src/base/clock.ts'
import { u32host } from '../../../../src/base/octets.ts'
import { encodeBatch } from '../../../../src/kernel/nft/encode.ts'
import type {
  EncodedTransaction,
  Operation,
  OwnedElement,
  Transaction,
} from '../../../../src/kernel/nft/transaction.ts'
import { viewOf } from '../../../../src/netlink/attribute.ts'
import { readMessages } from '../../../../src/netlink/message.ts'
import { columns } from '../../../support/owned.ts'
import { attribute, be32, datagram, message } from '../../../support/scripted-transport.ts'
import { declare } from '../../../support/whole-ruleset.ts'

const IP4 = '\x02\0\0\0'
const ABOUT_NFTABLES = '\0\0\0\x0a'
const target = { family: 'ip', table: 't' } as const

function encode(transaction: Transaction, generation?: number): EncodedTransaction {
  return finish(encodeBatch(transaction, { firstSequence: 1, generation }))
}

/** The messages between batch begin and batch end, as [type, flags, payload without nfgenmsg]. */
function bodies(batch: EncodedTransaction): readonly (readonly [number, number, string])[] {
  const view = viewOf(batch.bytes)
  return readMessages(view)
    .slice(1, -1)
    .map(({ type, flags, start, end }) => {
      expect(type >> 8).toBe(10)
      expect(view.bytes.toString('latin1', start, start + 4)).toBe(IP4)
      return [type & 255, flags, view.bytes.toString('latin1', start + 4, end)]
    })
}

function owned(set: string, ...keys: readonly number[]): OwnedElement[] {
  return keys.map(key => ({
    element: { set, key: u32host(key), data: u32host(key), comment: '' },
    group: `group ${key}`,
  }))
}

function elements(
  verb: 'add-elements' | 'delete-elements',
  set: string,
  ...keys: readonly number[]
): Operation {
  return {
    ...target,
    verb,
    set: declare(set, { flags: 8, dataType: 7, dataLength: 4 }),
    ...columns(owned(set, ...keys)),
  }
}

describe('a batch', () => {
  it('stands between begin and end, and only its last message asks for an acknowledgement', () => {
    const batch = encode([
      { ...target, verb: 'delete-table' },
      { ...target, verb: 'add-table', flags: 0, comment: undefined },
    ])
    const name = attribute(1, 't\0')
    expect(batch.bytes).toEqual(
      datagram(
        message({ type: 0x10, flags: 1, sequence: 1, payload: ABOUT_NFTABLES }),
        message({ type: 0x0a02, flags: 1, sequence: 2, payload: IP4 + name }),
        message({ type: 0x0a00, flags: 0x405, sequence: 3, payload: IP4 + name + attribute(2, be32(0)) }),
        message({ type: 0x11, flags: 1, sequence: 4, payload: ABOUT_NFTABLES }),
      ),
    )
    expect(batch.messages).toBe(4)
  })

  it('names the generation that it is for', () => {
    const { bytes } = encode([{ ...target, verb: 'delete-table' }], 0xfffffffe)
    const payload = ABOUT_NFTABLES + attribute(1, be32(-2))
    const begin = message({ type: 0x10, flags: 1, sequence: 1, payload })
    expect(bytes.subarray(0, begin.length)).toEqual(datagram(begin))
  })

  it('of nothing is begin and end', () => {
    expect(readMessages(viewOf(encode([]).bytes)).map(({ type, flags }) => [type, flags])).toEqual([
      [0x10, 1],
      [0x11, 1],
    ])
  })
})

describe('an operation', () => {
  const of = (operation: Operation) => bodies(encode([operation]))[0]
  const table = attribute(1, 't\0')

  it.each([
    ['flush-chain', 8, attribute(2, 'c\0')],
    ['delete-chain', 5, attribute(3, 'c\0')],
  ] as const)('%s names the chain', (verb, type, name) => {
    expect(of({ ...target, verb, chain: 'c' })).toEqual([type, 5, table + name])
  })
})

describe('element operations', () => {
  /** Each message as verb, set and keys, in order. */
  function sketch(batch: EncodedTransaction): string[] {
    return bodies(batch).map(([type], index) => {
      const inMessage = batch.elementsAt(index + 2)
      const keys = inMessage.map(({ element }) => element.key.charCodeAt(0))
      return `${type === 12 ? 'add' : 'delete'} ${inMessage[0]?.element.set} ${keys.join(',')}`
    })
  }

  it('have a message each, in their order', () => {
    const batch = encode([elements('delete-elements', 'b', 4), elements('add-elements', 'b', 6, 7)])
    expect(sketch(batch)).toEqual(['delete b 4', 'add b 6,7'])
  })

  it('do not pass an operation on another kind of object', () => {
    const batch = encode([
      elements('add-elements', 'a', 1),
      { ...target, verb: 'flush-chain', chain: 'c' },
      elements('add-elements', 'a', 2),
    ])
    expect(batch.messages).toBe(5)
    expect(batch.operationAt(3)).toEqual({ ...target, verb: 'flush-chain', chain: 'c' })
  })

  it('without elements send nothing', () => {
    expect(encode([elements('add-elements', 'a')]).messages).toBe(2)
  })

  it('are spread over lists of 64,000 bytes at most, and nothing is lost between them', () => {
    const keys = Array.from({ length: 10_000 }, (_, key) => key)
    const batch = encode([
      elements('add-elements', 'a', ...keys.slice(0, 4567)),
      elements('add-elements', 'a', ...keys.slice(4567)),
    ])
    const all: string[] = []
    for (let sequence = 2; sequence < batch.messages; sequence++) {
      all.push(...batch.elementsAt(sequence).map(({ group }) => group))
    }
    expect(all).toEqual(keys.map(key => `group ${key}`))
    for (const [, , payload] of bodies(batch)) expect(payload.length).toBeLessThan(64_100)
    expect(batch.messages).toBeLessThan(2 + 7)
  })

  it('take pauses while there are many', () => {
    const keys = Array.from({ length: 10_000 }, (_, key) => key)
    const steps = encodeBatch([elements('add-elements', 'a', ...keys)], { firstSequence: 1 })
    let pauses = 0
    while (steps.next().done !== true) pauses++
    expect(pauses).toBeGreaterThanOrEqual(4)
  })
})

describe('a refused message', () => {
  const first = elements('add-elements', 'a', 1, 2, 3, 4)
  const batch = encode([{ ...target, verb: 'add-table', flags: 0, comment: undefined }, first])
  /** Where the elements of message 3 begin: header, nfgenmsg, table, set, list header. */
  const elementsStart = 16 + 4 + 8 + 8 + 4
  const elementLength = 28

  it.each([0, 1, 2, 3])('is narrowed to element %i by any offset within it', index => {
    for (const inside of [0, 4, elementLength - 1]) {
      const offset = elementsStart + index * elementLength + inside
      expect(batch.elementsAt(3, offset).map(({ group }) => group)).toEqual([`group ${index + 1}`])
      expect(batch.operationAt(3)).toBe(first)
    }
  })

  it.each([undefined, 0, 20, elementsStart + 4 * elementLength, 1_000_000])(
    'stays all of its elements with the offset %s',
    offset => {
      expect(batch.elementsAt(3, offset)).toHaveLength(4)
    },
  )
})
