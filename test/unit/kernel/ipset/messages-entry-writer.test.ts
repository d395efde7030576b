import fc from 'fast-check'
import { expect, it } from 'vitest'
import {
  ENTRY_BYTES_MAX,
  entryWriter,
  type NumberedEntry,
  whyNotEntry,
} from '../../../../src/kernel/ipset/messages.ts'
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
      expect(whyNotEntry(set, entry)).toBeUndefined()
    }),
    { numRuns: runs(500) },
  )
})

const V4 = '\x0a\0\0\x01'
const V6 = '\x20\x01'.repeat(8)
const whole = { ip: V4, protocol: 6, port: 80, ip2: V4, prefix2: 8 }
const wrong: readonly [why: string, type: Ipset['type'], entry: IpsetEntry][] = [
  ['no port: undefined', 'bitmap:port', {}],
  ['no port: 65536', 'bitmap:port', { port: 65_536 }],
  ['no port: -1', 'bitmap:port', { port: -1 }],
  ['no port: 1.5', 'hash:ip,port', { ...whole, port: 1.5 }],
  ['no IPv4 address', 'hash:ip', {}],
  ['no IPv4 address', 'hash:ip', { ip: V6 }],
  ['no protocol: 256', 'hash:ip,port', { ...whole, protocol: 256 }],
  ['no second IPv4 address', 'hash:ip,port,ip', { ...whole, ip2: V6 }],
  ['no second IPv4 address', 'hash:ip,port,net', { ip: V4, protocol: 6, port: 80 }],
  ['no length of a prefix: 0', 'hash:ip,port,net', { ...whole, prefix2: 0 }],
  ['no length of a prefix: 33', 'hash:ip,port,net', { ...whole, prefix2: 33 }],
]

it.each(wrong)('says why an entry cannot be in a set: %s (%s)', (why, type, entry) => {
  expect(whyNotEntry(setOf('s', type), entry)).toBe(why)
})
