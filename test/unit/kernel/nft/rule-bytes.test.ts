import { describe, expect, it } from 'vitest'
import { writeObject } from '../../../../src/kernel/nft/encode.ts'
import { RuleSpans } from '../../../../src/kernel/nft/list-chains.ts'
import type { CompiledRule } from '../../../../src/kernel/nft/state.ts'
import { AttributeWriter, ByteWriter, viewOf } from '../../../../src/netlink/attribute.ts'
import type { Message } from '../../../../src/netlink/message.ts'
import { attribute, be32, datagram, nest } from '../../../support/scripted-transport.ts'

function written(run: (out: AttributeWriter) => void): Uint8Array {
  const out = new ByteWriter(1)
  run(new AttributeWriter(out))
  return out.written().slice()
}

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

/** A message whose attributes are these. */
function messageOf(attributes: Uint8Array): {
  readonly view: ReturnType<typeof viewOf>
  readonly message: Message
} {
  const bytes = Buffer.concat([Buffer.alloc(4), attributes])
  const head = { type: 0x0a06, flags: 0, sequence: 1, portId: 0 }
  return { view: viewOf(bytes), message: { ...head, start: 0, end: bytes.length } }
}

describe('a rule that is read as its bytes', () => {
  it('is malformed without its handle', () => {
    const { view, message } = messageOf(datagram(attribute(1, 'nat\0') + attribute(2, 'OUT\0')))
    expect(() => new RuleSpans().walk(view, message)).toThrow('without its table, chain or handle')
  })
})
