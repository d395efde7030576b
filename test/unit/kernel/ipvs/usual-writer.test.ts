import fc from 'fast-check'
import { expect, it } from 'vitest'
import { firstStep, writeStep, writeStepByTable } from '../../../../src/kernel/ipvs/messages.ts'
import type { IpvsOperation } from '../../../../src/kernel/ipvs/operation.ts'
import { AttributeWriter } from '../../../../src/netlink/attribute.ts'
import { ByteWriter } from '../../../../src/netlink/bytes.ts'
import { runs } from '../../../support/runs.ts'

const octets = (length: number) =>
  fc
    .array(fc.integer({ min: 0, max: 255 }), { minLength: length, maxLength: length })
    .map(codes => String.fromCharCode(...codes))
const address = fc.oneof(octets(4), octets(16))
const port = fc.integer({ min: 0, max: 65_535 })

const place = {
  protocol: fc.constantFrom('TCP' as const, 'UDP' as const, 'SCTP' as const),
  ip: address,
  port,
}

const destinations: fc.Arbitrary<IpvsOperation> = fc.record({
  verb: fc.constant('set-destination' as const),
  group: fc.constant(''),
  isNew: fc.boolean(),
  server: fc.record(place),
  destination: fc.record({
    ip: address,
    port,
    weight: fc.integer({ min: 0, max: 65_535 }),
    forwarding: fc.integer({ min: 0, max: 7 }),
  }),
})

const servers: fc.Arbitrary<IpvsOperation> = fc.record({
  verb: fc.constant('set-server' as const),
  group: fc.constant(''),
  isNew: fc.boolean(),
  server: fc.record({
    ...place,
    scheduler: fc.oneof(
      fc.string({ minLength: 1, maxLength: 20 }),
      fc.constantFrom('rr', 'wlc', 'lblcr', 'mh'),
    ),
    flags: fc.integer({ min: 0, max: 0x3f }),
    timeoutS: fc.integer({ min: 0, max: 86_400 }),
    netmask: fc.integer({ min: 0, max: 0xffff_ffff }),
  }),
})

const operations = fc.oneof(destinations, servers)

const heads = fc.record({
  family: fc.integer({ min: 16, max: 0xffff }),
  flags: fc.constantFrom(0, 4),
  sequence: fc.integer({ min: 0, max: 0xffff_ffff }),
})

it('writes virtual servers and real servers as the tables do, one behind the other', () => {
  fc.assert(
    fc.property(fc.array(fc.tuple(operations, heads), { minLength: 1, maxLength: 40 }), list => {
      const [straight, table] = [write, writeByTable].map(run => run(list))
      expect(straight).toEqual(table)
    }),
    { numRuns: runs(300) },
  )
})

type Messages = readonly (readonly [IpvsOperation, Parameters<typeof writeStep>[2]])[]

const write = (messages: Messages) => written(messages, writeStep)
const writeByTable = (messages: Messages) => written(messages, writeStepByTable)

/** Into a buffer that has to grow, and has been used before. */
function written(messages: Messages, writer: typeof writeStep): Uint8Array {
  const out = new ByteWriter(64)
  out.bytes.fill(0xff)
  const attributes = new AttributeWriter(out)
  for (const [operation, head] of messages) writer(attributes, firstStep(operation), head)
  return out.written().slice()
}
