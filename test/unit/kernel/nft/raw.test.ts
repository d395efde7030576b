import { expect, it } from 'vitest'
import { readObjects, readRaw } from '../../../../src/kernel/nft/raw.ts'
import { Connection } from '../../../../src/netlink/connection.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import {
  attribute,
  be32,
  datagram,
  doneMessage,
  errorMessage,
  message,
  ScriptedTransport,
  sequenceOf,
  typeOf,
} from '../../../support/scripted-transport.ts'

const NEWGEN = 0x0a0f
const GETGEN = 0x0a10
const GETSET = 0x0a0a
const NEWSET = 0x0a09
const GETSETELEM = 0x0a0d
const ENOENT = 2

it('reads the rules again when another program deletes a set whose elements are next', async () => {
  const clock = new FakeClock()
  let sets = ['gone', 'stays']
  const transport = new ScriptedTransport(sent => {
    const sequence = sequenceOf(sent)
    if (typeOf(sent) === GETGEN)
      return [datagram(message({ type: NEWGEN, sequence, payload: `\0\0\0\0${attribute(1, be32(1))}` }))]
    if (typeOf(sent) === GETSETELEM && Buffer.from(sent).includes('gone')) {
      sets = ['stays']
      return [datagram(errorMessage(sequence, ENOENT))]
    }
    const listed = typeOf(sent) === GETSET ? sets : []
    const messages = listed.map(name => {
      const payload = `\x02\0\0\0${attribute(1, 't\0')}${attribute(2, `${name}\0`)}`
      return message({ type: NEWSET, flags: 2, sequence, payload })
    })
    return [datagram(...messages, doneMessage(sequence))]
  })
  const reading = readRaw({ connection: new Connection({ transport, clock }), clock, bytesMax: 10_000 })
  await clock.advance(1_000)
  const { bytes, unsettled } = await reading
  expect(readObjects(bytes).map(({ words }) => words)).toEqual(['set ip t stays'])
  expect(unsettled).toBe(false)
})
