import { describe, expect, it } from 'vitest'
import { parseIp } from '../../../../src/base/ip.ts'
import {
  decodeDestination,
  decodeInfo,
  decodeServer,
  decodeTimeouts,
} from '../../../../src/kernel/ipvs/messages.ts'
import { IPVS_CMD_NEW_DEST, IPVS_CMD_NEW_SERVICE } from '../../../../src/kernel/ipvs/state.ts'
import { viewOf } from '../../../../src/netlink/attribute.ts'
import { readMessages } from '../../../../src/netlink/message.ts'
import { attribute, datagram, message, u16, u32 } from '../../../support/scripted-transport.ts'

/** Bytes as the kernel lays them out (ip_vs_genl_fill_service, ip_vs_genl_fill_dest), put together by hand. */
const IP = '\x0a\x60\0\x01'
const UNION = IP + '\0'.repeat(12)
const IP6 = parseIp('fd00:96::1') ?? ''
const PORT = attribute(4, '\x01\xbb')
const HASHED = 0x02
const SETTINGS = [
  attribute(6, 'rr\0'),
  attribute(7, u32(HASHED), u32(0xffff_ffff)),
  attribute(8, u32(0)),
].join('')
const MASK = attribute(9, '\xff\xff\xff\xff')

const reply = (command: number, ...payload: readonly string[]) => {
  const bytes = datagram(
    message({ type: 0x1c, payload: `${String.fromCharCode(command)}\x01\0\0${payload.join('')}` }),
  )
  const view = viewOf(bytes)
  const [first] = readMessages(view)
  if (first === undefined) throw new Error('no message')
  return [view, first] as const
}
const service = (...attributes: readonly string[]) =>
  decodeServer(...reply(IPVS_CMD_NEW_SERVICE, attribute(1, ...attributes)))
const destination = (...attributes: readonly string[]) =>
  decodeDestination(...reply(IPVS_CMD_NEW_DEST, attribute(2, ...attributes)))

const V4 = attribute(1, u16(2))
const V6 = attribute(1, u16(10))
const TCP = attribute(2, u16(6))
describe('a virtual server', () => {
  it('of a mark is skipped', () => {
    expect(service(V6, attribute(5, u32(7)), SETTINGS, MASK)).toBeUndefined()
  })

  it('of a protocol or family that nobody knows is left out', () => {
    const ah = attribute(2, u16(51))
    expect(service(V4, ah, attribute(3, UNION), PORT, SETTINGS, MASK)).toBeUndefined()
    expect(service(attribute(1, u16(1)), TCP, attribute(3, UNION), PORT, SETTINGS, MASK)).toBeUndefined()
  })

  it.each([
    ['its address', V4 + TCP + PORT + SETTINGS + MASK],
    ['its protocol', V4 + attribute(3, UNION) + PORT + SETTINGS + MASK],
    ['its scheduler', V4 + TCP + attribute(3, UNION) + PORT + MASK],
    ['its settings', V4 + TCP + attribute(3, UNION) + PORT + attribute(6, 'rr\0') + MASK],
    ['its netmask', V4 + TCP + attribute(3, UNION) + PORT + SETTINGS],
  ])('without %s is EBADMSG', (_, attributes) => {
    expect(() => service(attributes)).toThrow('EBADMSG')
  })

  it('whose address has not 16 bytes is EBADMSG', () => {
    expect(() => service(V4, TCP, attribute(3, IP), PORT, SETTINGS, MASK)).toThrow('4 bytes instead of 16')
  })
})

describe('a real server', () => {
  const REST = [
    attribute(2, '\x1f\x90'),
    attribute(3, u32(0x0100)),
    attribute(4, u32(5)),
    attribute(7, u32(1)),
    attribute(8, u32(2)),
    attribute(9, u32(3)),
  ].join('')

  it('of a family that nobody knows is left out', () => {
    expect(destination(attribute(1, UNION), REST, attribute(11, u16(1)))).toBeUndefined()
  })

  it('without its address or settings is EBADMSG', () => {
    expect(() => destination(REST)).toThrow('EBADMSG')
    expect(() => destination(attribute(1, UNION))).toThrow('EBADMSG')
  })

  it('of the other family is read as that, by whatever was asked for', () => {
    expect(destination(attribute(1, IP6), REST, attribute(11, u16(10)))?.destination.ip).toBe(IP6)
  })
})

describe('settings', () => {
  it('are timeouts, 0 where the kernel lacks a protocol', () => {
    expect(decodeTimeouts(...reply(12, attribute(4, u32(900)), attribute(5, u32(120))))).toEqual({
      tcpS: 900,
      tcpFinS: 120,
      udpS: 0,
    })
  })

  it('are the version and the size of the table', () => {
    const answer = reply(14, attribute(1, u32(0x010201)), attribute(2, u32(4096)))
    expect(decodeInfo(...answer)).toEqual({ version: '1.2.1', connectionTableSize: 4096 })
    expect(() => decodeInfo(...reply(14))).toThrow('EBADMSG')
  })
})
