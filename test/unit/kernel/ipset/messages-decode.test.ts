import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { systemClock } from '../../../../src/base/clock.ts'
import { IpsetClient } from '../../../../src/kernel/ipset/client.ts'
import { entryKey } from '../../../../src/kernel/ipset/state.ts'
import { add, anyFilledSet, manyEntries, setOf } from '../../../support/fake-ipset/arbitraries.ts'
import { FakeIpsetKernel } from '../../../support/fake-ipset/kernel.ts'
import type { SocketFaults } from '../../../support/fake-kernel/socket.ts'
import { runs } from '../../../support/runs.ts'

function connect(faults: SocketFaults) {
  const kernel = new FakeIpsetKernel()
  const transport = kernel.open({ faults })
  return { kernel, client: new IpsetClient({ transport, clock: systemClock, timeoutMs: 200 }) }
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
})

/** Behind the errno, two headers, the protocol and the name `S`. */
const LINE_AT = 56

it.each<[what: string, change: (copy: Buffer) => Uint8Array]>([
  ['is cut off', copy => withLength(copy.subarray(0, LINE_AT))],
  ['has no end', copy => copy.fill(0xff, LINE_AT, LINE_AT + 2)],
  ['has no line', copy => copy.fill(0x3f, LINE_AT + 2, LINE_AT + 4)],
  ['has the line 0', copy => copy.fill(0, LINE_AT + 4, LINE_AT + 8)],
  ['has a line that was not sent', copy => copy.fill(0xff, LINE_AT + 4, LINE_AT + 8)],
])('a refusal whose copy %s costs no other entry its place', async (_, change) => {
  const faults: SocketFaults = {}
  const { kernel, client } = connect(faults)
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
  expect(failures.map(each => each.entries.map(({ group }) => group))).toEqual([['ns/17']])
  expect(kernel.set('S')?.elements.size).toBe(39)
})

function withLength(message: Buffer): Buffer {
  message.writeUInt32LE(message.length, 0)
  return message
}
