import * as fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { finish } from '../../src/base/clock.ts'
import {
  decodeChain,
  decodeElements,
  decodeGeneration,
  decodeRule,
  decodeSet,
  decodeTable,
  decodeTableName,
  familyOf,
} from '../../src/kernel/nft/decode.ts'
import { ruleKey } from '../../src/kernel/nft/diff.ts'
import { encodeBatch } from '../../src/kernel/nft/encode.ts'
import { type ByteView, viewOf } from '../../src/netlink/attribute.ts'
import { type Message, readDone, readError, readMessages, readNfGenMsg } from '../../src/netlink/message.ts'
import * as arbitrary from '../support/nft-arbitraries.ts'
import { columns } from '../support/owned.ts'
import { IS_QUICK, runs } from '../support/runs.ts'
import { attribute, datagram, message, nest } from '../support/scripted-transport.ts'
import { tolerant } from '../support/tolerant.ts'
import { NOTHING, plan, WHOLE } from '../support/whole-ruleset.ts'

const DECODERS: readonly ((view: ByteView, message: Message) => unknown)[] = [
  familyOf,
  decodeTable,
  decodeChain,
  decodeRule,
  decodeSet,
  (view, message) => decodeElements(view, message, { expirations: true }),
  decodeGeneration,
  decodeTableName,
  readNfGenMsg,
  readError,
  readDone,
]

/** Runs every decoder over every message; anything but a value or a NetlinkError fails the test. */
function decodeAll(bytes: Uint8Array): void {
  const view = viewOf(bytes)
  const messages = tolerant(() => readMessages(view)) ?? []
  for (const each of messages) for (const decode of DECODERS) tolerant(() => decode(view, each))
}

/** A recorded batch, small enough to be damaged in every place. */
function recorded(): Uint8Array {
  return finish(encodeBatch(plan(NOTHING, WHOLE), { firstSequence: 1, generation: 7 })).bytes.slice()
}

const indexOfIpset = (name: string) => arbitrary.IPSETS.indexOf(name)
const nameOfIpset = (index: number) => arbitrary.IPSETS[index]

describe('what was encoded is decoded', () => {
  const read = <T>(
    operation: Parameters<typeof encodeBatch>[0][number],
    decode: (v: ByteView, m: Message) => T,
  ): T => {
    const view = viewOf(finish(encodeBatch([operation], { firstSequence: 1, indexOfIpset })).bytes)
    const [, written] = readMessages(view)
    if (written === undefined) throw new Error('no message')
    expect(familyOf(view, written)).toBe(operation.family)
    return decode(view, written)
  }
  const target = { family: 'ip6', table: 't' } as const

  it('for rules of any expressions', () => {
    const rule = fc.record({
      expressions: fc.array(arbitrary.expression, { maxLength: 20 }),
      comment: arbitrary.comment,
    })
    fc.assert(
      fc.property(rule, rule => {
        const decode = (view: ByteView, message: Message) => decodeRule(view, message, nameOfIpset)
        const decoded = read({ ...target, verb: 'add-rule', chain: 'c', rule }, decode)
        expect(decoded).toEqual({ table: 't', chain: 'c', value: rule })
        expect(ruleKey(decoded.value)).toBe(ruleKey(rule))
      }),
    )
  })

  it('for sets and maps', () => {
    fc.assert(
      fc.property(arbitrary.set, set => {
        expect(read({ ...target, verb: 'add-set', set }, decodeSet)).toEqual({ table: 't', value: set })
      }),
    )
  })

  it('for elements', () => {
    fc.assert(
      fc.property(
        fc.array(arbitrary.element, { minLength: 1, maxLength: 50 }),
        arbitrary.set,
        (elements, set) => {
          const owned = elements.map(element => ({ element: { ...element, set: set.name }, group: '' }))
          const decode = (view: ByteView, message: Message) =>
            decodeElements(view, message, { expirations: false })
          const decoded = read({ ...target, verb: 'add-elements', set, ...columns(owned) }, decode)
          expect(decoded.value).toEqual(owned.map(({ element }) => element))
        },
      ),
    )
  })

  it('for tables and chains', () => {
    const hook = fc.record({
      type: fc.constantFrom('nat' as const, 'filter' as const, 'route' as const),
      hooknum: fc.nat({ max: 4 }),
      priority: fc.integer({ min: -1000, max: 1000 }),
    })
    const chain = fc.record({
      name: arbitrary.name,
      hook: fc.option(hook, { nil: undefined }),
      rules: fc.constant([]),
    })
    fc.assert(
      fc.property(chain, arbitrary.name, fc.nat({ max: 7 }), (chain, table, flags) => {
        expect(read({ family: 'ip6', table, verb: 'add-chain', chain }, decodeChain)).toEqual({
          table,
          value: chain,
          use: 0,
        })
        const head = { name: table, flags, comment: 'ours' }
        expect(
          read({ family: 'ip6', table, verb: 'add-table', flags, comment: 'ours' }, decodeTable),
        ).toEqual(head)
      }),
    )
  })

  it('and any transaction gives the same bytes each time, which every decoder survives', () => {
    fc.assert(
      fc.property(fc.array(arbitrary.operation, { maxLength: 10 }), transaction => {
        const encode = () => finish(encodeBatch(transaction, { firstSequence: 1, indexOfIpset })).bytes
        expect(encode()).toEqual(encode())
        decodeAll(encode())
      }),
    )
  })
})

