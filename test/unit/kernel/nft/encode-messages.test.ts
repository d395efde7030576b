import * as fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { u16be, u32be } from '../../../../src/base/octets.ts'
import { ELEMENT_BYTES_MAX, writeElement, writeElementKey } from '../../../../src/kernel/nft/encode.ts'
import { SET_ELEMENT } from '../../../../src/kernel/nft/schema.ts'
import type { Element, NftSet } from '../../../../src/kernel/nft/state.ts'
import { commentUserdata } from '../../../../src/kernel/nft/userdata.ts'
import { AttributeWriter, ByteWriter } from '../../../../src/netlink/attribute.ts'
import { writeAttributes } from '../../../../src/netlink/schema.ts'
import * as arbitrary from '../../../support/nft-arbitraries.ts'
import { runs } from '../../../support/runs.ts'
import { attribute, be32, datagram, nest } from '../../../support/scripted-transport.ts'

const SET: NftSet = {
  name: 'things',
  flags: 0,
  keyType: 0,
  keyLength: 0,
  dataType: undefined,
  dataLength: undefined,
  size: 0,
  timeoutMs: 10_000,
  userdata: '',
}

function write(run: (out: AttributeWriter) => void): Uint8Array {
  const out = new ByteWriter(1)
  run(new AttributeWriter(out))
  return out.written().slice()
}

describe('an element', () => {
  it('is a key, its data and a comment with its type, length and NUL', () => {
    const element = {
      set: 'frontends',
      key: u32be(1),
      data: `${u32be(2)}${u16be(80)}\0\0`,
      comment: 'ns1/web',
    }
    expect(write(out => writeElement(out, SET, element))).toEqual(
      datagram(
        nest(
          1,
          nest(1, attribute(1, be32(1))),
          nest(2, attribute(1, be32(2), '\0\x50\0\0')),
          attribute(6, '\0\x08ns1/web\0'),
        ),
      ),
    )
  })

  it('of a verdict map with a timeout has its verdict and its expiration', () => {
    const data = { code: -4, chain: 'mod-3' }
    const element = { set: 'dispatch', key: 'k', data, comment: '', expiresMs: 9000 }
    const verdict = nest(2, attribute(1, be32(-4)), attribute(2, 'mod-3\0'))
    expect(write(out => writeElement(out, SET, element))).toEqual(
      datagram(nest(1, nest(1, attribute(1, 'k')), nest(2, verdict), attribute(5, be32(0), be32(9000)))),
    )
  })

  it('to be deleted is a key alone', () => {
    expect(write(out => writeElementKey(out, 'key'))).toEqual(datagram(nest(1, nest(1, attribute(1, 'key')))))
  })

  it('that packets made has its expiration, and a timeout where that of the set is shorter', () => {
    const expiring = (expiresMs: number): Element => ({
      set: 'a',
      key: 'k',
      data: undefined,
      comment: '',
      expiresMs,
    })
    const key = nest(1, attribute(1, 'k'))
    expect(write(out => writeElement(out, SET, expiring(9000)))).toEqual(
      datagram(nest(1, key, attribute(5, be32(0), be32(9000)))),
    )
    expect(write(out => writeElement(out, SET, expiring(20_000)))).toEqual(
      datagram(nest(1, key, attribute(4, be32(0), be32(20_000)), attribute(5, be32(0), be32(20_000)))),
    )
  })

  it('with a comment longer than userdata can be is refused', () => {
    const element = { set: 'a', key: 'k', data: undefined, comment: 'x'.repeat(254) }
    expect(() => write(out => writeElement(out, SET, element))).toThrow(/longer than 256/)
  })

  it('is what the table writes, and never longer than announced', () => {
    fc.assert(
      fc.property(arbitrary.element, element => {
        const { key, data, comment } = element
        const value = typeof data === 'string' ? { value: data } : data && { verdict: data }
        const userdata = commentUserdata(0, comment)
        const wanted = write(out => {
          out.openNest(1)
          writeAttributes(out, SET_ELEMENT, { key: { value: key }, data: value, userdata })
          out.close()
        })
        expect(write(out => writeElement(out, SET, { ...element, expiresMs: 0 }))).toEqual(wanted)
        const written = write(out => writeElement(out, SET, element))
        expect(written.length).toBeLessThanOrEqual(ELEMENT_BYTES_MAX)
      }),
      { numRuns: runs(1000) },
    )
  })
})
