import fc from 'fast-check'
import { expect, it } from 'vitest'
import { operationBytesMax, writeOperation } from '../../../../src/kernel/ipvs/messages.ts'
import * as ipvs from '../../../../src/kernel/ipvs/state.ts'
import { COMMAND, IPVS_GENL_VERSION, type IpvsOperation } from '../../../../src/kernel/ipvs/state.ts'
import { writeGenlMsgHdr } from '../../../../src/netlink/genetlink.ts'
import { Batch } from '../../../../src/netlink/message.ts'
import { type ValuesOf, writeAttributes } from '../../../../src/netlink/schema.ts'
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
      fc.string({ minLength: 1, maxLength: 20 }).filter(text => !text.includes('\0')),
      fc.constantFrom('rr', 'wlc', 'lblcr', 'mh'),
    ),
    flags: fc.integer({ min: 0, max: 0x3f }),
    timeoutS: fc.integer({ min: 0, max: 86_400 }),
    netmask: fc.integer({ min: 0, max: 0xffff_ffff }),
  }),
})

const deletions: fc.Arbitrary<IpvsOperation> = fc
  .tuple(destinations, fc.boolean())
  .map(([{ server, group, ...rest }, isServer]) =>
    isServer || !('destination' in rest)
      ? { verb: 'delete-server', group, server }
      : { verb: 'delete-destination', group, server, destination: rest.destination },
  )

const operations = fc.oneof(destinations, servers, deletions)

const families = fc.integer({ min: 16, max: 0xffff })

it('writes virtual servers and real servers as the table does from values, within their bounds', () => {
  fc.assert(
    fc.property(fc.array(operations, { minLength: 1, maxLength: 40 }), families, (list, family) => {
      expect(written(list, family, writeOperation)).toEqual(written(list, family, writeByTable))
    }),
    { numRuns: runs(300) },
  )
})

const PROTOCOLS = { TCP: 6, UDP: 17, SCTP: 132 } as const
const familyOf = (ip: string) => (ip.length === 4 ? 2 : 10)

function valuesOf(operation: IpvsOperation): ValuesOf<typeof COMMAND> {
  const { protocol, ip, port } = operation.server
  const service = { family: familyOf(ip), protocol: PROTOCOLS[protocol], address: ip, port }
  if (operation.verb === 'delete-server') return { service }
  if (operation.verb === 'set-server') {
    const { scheduler, flags, timeoutS, netmask } = operation.server
    const mask = Buffer.alloc(4)
    if (ip.length === 4) mask.writeUInt32BE(netmask)
    else mask.writeUInt32LE(netmask)
    return { service: { ...service, scheduler, flags, timeoutS, netmask: mask.toString('latin1') } }
  }
  const { ip: address, port: to, forwarding, weight } = operation.destination
  const destination = { family: familyOf(address), address, port: to }
  if (operation.verb === 'delete-destination') return { service, destination }
  return {
    service,
    destination: { ...destination, forwarding, weight, connectionsMax: 0, connectionsLow: 0 },
  }
}

function commandOf(operation: IpvsOperation): number {
  if (operation.verb === 'delete-server') return ipvs.IPVS_CMD_DEL_SERVICE
  if (operation.verb === 'delete-destination') return ipvs.IPVS_CMD_DEL_DEST
  const isServer = operation.verb === 'set-server'
  if (operation.isNew) return isServer ? ipvs.IPVS_CMD_NEW_SERVICE : ipvs.IPVS_CMD_NEW_DEST
  return isServer ? ipvs.IPVS_CMD_SET_SERVICE : ipvs.IPVS_CMD_SET_DEST
}

function writeByTable(batch: Batch<IpvsOperation>, operation: IpvsOperation, family: number): void {
  batch.open(family)
  writeGenlMsgHdr(batch.out.out, { command: commandOf(operation), version: IPVS_GENL_VERSION })
  writeAttributes(batch.out, COMMAND, valuesOf(operation))
  batch.close(operation)
}

/** Into a buffer that has to grow, and has been used before. */
function written(list: readonly IpvsOperation[], family: number, write: typeof writeOperation): Uint8Array {
  const batch = new Batch<IpvsOperation>(1)
  batch.out.out.bytes.fill(0xff)
  for (const operation of list) write(batch, operation, family)
  for (const [i, operation] of list.entries()) {
    const { start = 0, end = 0 } = batch.at(1 + i) ?? {}
    expect(end - start).toBeLessThanOrEqual(operationBytesMax(operation))
  }
  return batch.bytes.slice()
}
