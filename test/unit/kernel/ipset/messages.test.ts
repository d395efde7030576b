import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { type Clock, systemClock } from '../../../../src/base/clock.ts'
import { IpsetClient } from '../../../../src/kernel/ipset/client.ts'
import { ENTRY_BYTES_MAX, entryWriter, type NumberedEntry } from '../../../../src/kernel/ipset/messages.ts'
import { ENTRY, entryKey, type Ipset } from '../../../../src/kernel/ipset/state.ts'
import { AttributeWriter, ByteWriter } from '../../../../src/netlink/attribute.ts'
import { NetlinkError } from '../../../../src/netlink/errors.ts'
import { writeAttributes } from '../../../../src/netlink/schema.ts'
import {
  add,
  anyEntry,
  anyFilledSet,
  anySet,
  manyEntries,
  setOf,
} from '../../../support/fake-ipset/arbitraries.ts'
import { FakeIpsetKernel } from '../../../support/fake-ipset/kernel.ts'
import { FaultyTransport, type TransportFaults } from '../../../support/faulty-transport.ts'
import { runs } from '../../../support/runs.ts'

/** Waits a fraction of the time for what does not come. */
const hasty: Clock = {
  ...systemClock,
  nowMs: () => systemClock.nowMs() * 75,
  after: (ms, run) => systemClock.after(ms / 75, run),
}

function connect(faults: TransportFaults) {
  const kernel = new FakeIpsetKernel()
  const transport = new FaultyTransport(kernel.open(), faults)
  return { kernel, client: new IpsetClient({ transport, clock: hasty }) }
}

describe('a list', () => {
  it('comes back as it was written, in datagrams of any size', async () => {
    await fc.assert(
      fc.asyncProperty(
        anyFilledSet('S', 300),
        fc.integer({ min: 100, max: 9000 }),
        async (filled, dumpBytesMax) => {
          const kernel = new FakeIpsetKernel()
          const client = new IpsetClient({ transport: kernel.open({ dumpBytesMax }), clock: systemClock })
          await client.commit([{ verb: 'create', set: filled.set }, add(filled)])
          const [listing] = await client.list(['S'])
          expect(listing?.entries.map(entry => entryKey('', entry))).toEqual(
            filled.entries.map(entry => entryKey('', entry)),
          )
        },
      ),
      { numRuns: runs(60) },
    )
  })

  const set = setOf('S', 'hash:ip,port,net')
  const entry = { ip: '\x0a\0\0\x01', protocol: 6, port: 80, ip2: '\x0a\0\0\0', prefix2: 8 }
  const many = Array.from({ length: 200 }, (_, port) => ({ ...entry, port }))

  /** What becomes of bytes on their way: a list, or a NetlinkError, and never anything else. */
  async function survives(change: (datagram: Buffer) => Uint8Array): Promise<'read' | 'refused'> {
    const faults: TransportFaults = {}
    const { client } = connect(faults)
    await client.commit([{ verb: 'create', set }, add({ set, entries: many })])
    faults.onReceive = datagram => change(Buffer.from(datagram))
    try {
      await client.list(['S'])
      await client.headers()
      return 'read'
    } catch (error) {
      expect(error).toBeInstanceOf(NetlinkError)
      return 'refused'
    }
  }

  it('that is torn anywhere is refused', async () => {
    await fc.assert(
      fc.asyncProperty(fc.double({ min: 0.001, max: 0.999, noNaN: true }), async share => {
        const outcome = await survives(bytes => bytes.subarray(0, Math.floor(bytes.length * share)))
        expect(outcome).toBe('refused')
      }),
      { numRuns: runs(40) },
    )
  })

  it('with other bits is read or refused, and hangs nobody', async () => {
    const flips = fc.array(fc.tuple(fc.nat(2000), fc.nat(255)), { minLength: 1, maxLength: 20 })
    const outcomes = new Set<string>()
    await fc.assert(
      fc.asyncProperty(flips, async places => {
        const change = (bytes: Buffer): Buffer => {
          // The headers of messages are the connection's matter, which has a test like this one.
          for (const [at, value] of places) {
            const place = 20 + (at % Math.max(1, bytes.length - 20))
            if (place < bytes.length) bytes[place] = value
          }
          return bytes
        }
        outcomes.add(await survives(change))
      }),
      { numRuns: runs(80) },
    )
    expect(outcomes.has('refused')).toBe(true)
  })
})

/** Behind the errno, two headers, the protocol and the name `S`. */
const LINE_AT = 56

it.each<[what: string, change: (copy: Buffer) => Uint8Array]>([
  ['is cut off', copy => withLength(copy.subarray(0, LINE_AT))],
  ['has no end', copy => copy.fill(0xff, LINE_AT, LINE_AT + 2)],
  ['has no line', copy => copy.fill(0x3f, LINE_AT + 2, LINE_AT + 4)],
  ['has the line 0', copy => copy.fill(0, LINE_AT + 4, LINE_AT + 8)],
  ['has a line that was not sent', copy => copy.fill(0xff, LINE_AT + 4, LINE_AT + 8)],
])('a refusal whose copy %s is one of all entries of the message', async (_, change) => {
  const faults: TransportFaults = {}
  const { client } = connect(faults)
  const set = setOf('S', 'hash:ip,port')
  await client.commit([{ verb: 'create', set }])
  let garbled = 0
  faults.onReceive = datagram => {
    const bytes = Buffer.from(datagram)
    // Shorter ones carry no copy.
    if (bytes.readUInt16LE(4) !== 2 || bytes.length <= 60) return bytes
    garbled++
    return change(bytes)
  }
  const entries = manyEntries(40).map((entry, i) => (i === 17 ? { ...entry, protocol: 0 } : entry))
  const groups = entries.map((_each, i) => `ns/${i}`)
  const { unknown, failures } = await client.commit([add({ set, entries }, groups)])
  expect(unknown).toBeUndefined()
  expect(garbled).toBeGreaterThan(0)
  expect(failures.map(each => each.entries.map(({ group }) => group))).toEqual([groups])
})

function withLength(message: Buffer): Buffer {
  message.writeUInt32LE(message.length, 0)
  return message
}

describe('a written entry', () => {
  const written = (write: (out: AttributeWriter) => void): string => {
    // Full of something else, so that what is not written shows.
    const out = new AttributeWriter(new ByteWriter(256))
    out.out.bytes.fill(0xee)
    write(out)
    return Buffer.from(out.out.written()).toString('hex')
  }

  const byTable = (out: AttributeWriter, { type }: Ipset, { entry, line }: NumberedEntry): void => {
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

  it('is what the table writes of the fields that the type has, within its bound', () => {
    const anyLine = fc.integer({ min: 1, max: 0xffff_ffff })
    const anyPlaced = anySet('s').chain(set =>
      // Fields that the type has no use for are not written.
      fc.record({
        set: fc.constant(set),
        entry: anyEntry(set),
        extra: anyEntry(setOf('x', 'hash:ip,port,net')),
      }),
    )
    fc.assert(
      fc.property(anyPlaced, anyLine, ({ set, entry, extra }, line) => {
        const wanted = written(out => byTable(out, set, { entry, line }))
        expect(written(out => entryWriter(set)(out, { entry: { ...extra, ...entry }, line }))).toBe(wanted)
        expect(wanted.length / 2).toBeLessThanOrEqual(ENTRY_BYTES_MAX)
      }),
      { numRuns: runs(500) },
    )
  })
})
