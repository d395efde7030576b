import { describe, expect, it } from 'vitest'
import { formatIp } from '../../../../src/base/ip.ts'
import { decodeRecord, isPlain, plainKey } from '../../../../src/kernel/conntrack/record.ts'
import { ByteWriter } from '../../../../src/netlink/attribute.ts'
import { firstMessage } from '../../../support/scripted-transport.ts'
import { appendNew, type Entry, entry } from './flows.ts'

/** An entry as the kernel writes its tuples. */
function messageOf(each: Entry) {
  const out = new ByteWriter(256)
  appendNew(out, each, 1)
  return firstMessage(out.written().slice())
}

describe('the plain reading of an entry', () => {
  it.each(['TCP', 'UDP'] as const)('agrees with the tables for %s over IPv4', protocol => {
    const [view, message] = messageOf(
      entry('203.0.113.250:65535', '240.0.0.1:80', '10.1.2.3:8080', { protocol }),
    )
    expect(isPlain(view, message)).toBe(true)
    const record = decodeRecord(view, message)
    expect(record).toMatchObject({ protocol, clientPort: 65_535, destinationPort: 80, answererPort: 8_080 })
    expect(formatIp(record?.client ?? '')).toBe('203.0.113.250')
    const words = Array.from({ length: 7 }, (_, at) => plainKey(view, message).charCodeAt(at))
    const number = protocol === 'TCP' ? 6 : 17
    expect(words).toEqual([number, 0xf000, 0x0001, 80, 0x0a01, 0x0203, 8_080])
  })

  it('leaves IPv6 to the tables', () => {
    const [view, message] = messageOf(entry('[fd00::9]:4000', '[fd00::1]:53', '[fd00::2]:5353'))
    expect(isPlain(view, message)).toBe(false)
    expect(formatIp(decodeRecord(view, message)?.answerer ?? '')).toBe('fd00::2')
  })

  it('leaves everything to the tables whose headers differ in any octet, or that is cut short', () => {
    const [view, message] = messageOf(entry('203.0.113.250:4000', '192.0.2.1:80', '10.1.2.3:8080'))
    const headers = [4, 8, 12, 20, 28, 32, 40, 48, 56, 60, 64, 72, 80, 84, 92, 100]
    for (const offset of headers.flatMap(at => [at, at + 1, at + 2, at + 3])) {
      const at = message.start + offset
      const octet = view.data.getUint8(at)
      view.data.setUint8(at, octet ^ 0x10)
      expect(isPlain(view, message), `octet ${offset}`).toBe(false)
      view.data.setUint8(at, octet)
    }
    expect(isPlain(view, { ...message, end: message.start + 100 })).toBe(false)
    expect(isPlain(view, message)).toBe(true)
  })
})
