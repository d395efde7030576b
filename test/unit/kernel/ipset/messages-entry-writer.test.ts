import fc from 'fast-check'
import { expect, it } from 'vitest'
import { ENTRY_BYTES_MAX, entryWriter, type NumberedEntry } from '../../../../src/kernel/ipset/messages.ts'
import { ENTRY, type Ipset, type IpsetEntry } from '../../../../src/kernel/ipset/state.ts'
import { AttributeWriter, ByteWriter } from '../../../../src/netlink/attribute.ts'
import { writeAttributes } from '../../../../src/netlink/schema.ts'
import { anyEntry, anySet, setOf } from '../../../support/fake-ipset/arbitraries.ts'
import { runs } from '../../../support/runs.ts'

const anyLine = fc.integer({ min: 1, max: 0xffff_ffff })
const anyPlaced = anySet('s').chain(set =>
  // Fields that the type has no use for are not written.
  fc.record({ set: fc.constant(set), entry: anyEntry(set), extra: anyEntry(setOf('x', 'hash:ip,port,net')) }),
)

function written(write: (out: AttributeWriter) => void): string {
  // Full of something else, so that what is not written shows.
  const out = new AttributeWriter(new ByteWriter(256))
  out.out.bytes.fill(0xee)
  write(out)
  return Buffer.from(out.out.written()).toString('hex')
}

function byTable(out: AttributeWriter, { type }: Ipset, { entry, line }: NumberedEntry): void {
  const address = (ip = '') => (ip.length === 4 ? { v4: ip } : { v6: ip })
  const { ip, protocol, port, ip2, prefix2 } = entry
  const fields = type.split(/[:,]/).slice(1)
  out.openNest(7)
  writeAttributes(out, ENTRY, {
    ip: fields[0] === 'ip' ? address(ip) : undefined,
    port: fields.includes('port') ? port : undefined,
    protocol: fields.includes('port') && fields[0] === 'ip' ? protocol : undefined,
    ip2: fields.length === 3 ? address(ip2) : undefined,
    prefix2: fields[2] === 'net' ? prefix2 : undefined,
    line,
  })
  out.close()
}

it('writes what the table writes of the fields that the type has, within its bound', () => {
  fc.assert(
    fc.property(anyPlaced, anyLine, ({ set, entry, extra }, line) => {
      const padded: IpsetEntry = { ...extra, ...entry }
      const wanted = written(out => byTable(out, set, { entry, line }))
      expect(written(out => entryWriter(set)(out, { entry: padded, line }))).toBe(wanted)
      expect(wanted.length / 2).toBeLessThanOrEqual(ENTRY_BYTES_MAX)
    }),
    { numRuns: runs(500) },
  )
})
