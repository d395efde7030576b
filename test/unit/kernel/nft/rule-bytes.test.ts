import * as fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { bytesFromOctets } from '../../../../src/base/octets.ts'
import { decodeRuleBytes, readCompiled } from '../../../../src/kernel/nft/decode.ts'
import { writeObject } from '../../../../src/kernel/nft/encode.ts'
import { attributesOf } from '../../../../src/kernel/nft/expression-attributes.ts'
import { EXPRESSION_LIST, RULE } from '../../../../src/kernel/nft/schema.ts'
import type { CompiledRule } from '../../../../src/kernel/nft/state.ts'
import { viewOf } from '../../../../src/netlink/attribute.ts'
import { NLA_HDRLEN } from '../../../../src/netlink/constants.ts'
import { writeAttributes } from '../../../../src/netlink/schema.ts'
import * as arbitrary from '../../../support/nft-arbitraries.ts'
import { runs } from '../../../support/runs.ts'
import { attribute, be32, datagram, nest, written } from '../../../support/scripted-transport.ts'
import { tolerant } from '../../../support/tolerant.ts'

function sent(rule: CompiledRule): Uint8Array {
  const operation = { verb: 'add-rule', family: 'ip', table: 'nat', chain: 'OUT', rule } as const
  return written(out => writeObject(out, operation, { setId: 0, indexOfIpset: undefined }))
}

describe('a rule that is sent as its bytes', () => {
  it('is its place, the bytes as they are, and the protocol that xtables is to know', () => {
    const rule = { compiled: 'expressions!', protocol: 17, protocolInverted: true }
    expect(sent(rule)).toEqual(
      datagram(
        attribute(1, 'nat\0') +
          attribute(2, 'OUT\0') +
          nest(4, 'expressions!') +
          nest(5, attribute(1, be32(17)) + attribute(2, be32(2))),
      ),
    )
  })

  it('says nothing of a protocol that it does not ask for', () => {
    const compiled = String.fromCharCode(...Array.from({ length: 255 }, (_, i) => i))
    expect(sent({ compiled, protocol: 0, protocolInverted: false })).toEqual(
      datagram(attribute(1, 'nat\0') + attribute(2, 'OUT\0') + nest(4, compiled)),
    )
  })

  it('is refused where it is longer than an attribute', () => {
    const rule = { compiled: 'x'.repeat(0xffff), protocol: 0, protocolInverted: false }
    expect(() => sent(rule)).toThrow('EMSGSIZE')
  })
})

/** Decodes a message whose attributes are these. */
function decoded(attributes: Uint8Array) {
  const bytes = Buffer.concat([Buffer.alloc(4), attributes])
  const message = { type: 0x0a06, flags: 0, sequence: 1, portId: 0, start: 0, end: bytes.length }
  return decodeRuleBytes(viewOf(bytes), message)
}

const counter = fc.record({
  tag: fc.constant('counter' as const),
  data: fc.record({
    bytes: fc.bigInt({ min: 0n, max: 1n << 60n }),
    packets: fc.bigInt({ min: 0n, max: 99n }),
  }),
})
const expressions = fc.array(
  fc.oneof(
    counter,
    arbitrary.expression
      .filter(({ kind }) => kind !== 'ipset' && kind !== 'counter')
      .map(each => attributesOf(each)),
  ),
  { maxLength: 12 },
)

describe('a rule that is read as its bytes', () => {
  it('has its place, its handle, and counters at zero, as the tables would read it', () => {
    fc.assert(
      fc.property(expressions, fc.bigInt({ min: 1n, max: 1n << 50n }), (list, handle) => {
        const bytes = written(out =>
          writeAttributes(out, RULE, {
            table: 'nat',
            chain: 'OUT',
            handle,
            expressions: list,
            userdata: 'u',
          }),
        )
        const cleared = list.map(each =>
          each.tag === 'counter' ? { ...each, data: { bytes: 0n, packets: 0n } } : each,
        )
        const packets = list.reduce(
          (sum, each) => sum + (each.tag === 'counter' ? (each.data.packets ?? 0n) : 0n),
          0n,
        )
        const wanted = written(out => EXPRESSION_LIST.write(out, 4, cleared)).subarray(NLA_HDRLEN)
        const { compiled, ...place } = decoded(bytes)
        expect(place).toEqual({ table: 'nat', chain: 'OUT', handle, userdata: 'u', packets })
        expect(bytesFromOctets(compiled)).toEqual(Buffer.from(wanted))
        expect(() => readCompiled({ compiled, protocol: 0, protocolInverted: false })).not.toThrow()
      }),
    )
  })

  it('of any bytes is a NetlinkError at worst', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), bytes => {
        tolerant(() => decoded(bytes))
      }),
      { numRuns: runs(2_000) },
    )
  })

  it.each(['', attribute(3, '\0\0\0\x11')])('is malformed without its handle of eight octets', handle => {
    const bytes = datagram(attribute(1, 'nat\0') + attribute(2, 'OUT\0') + handle)
    expect(() => decoded(bytes)).toThrow('EBADMSG')
  })
})
