import { describe, expect, it } from 'vitest'
import * as nft from '../../../../src/kernel/nft/constants.ts'
import {
  decodeChain,
  decodeElements,
  decodeGeneration,
  decodeRule,
  familyOf,
} from '../../../../src/kernel/nft/decode.ts'
import type { ByteView } from '../../../../src/netlink/attribute.ts'
import type { Message } from '../../../../src/netlink/message.ts'
import {
  attribute,
  be32,
  datagram,
  firstMessage,
  message,
  nest,
} from '../../../support/scripted-transport.ts'

/** Dumps as the kernel sends them: with everything it adds. */

const TABLE = attribute(1, 't\0')

function decode<T>(run: (view: ByteView, message: Message) => T, ...attributes: readonly string[]): T {
  const payload = `\x02\0\0\0${attributes.join('')}`
  return run(...firstMessage(datagram(message({ type: 0x0a00, payload }))))
}

function u32s(...values: readonly (readonly [type: number, value: number])[]): string {
  return values.map(([type, value]) => attribute(type, be32(value))).join('')
}

function expressionOf(name: string, ...data: readonly string[]) {
  const list = nest(4, nest(1, attribute(1, `${name}\0`), nest(2, ...data)))
  return decode(decodeRule, TABLE, attribute(2, 'c\0'), list).value.expressions[0]
}

describe('an expression of a dump', () => {
  it.each([
    [1, 0],
    [2, 4],
    [4, 12],
    [8, 0],
    [9, 1],
    [23, 15],
  ])('has its register %i as number %i', (register, dreg) => {
    expect(expressionOf('meta', u32s([1, register], [2, 3]))).toEqual({ kind: 'meta', key: 3, dreg })
  })

  it.each([
    ['a payload that is written', 'payload', u32s([2, 1], [3, 0], [4, 4], [5, 8])],
    ['a comparison of order', 'cmp', u32s([1, 8], [2, 3]) + nest(3, attribute(1, 'x'))],
    ['a shift', 'bitwise', u32s([1, 8], [2, 8], [3, 4], [6, 1]) + nest(7, attribute(1, 'x'))],
    ['a constant in a register', 'immediate', u32s([1, 8]) + nest(2, attribute(1, 'x'))],
    ['an incremental generator', 'numgen', u32s([1, 8], [2, 3], [3, 0], [4, 0])],
    ['source translation', 'nat', u32s([1, 0], [2, 2], [3, 10], [5, 11])],
    ['translation to a range', 'nat', u32s([1, 1], [2, 2], [3, 10], [4, 12], [5, 11])],
    ['translation with a flag', 'nat', u32s([1, 1], [2, 2], [3, 10], [5, 11], [7, 7])],
    ['a reset', 'reject', u32s([1, 1]) + attribute(2, '\0')],
    ['an interface lookup', 'fib', u32s([1, 8], [2, 1], [3, 1])],
    ['a conntrack field of one direction', 'ct', u32s([1, 8], [2, 8]) + attribute(3, '\0')],
    ['a limit', 'limit', attribute(1, be32(0), be32(10))],
    [
      'a limit without a rate',
      'limit',
      attribute(2, be32(0), be32(1)) + u32s([3, 5], [4, nft.NFT_LIMIT_PKTS]),
    ],
    ['a lookup with another flag', 'lookup', `${attribute(1, 's\0')}${u32s([2, 8], [5, 2])}`],
    ['a second register', 'meta', u32s([2, 3], [1, 8], [3, 8])],
    ['a register that is none', 'nat', u32s([1, 1], [2, 2], [3, 10], [5, 99])],
  ])('that our values cannot say stays as it is: %s', (_, name, data) => {
    expect(expressionOf(name, data)).toEqual({ kind: 'unknown', name, data })
  })
})

describe('a chain of a dump', () => {
  const hook = nest(4, u32s([1, 0], [2, -100]))
  const head = [TABLE, attribute(3, 'c\0')]

  it('has its hook, and its policy only when it is not accept', () => {
    const place = { type: 'nat', hooknum: 0, priority: -100 }
    const type = attribute(7, 'nat\0')
    expect(decode(decodeChain, ...head, hook, u32s([5, 1]), type).value.hook).toEqual(place)
    expect(decode(decodeChain, ...head, hook, u32s([5, 0]), type).value.hook).toEqual({ ...place, policy: 0 })
  })

  it('has no hook when it is plain', () => {
    const plain = { name: 'c', hook: undefined, rules: [] }
    expect(decode(decodeChain, ...head, u32s([6, 3])).value).toEqual(plain)
  })

  it('is refused without its name', () => {
    expect(() => decode(decodeChain, TABLE)).toThrow(/without its name/)
  })
})

describe('an element of a dump', () => {
  const read = (expirations: boolean, ...attributes: readonly string[]) =>
    decode(
      (view, each) => decodeElements(view, each, { expirations }),
      TABLE,
      attribute(2, 's\0'),
      nest(3, nest(1, ...attributes)),
    ).value[0]
  const key = nest(1, attribute(1, 'k'))

  it('has the time it has left only where that is asked for', () => {
    const expiration = attribute(5, be32(0), be32(1234))
    const plain = { set: 's', key: 'k', data: undefined, comment: '' }
    expect(read(true, key, expiration)).toEqual({ ...plain, expiresMs: 1234 })
    expect(read(false, key, expiration)).not.toHaveProperty('expiresMs')
  })

  it('has an empty key when it is the catch-all', () => {
    expect(read(false, u32s([3, 2]))?.key).toBe('')
  })

  it('has no comment when its userdata is of another kind, or makes no sense', () => {
    expect(read(false, key, attribute(6, '\x07\x02x\0'))?.comment).toBe('')
    expect(read(false, key, attribute(6, '\0'))?.comment).toBe('')
    expect(read(false, key, attribute(6, '\0\xffab'))?.comment).toBe('ab')
  })
})

it('reads the generation with the process that made it', () => {
  expect(decode(decodeGeneration, u32s([1, 7], [2, 42]), attribute(3, 'nft\0'))).toEqual({
    id: 7,
    processId: 42,
    processName: 'nft',
  })
})

it.each([
  ['\x01', 'inet'],
  ['\x02', 'ip'],
  ['\x07', undefined],
])('takes no other families for ours: %j is %s', (family, expected) => {
  const bytes = datagram(message({ type: 0x0a00, payload: `${family}\0\0\0` }))
  expect(familyOf(...firstMessage(bytes))).toBe(expected)
})