describe('hostile bytes', () => {
  it('are a value or a NetlinkError, whatever they are', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 400 }), bytes => decodeAll(bytes)),
      { numRuns: runs(2000) },
    )
  })

  it('behind a good header are a value or a NetlinkError', () => {
    const payload = arbitrary.octets(0, 300)
    fc.assert(
      fc.property(payload, fc.nat({ max: 0xffff }), (payload, type) =>
        decodeAll(datagram(message({ type, payload }))),
      ),
      { numRuns: runs(2000) },
    )
  })

  it('cut off anywhere never read outside', () => {
    const bytes = recorded()
    for (let length = 0; length < bytes.length; length += 7) {
      // A buffer of exactly that length: reading beyond it would throw a RangeError, which is no NetlinkError.
      decodeAll(bytes.slice(0, length))
      // The same bytes within a larger buffer must not be read either.
      decodeAll(bytes.subarray(0, length))
    }
  })

  it.skipIf(IS_QUICK)('with any bit flipped are a value or a NetlinkError', () => {
    const bytes = recorded()
    for (let position = 0; position < bytes.length; position++) {
      const bit = 1 << ((position * 5) % 8)
      const before = bytes[position] ?? 0
      bytes[position] = before ^ bit
      decodeSome(bytes, position)
      bytes[position] = before
    }
  })

  it('nested a hundred deep are a value or a NetlinkError', () => {
    let payload = ''
    for (let depth = 0; depth < 100; depth++) payload = nest(1 + (depth % 4), attribute(1, 'x\0'), payload)
    for (const type of [0x0a00, 0x0a03, 0x0a06, 0x0a09, 0x0a0c]) {
      decodeAll(datagram(message({ type, payload: `\x02\0\0\0${payload}` })))
    }
  })

  it('with lengths of zero end at once', () => {
    decodeAll(new Uint8Array(1 << 16))
    decodeAll(datagram(message({ type: 0x0a0c, payload: '\0'.repeat(60_000) })))
  })
})

/** Only the message around `position`, so that flipping every bit of a batch stays quick. */
function decodeSome(bytes: Uint8Array, position: number): void {
  const view = viewOf(bytes)
  const messages = tolerant(() => readMessages(view)) ?? []
  for (const each of messages) {
    if (position < each.start - 16 || position >= each.end) continue
    for (const decode of DECODERS) tolerant(() => decode(view, each))
  }
}
