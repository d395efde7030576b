import * as fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { bytesFromOctets, hex, u16be, u32be, u32host } from '../../../../src/base/octets.ts'
import { ElementWriter, elementByTable } from '../../../../src/kernel/nft/element-writer.ts'
import type { Element, NftSet } from '../../../../src/kernel/nft/state.ts'
import * as arbitrary from '../../../support/nft-arbitraries.ts'
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

function written(element: Element): Uint8Array {
  return new Uint8Array(bytesFromOctets(new ElementWriter().element(SET, element)))
}

describe('an element', () => {
  it('is a key, its data and a comment with its type, length and NUL', () => {
    const element = {
      set: 'frontends',
      key: u32be(1),
      data: `${u32be(2)}${u16be(80)}\0\0`,
      comment: 'ns1/web',
    }
    expect(written(element)).toEqual(
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

  it('of a verdict map has the verdict and its chain', () => {
    const element = { set: 'dispatch', key: u32host(16), data: { code: -4, chain: 'mod-3' }, comment: '' }
    const verdict = nest(2, attribute(1, be32(-4)), attribute(2, 'mod-3\0'))
    expect(written(element)).toEqual(datagram(nest(1, nest(1, attribute(1, '\x10\0\0\0')), nest(2, verdict))))
  })

  it('to be deleted is a key alone', () => {
    const items = ['key', 'k'.repeat(100)]
    for (const key of items)
      expect(new Uint8Array(bytesFromOctets(new ElementWriter().key(key)))).toEqual(
        datagram(nest(1, nest(1, attribute(1, key)))),
      )
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
    expect(written(expiring(9000))).toEqual(datagram(nest(1, key, attribute(5, be32(0), be32(9000)))))
    expect(written(expiring(20_000))).toEqual(
      datagram(nest(1, key, attribute(4, be32(0), be32(20_000)), attribute(5, be32(0), be32(20_000)))),
    )
  })

  it('with a comment longer than userdata can be is refused', () => {
    const element = { set: 'a', key: 'k', data: undefined, comment: 'x'.repeat(254) }
    expect(() => written(element)).toThrow(/longer than 256/)
  })

  it('is the same octets whether joined or written by the table, whatever came before it', () => {
    fc.assert(
      fc.property(fc.array(arbitrary.element, { minLength: 1, maxLength: 20 }), elements => {
        const writer = new ElementWriter()
        for (const element of [...elements, ...elements])
          expect(hex(writer.element(SET, element))).toBe(hex(elementByTable(SET, element)))
      }),
      { numRuns: 300 },
    )
  })
})
