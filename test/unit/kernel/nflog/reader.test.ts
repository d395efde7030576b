import { expect, it } from 'vitest'
import { parseIp } from '../../../../src/base/ip.ts'
import { u16be, zeros } from '../../../../src/base/octets.ts'
import { decodeLogged, readLog } from '../../../../src/kernel/nflog/reader.ts'
import { octets, string, u32be } from '../../../../src/netlink/codecs.ts'
import { encodeMessage, writeNfGenMsg } from '../../../../src/netlink/message.ts'
import { attributeSet, writeAttributes } from '../../../../src/netlink/schema.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import {
  datagram,
  errorMessage,
  firstMessage,
  ScriptedTransport,
  sequenceOf,
} from '../../../support/scripted-transport.ts'

const PACKET = attributeSet({
  payload: [9, octets],
  prefix: [10, string],
  sequence: [12, u32be],
})
const IPV4 = `\x45${zeros(8)}\x06${zeros(2)}${parseIp('192.0.2.1')}${parseIp('10.96.0.1')}`

function bytesOf(type: number, payload: string, sequence = 4): Uint8Array {
  return encodeMessage({ type, flags: 0, sequence: 0 }, out => {
    writeNfGenMsg(out.out, { family: 2, resourceId: 7 })
    writeAttributes(out, PACKET, { payload, prefix: 'kprobe refuse', sequence })
  }).slice()
}

function decoded(type: number, payload: string) {
  return decodeLogged(...firstMessage(bytesOf(type, payload)))
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

it('numbers packets that are not IP, too, and skips other messages', () => {
  expect(decoded(4 << 8, 'no packet at all')).toMatchObject({ head: undefined, sequence: 4 })
  expect(decoded((4 << 8) | 1, IPV4)).toBeUndefined()
})

it('counts as lost only what the kernel did not deliver, and takes what waits at the end', () => {
  const transport = new ScriptedTransport(sent => [datagram(errorMessage(sequenceOf(sent), 0))])
  let [taken, lost] = [0, 0]
  const stop = readLog({
    transport,
    clock: new FakeClock(),
    group: 7,
    onPacket: () => taken++,
    onLost: missing => {
      lost += missing
    },
  })
  transport.arrive(bytesOf(4 << 8, IPV4, 1), bytesOf(4 << 8, 'no packet at all', 2), bytesOf(4 << 8, IPV4, 3))
  expect([taken, lost]).toEqual([3, 0])
  transport.arrive(bytesOf(4 << 8, IPV4, 6))
  expect([taken, lost]).toEqual([4, 2])
  transport.arriveUnseen(bytesOf(4 << 8, IPV4, 7), bytesOf(4 << 8, IPV4, 8))
  stop()
  expect([taken, lost, transport.watched]).toEqual([6, 2, false])
})
