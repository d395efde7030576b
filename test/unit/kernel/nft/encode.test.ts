import * as fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { finish } from '../../../../src/base/clock.ts'
import { u32host } from '../../../../src/base/octets.ts'
import { ELEMENT_BYTES_MAX, encodeBatch, writeElement } from '../../../../src/kernel/nft/encode.ts'
import { SET_ELEMENT } from '../../../../src/kernel/nft/schema.ts'
import type { Element } from '../../../../src/kernel/nft/state.ts'
import {
  type EncodedTransaction,
  errorWordsOf,
  type Operation,
  type OwnedElement,
  type Transaction,
} from '../../../../src/kernel/nft/transaction.ts'
import { commentOf, commentUserdata, encodeUserdata } from '../../../../src/kernel/nft/userdata.ts'
import { viewOf } from '../../../../src/netlink/attribute.ts'
import { readMessages } from '../../../../src/netlink/message.ts'
import { writeAttributes } from '../../../../src/netlink/schema.ts'
import * as arbitrary from '../../../support/nft-arbitraries.ts'
import { columns } from '../../../support/owned.ts'
import { runs } from '../../../support/runs.ts'
import { attribute, be32, datagram, message, nest, written } from '../../../support/scripted-transport.ts'
import { declare } from '../../../support/whole-ruleset.ts'

const IP4 = '\x02\0\0\0'
const ABOUT_NFTABLES = '\0\0\0\x0a'
const target = { family: 'ip', table: 't' } as const

function encode(transaction: Transaction, generation?: number): EncodedTransaction {
  return finish(encodeBatch(transaction, { firstSequence: 1, generation }))
}

function adding(set: string, ...keys: readonly number[]): Extract<Operation, { verb: 'add-elements' }> {
  const owned = keys.map(key => ({
    element: { set, key: u32host(key), data: u32host(key), comment: '' },
    group: `group ${key}`,
  }))
  const declared = declare(set, { flags: 8, dataType: 7, dataLength: 4 })
  return { ...target, verb: 'add-elements', set: declared, ...columns(owned) }
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
})

describe('element operations', () => {
  it('do not pass an operation on another kind of object, and send nothing without elements', () => {
    const flush: Operation = { ...target, verb: 'flush-chain', chain: 'c' }
    const batch = encode([adding('a', 1), flush, adding('a', 2), adding('a')])
    expect(batch.messages).toBe(5)
    expect(batch.operationAt(3)).toEqual(flush)
  })

  const keys = Array.from({ length: 10_000 }, (_, key) => key)

  it('are spread over lists of 64,000 bytes at most, and nothing is lost between them', () => {
    const batch = encode([adding('a', ...keys.slice(0, 4567)), adding('a', ...keys.slice(4567))])
    const all: string[] = []
    for (let sequence = 2; sequence < batch.messages; sequence++)
      all.push(...batch.elementsAt(sequence).map(({ group }) => group))
    expect(all).toEqual(keys.map(key => `group ${key}`))
    for (const { start, end } of readMessages(viewOf(batch.bytes))) expect(end - start).toBeLessThan(64_100)
    expect(batch.messages).toBeLessThan(2 + 7)
  })

  it('take pauses while there are many', () => {
    const steps = encodeBatch([adding('a', ...keys)], { firstSequence: 1 })
    let pauses = 0
    while (steps.next().done !== true) pauses++
    expect(pauses).toBeGreaterThanOrEqual(4)
  })
})

describe('a refused message', () => {
  const first = adding('a', 1, 2, 3, 4)
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

  it('names whom the elements serve, as long as they are few', () => {
    const owned = (group: string): OwnedElement => ({
      element: { set: 's', key: group, data: undefined, comment: '' },
      group,
    })
    const text = (...groups: readonly string[]) => errorWordsOf(first, groups.map(owned)).object
    expect(text('ns1/a', 'ns1/a')).toMatch(/ \(ns1\/a\)$/)
    expect(text('ns1/a', '', 'ns1/b')).toMatch(/ \(ns1\/a, ns1\/b\)$/)
    expect(text('a', 'b', 'c', 'd', 'd')).toMatch(/ \(one of 5 elements of 4 groups\)$/)
    expect(text('')).not.toContain('(')
  })
})

describe('an element', () => {
  const SET = declare('things', { timeoutMs: 10_000 })

  it('that packets made has its expiration, and a timeout where that of the set is shorter', () => {
    const plain: Element = { set: 'a', key: 'k', data: undefined, comment: '' }
    const expiring = (expiresMs: number) => written(out => writeElement(out, SET, { ...plain, expiresMs }))
    const key = nest(1, attribute(1, 'k'))
    const time = (ms: number) => be32(0) + be32(ms)
    expect(expiring(9000)).toEqual(datagram(nest(1, key, attribute(5, time(9000)))))
    expect(expiring(20_000)).toEqual(
      datagram(nest(1, key, attribute(4, time(20_000)), attribute(5, time(20_000)))),
    )
  })

  it('is what the table writes, and never longer than announced', () => {
    fc.assert(
      fc.property(arbitrary.element, element => {
        const { key, data, comment } = element
        const value = typeof data === 'string' ? { value: data } : data && { verdict: data }
        const userdata = commentUserdata(0, comment)
        const wanted = written(out => {
          out.openNest(1)
          writeAttributes(out, SET_ELEMENT, { key: { value: key }, data: value, userdata })
          out.close()
        })
        expect(written(out => writeElement(out, SET, { ...element, expiresMs: 0 }))).toEqual(wanted)
        const { length } = written(out => writeElement(out, SET, element))
        expect(length).toBeLessThanOrEqual(ELEMENT_BYTES_MAX)
      }),
      { numRuns: runs(1000) },
    )
  })
})

describe('a comment', () => {
  it('is UTF-8 with its NUL', () => {
    expect(commentUserdata(0, 'é')).toBe('\0\x03\xc3\xa9\0')
    expect(commentUserdata(0, '')).toBeUndefined()
  })

  it('comes back as it was', () => {
    fc.assert(
      fc.property(arbitrary.comment, text => {
        expect(commentOf(0, commentUserdata(0, text))).toBe(text)
      }),
    )
  })

  it('is found behind items of other types', () => {
    expect(commentOf(7, '\0\x01x\x07\x03ab\0')).toBe('ab')
  })

  it('is refused when it is longer than the userdata that the kernel stores', () => {
    expect(encodeUserdata([{ type: 0, value: 'x'.repeat(254) }])).toHaveLength(256)
    expect(() => encodeUserdata([{ type: 0, value: 'x'.repeat(255) }])).toThrow(
      /257 bytes is longer than 256/,
    )
  })
})
