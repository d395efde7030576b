import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  decodeDestination,
  decodeInfo,
  decodeServer,
  decodeTimeouts,
  operationBytesMax,
  writeOperation,
} from '../../../../src/kernel/ipvs/messages.ts'
import * as ipvs from '../../../../src/kernel/ipvs/state.ts'
import { COMMAND, IPVS_GENL_VERSION, type IpvsOperation } from '../../../../src/kernel/ipvs/state.ts'
import { writeGenlMsgHdr } from '../../../../src/netlink/genetlink.ts'
import { Batch } from '../../../../src/netlink/message.ts'
import { type ValuesOf, writeAttributes } from '../../../../src/netlink/schema.ts'
import { real } from '../../../support/ipvs-objects.ts'
import { octets } from '../../../support/nft-arbitraries.ts'
import { runs } from '../../../support/runs.ts'
import { attribute, datagram, firstMessage, message, u16, u32 } from '../../../support/scripted-transport.ts'

const address = fc.oneof(octets(4, 4), octets(16, 16))
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

/** Bytes as the kernel lays them out (ip_vs_genl_fill_service, ip_vs_genl_fill_dest), put together by hand. */
const IP = '\x0a\x60\0\x01'
const UNION = attribute(3, IP + '\0'.repeat(12))
const PORT = attribute(4, '\x01\xbb')
const HASHED = 0x02
const SCHEDULER = attribute(6, 'rr\0')
const SETTINGS = SCHEDULER + attribute(7, u32(HASHED), u32(0xffff_ffff)) + attribute(8, u32(0))
const MASK = attribute(9, '\xff\xff\xff\xff')

const reply = (command: number, ...attributes: readonly string[]) => {
  const payload = `${String.fromCharCode(command)}\x01\0\0${attributes.join('')}`
  return firstMessage(datagram(message({ type: 0x1c, payload })))
}
const service = (...attributes: readonly string[]) =>
  decodeServer(...reply(ipvs.IPVS_CMD_NEW_SERVICE, attribute(1, ...attributes)))
const destination = (...attributes: readonly string[]) =>
  decodeDestination(...reply(ipvs.IPVS_CMD_NEW_DEST, attribute(2, ...attributes)))

const V4 = attribute(1, u16(2))
const TCP = attribute(2, u16(6))

describe('a virtual server', () => {
  it.each([
    ['of a mark', [attribute(1, u16(10)), attribute(5, u32(7)), SETTINGS, MASK]],
    ['of a protocol that nobody knows', [V4, attribute(2, u16(51)), UNION, PORT, SETTINGS, MASK]],
    ['of a family that nobody knows', [attribute(1, u16(1)), TCP, UNION, PORT, SETTINGS, MASK]],
  ])('%s is left out', (_, attributes) => {
    expect(service(...attributes)).toBeUndefined()
  })

  it.each([
    ['its address', V4 + TCP + PORT + SETTINGS + MASK],
    ['its protocol', V4 + UNION + PORT + SETTINGS + MASK],
    ['its scheduler', V4 + TCP + UNION + PORT + MASK],
    ['its settings', V4 + TCP + UNION + PORT + SCHEDULER + MASK],
    ['its netmask', V4 + TCP + UNION + PORT + SETTINGS],
  ])('without %s is EBADMSG', (_, attributes) => {
    expect(() => service(attributes)).toThrow('EBADMSG')
  })

  it('whose address has not 16 bytes is EBADMSG', () => {
    expect(() => service(V4, TCP, attribute(3, IP), PORT, SETTINGS, MASK)).toThrow('4 bytes instead of 16')
  })
})

describe('a real server', () => {
  const address = attribute(1, IP + '\0'.repeat(12))
  const numbers = [0x0100, 5, 1, 2, 3].map((value, i) => attribute([3, 4, 7, 8, 9][i] ?? 0, u32(value)))
  const REST = attribute(2, '\x1f\x90') + numbers.join('')

  it('of a family that nobody knows is left out', () => {
    expect(destination(address, REST, attribute(11, u16(1)))).toBeUndefined()
  })

  it('without its address or settings is EBADMSG', () => {
    expect(() => destination(REST)).toThrow('EBADMSG')
    expect(() => destination(address)).toThrow('EBADMSG')
  })

  it('of the other family is read as that, by whatever was asked for', () => {
    const { ip } = real('fd00:96::1', 0)
    expect(destination(attribute(1, ip), REST, attribute(11, u16(10)))?.destination.ip).toBe(ip)
  })
})

it('reads timeouts, 0 where the kernel lacks a protocol, and needs the version and the size of the table', () => {
  const timeouts = reply(12, attribute(4, u32(900)), attribute(5, u32(120)))
  expect(decodeTimeouts(...timeouts)).toEqual({ tcpS: 900, tcpFinS: 120, udpS: 0 })
  const answer = reply(14, attribute(1, u32(0x010201)), attribute(2, u32(4096)))
  expect(decodeInfo(...answer)).toEqual({ version: '1.2.1', connectionTableSize: 4096 })
  expect(() => decodeInfo(...reply(14))).toThrow('EBADMSG')
})
