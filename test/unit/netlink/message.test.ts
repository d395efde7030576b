import { describe, expect, it } from 'vitest'
import { ByteWriter, viewOf } from '../../../src/netlink/attribute.ts'
import { NetlinkError } from '../../../src/netlink/errors.ts'
import {
  addFlags,
  closeMessage,
  openMessage,
  readDone,
  readError,
  readMessages,
  readNfGenMsg,
  setSequence,
  writeNfGenMsg,
} from '../../../src/netlink/message.ts'
import {
  attribute,
  datagram,
  doneMessage,
  errorMessage,
  firstMessage,
  message,
  u32,
} from '../../support/scripted-transport.ts'

describe('a message', () => {
  it('gets another sequence number in place, also in the middle of a buffer', () => {
    const buffer = new Uint8Array(64)
    const sent = buffer.subarray(3, 23)
    sent.set(datagram(message({ type: 0x0a10, flags: 1, sequence: 5, payload: u32(7) })))
    expect(setSequence(sent, 0xfffffff0)).toBe(sent)
    expect(sent).toEqual(datagram(message({ type: 0x0a10, flags: 1, sequence: 0xfffffff0, payload: u32(7) })))
  })

  it('is written with its length, and read back with its borders', () => {
    const out = new ByteWriter()
    const start = openMessage(out, { type: 0x0a0c, flags: 0x401, sequence: 0xfffffff0 })
    writeNfGenMsg(out, { family: 10, resourceId: 0x0a0b })
    addFlags(out, start, 4)
    closeMessage(out, start)
    const bytes = out.written()
    expect(bytes).toEqual(
      datagram(message({ type: 0x0a0c, flags: 0x405, sequence: 0xfffffff0, payload: '\x0a\0\x0a\x0b' })),
    )
    const [, read] = firstMessage(bytes)
    expect(read).toEqual({ type: 0x0a0c, flags: 0x405, sequence: 0xfffffff0, portId: 0, start: 16, end: 20 })
    expect(readNfGenMsg(viewOf(bytes), read)).toEqual({ family: 10, resourceId: 0x0a0b })
  })

  it('may be followed by others at aligned positions', () => {
    const bytes = datagram(message({ type: 1, payload: 'x' }), message({ type: 2, portId: 9 }))
    expect(readMessages(viewOf(bytes)).map(({ type, start, end }) => [type, start, end])).toEqual([
      [1, 16, 17],
      [2, 36, 36],
    ])
  })

  it.each([
    ['with a length of zero', u32(0) + message({ type: 1 }).slice(4)],
    ['longer than the datagram', u32(17) + message({ type: 1 }).slice(4)],
    ['cut off in its header', message({ type: 1 }).slice(0, 15)],
  ])('is refused when %s', (_, bytes) => {
    expect(() => readMessages(viewOf(datagram(bytes)))).toThrow(NetlinkError)
  })

  it('is refused without its nfgenmsg', () => {
    const bytes = datagram(message({ type: 1, payload: 'abc' }))
    expect(() => readNfGenMsg(...firstMessage(bytes))).toThrow(NetlinkError)
  })
})

describe('an error', () => {
  const read = (bytes: Uint8Array) => readError(...firstMessage(bytes))
  const offset = attribute(2, u32(56))
  const text = attribute(1, 'no way\0')

  it.each([17, 0])('is a number alone without extended acknowledgements: %i', errno => {
    const alone = { errno, extendedAck: undefined, offset: undefined }
    expect(read(datagram(errorMessage(5, errno)))).toEqual(alone)
  })

  it('carries the offset and the words of the kernel behind the header it is about', () => {
    expect(read(datagram(errorMessage(5, 2, text + offset)))).toEqual({
      errno: 2,
      extendedAck: 'no way',
      offset: 56,
    })
  })

  it('carries them behind the whole message when that is repeated', () => {
    const about = message({ type: 9, payload: 'hello' })
    const bytes = datagram(message({ type: 2, flags: 0x200, payload: u32(-22 >>> 0) + about + offset }))
    expect(read(bytes)).toEqual({ errno: 22, extendedAck: undefined, offset: 56 })
  })

  it('keeps its number when the rest is garbled', () => {
    const { errno, extendedAck } = read(datagram(errorMessage(5, 22, '\x02\0\x02\0')))
    expect(errno).toBe(22)
    expect(extendedAck).toMatch(/unreadable/)
  })

  it.each([
    ['without a number', message({ type: 2, payload: 'ab' })],
    ['with a positive number', message({ type: 2, payload: u32(5) + message({ type: 1 }) })],
    ['without the header it is about', message({ type: 2, payload: u32(-5 >>> 0) })],
  ])('is refused %s', (_, bytes) => {
    expect(() => read(datagram(bytes))).toThrow(NetlinkError)
  })
})

describe('the end of a dump', () => {
  const read = (bytes: string) => readDone(...firstMessage(datagram(bytes)))

  it.each([
    ['an error', doneMessage(1, 4), 4],
    ['none', doneMessage(1), 0],
    ['nothing', message({ type: 3 }), 0],
  ])('may carry %s', (_, done, errno) => {
    expect(read(done).errno).toBe(errno)
  })
})
