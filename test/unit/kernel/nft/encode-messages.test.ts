import * as fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { ELEMENT_BYTES_MAX, writeElement } from '../../../../src/kernel/nft/encode.ts'
import { SET_ELEMENT } from '../../../../src/kernel/nft/schema.ts'
import type { Element } from '../../../../src/kernel/nft/state.ts'
import { commentUserdata } from '../../../../src/kernel/nft/userdata.ts'
import { AttributeWriter, ByteWriter } from '../../../../src/netlink/attribute.ts'
import { writeAttributes } from '../../../../src/netlink/schema.ts'
import * as arbitrary from '../../../support/nft-arbitraries.ts'
import { runs } from '../../../support/runs.ts'
import { attribute, be32, datagram, nest } from '../../../support/scripted-transport.ts'
import { declare } from '../../../support/whole-ruleset.ts'

const SET = declare('things', { timeoutMs: 10_000 })

function write(run: (out: AttributeWriter) => void): Uint8Array {
  const out = new ByteWriter(1)
  run(new AttributeWriter(out))
  return out.written().slice()
}

describe('an element', () => {
  it('that packets made has its expiration, and a timeout where that of the set is shorter', () => {
    const plain: Element = { set: 'a', key: 'k', data: undefined, comment: '' }
    const expiring = (expiresMs: number) => ({ ...plain, expiresMs })
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
