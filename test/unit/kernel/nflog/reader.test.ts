import { expect, it } from 'vitest'
import { parseIp } from '../../../../src/base/ip.ts'
import { u16be, zeros } from '../../../../src/base/octets.ts'
import { NFULA_PAYLOAD, NFULA_PREFIX, NFULA_SEQ } from '../../../../src/kernel/nflog/constants.ts'
import { decodeLogged } from '../../../../src/kernel/nflog/reader.ts'
import { octets, string, u32be, viewOf } from '../../../../src/netlink/attribute.ts'
import { encodeMessage, readMessages, writeNfGenMsg } from '../../../../src/netlink/message.ts'
import { attributeSet, writeAttributes } from '../../../../src/netlink/schema.ts'

const PACKET = attributeSet({
  payload: [NFULA_PAYLOAD, octets],
  prefix: [NFULA_PREFIX, string],
  sequence: [NFULA_SEQ, u32be],
})
const IPV4 = `\x45${zeros(8)}\x06${zeros(2)}${parseIp('192.0.2.1')}${parseIp('10.96.0.1')}`

function decoded(type: number, payload: string) {
  const bytes = encodeMessage({ type, flags: 0, sequence: 0 }, out => {
    writeNfGenMsg(out.out, { family: 2, resourceId: 7 })
    writeAttributes(out, PACKET, { payload, prefix: 'kprobe refuse', sequence: 4 })
  })
  const view = viewOf(bytes)
  const [message] = readMessages(view)
  if (message === undefined) throw new Error('no message')
  return decodeLogged(view, message)
}

it('reads addresses, ports, prefix and sequence number of a logged packet', () => {
  expect(decoded(4 << 8, IPV4 + u16be(40_000) + u16be(80))).toEqual({
    prefix: 'kprobe refuse',
    head: {
      protocol: 6,
      source: parseIp('192.0.2.1'),
      destination: parseIp('10.96.0.1'),
      ports: { source: 40_000, destination: 80 },
    },
    inputInterface: undefined,
    sequence: 4,
  })
})

it('skips packets that are not IP, and other messages', () => {
  expect(decoded(4 << 8, 'no packet at all')).toBeUndefined()
  expect(decoded((4 << 8) | 1, IPV4)).toBeUndefined()
})
