import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { endText, protocolText, readPacketHead } from '../../../src/base/ip-packet.ts'
import { u16be, zeros } from '../../../src/base/octets.ts'
import { ip } from '../../support/addresses.ts'

const byte = (value: number): string => String.fromCharCode(value)

function ipv4(protocol: number, { words = 5, fragment = 0 } = {}): string {
  const start = byte(0x40 + words) + zeros(5) + u16be(fragment) + byte(64) + byte(protocol) + zeros(2)
  return start + ip('10.0.0.1') + ip('10.96.0.1') + zeros((words - 5) * 4)
}

function ipv6(next: number): string {
  return `\x60${zeros(5)}${byte(next)}\x40${ip('fd00::1')}${ip('fd00:10:96::1')}`
}

const PORTS = u16be(40_000) + u16be(80)

describe('readPacketHead', () => {
  it('reads addresses and ports behind the options of IPv4', () => {
    const head = readPacketHead(ipv4(6, { words: 7 }) + PORTS)
    expect(head).toMatchObject({ protocol: 6, ports: { source: 40_000, destination: 80 } })
    expect(head && [endText(head, 'source'), endText(head, 'destination')]).toEqual([
      '10.0.0.1:40000',
      '10.96.0.1:80',
    ])
  })

  it('takes the transport header from where the kernel says that it is', () => {
    expect(readPacketHead(ipv4(17), PORTS)?.ports?.destination).toBe(80)
    expect(readPacketHead(ipv6(0), PORTS)?.ports).toBeUndefined()
  })

  it('finds no ports in later fragments and in protocols without them', () => {
    expect(readPacketHead(ipv4(6, { fragment: 0x2001 }) + PORTS)?.ports).toBeUndefined()
    const ping = readPacketHead(ipv4(1) + PORTS)
    expect(ping?.ports).toBeUndefined()
    expect(ping && endText(ping, 'source')).toBe('10.0.0.1')
  })

  it('skips the extension headers of IPv6', () => {
    const options = byte(44) + byte(1) + zeros(14)
    const fragment = byte(6) + byte(0) + u16be(1) + zeros(4)
    const head = readPacketHead(ipv6(0) + options + fragment + PORTS)
    expect(head).toMatchObject({ protocol: 6, ports: { destination: 80 } })
    const later = readPacketHead(ipv6(44) + byte(6) + byte(0) + u16be(0x0108) + zeros(4) + PORTS)
    expect(later?.ports).toBeUndefined()
  })

  it('reads any octets without an error', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 100 }), bytes => {
        const head = readPacketHead(String.fromCharCode(...bytes))
        if (head !== undefined) expect([4, 16]).toContain(head.source.length)
      }),
    )
  })
})

it('names protocols', () => {
  expect([6, 58, 47].map(protocolText)).toEqual(['TCP', 'ICMPv6', 'protocol 47'])
})
