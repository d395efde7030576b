import { describe, expect, it } from 'vitest'
import { Connection } from '../../../src/netlink/connection.ts'
import { findFamily } from '../../../src/netlink/genetlink.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import {
  attribute,
  datagram,
  errorMessage,
  message,
  ScriptedTransport,
  sequenceOf,
  typeOf,
  u16,
  u32,
} from '../../support/scripted-transport.ts'

type Answer = (sequence: number) => Uint8Array

function ask(answer: Answer) {
  const transport = new ScriptedTransport(sent => [answer(sequenceOf(sent))])
  const connection = new Connection({ transport, clock: new FakeClock() })
  return { transport, find: () => findFamily(connection, 'IPVS') }
}

/** `\1\2\0\0`: CTRL_CMD_NEWFAMILY of version 2. */
const newFamily = (...attributes: readonly string[]): Answer => {
  return sequence =>
    datagram(message({ type: 0x10, sequence, payload: `\x01\x02\0\0${attributes.join('')}` }))
}
const NAME = attribute(2, 'IPVS\0')

describe('a family of generic netlink', () => {
  it('is asked for by its name', () => {
    const { transport, find } = ask(newFamily(NAME, attribute(1, u16(0x1f)), attribute(3, u32(1))))
    expect(find()).toBe(0x1f)
    const [sent = new Uint8Array()] = transport.sent
    expect(typeOf(sent)).toBe(0x10)
    expect(Buffer.from(sent.subarray(16)).toString('latin1')).toBe(`\x03\x01\0\0${NAME}`)
  })

  it('that the kernel lacks is ENOENT', () => {
    const { find } = ask(sequence => datagram(errorMessage(sequence, 2)))
    expect(find).toThrow('find generic netlink family IPVS: ENOENT (No such file or directory)')
  })

  it.each([
    ['has no number', newFamily(NAME)],
    ['is about another', newFamily(attribute(2, 'nl80211\0'), attribute(1, u16(7)))],
    ['is no family', sequence => datagram(message({ type: 0x10, sequence, payload: '\x02\x02\0\0' }))],
  ] satisfies [string, Answer][])('is refused when the answer %s', (_, answer) => {
    expect(ask(answer).find).toThrow('EBADMSG (Bad message): the reply has no family id')
  })

  it('is refused when the answer is cut off', () => {
    const { find } = ask(sequence => datagram(message({ type: 0x10, sequence, payload: '\x01' })))
    expect(find).toThrow('a message without its genlmsghdr')
  })
})
