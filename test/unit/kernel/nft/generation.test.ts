import { describe, expect, it } from 'vitest'
import { generationReader } from '../../../../src/kernel/nft/dump.ts'
import { Connection } from '../../../../src/netlink/connection.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import {
  attribute,
  be32,
  datagram,
  errorMessage,
  message,
  ScriptedTransport,
  sequenceOf,
} from '../../../support/scripted-transport.ts'

const ID = 1
const PROCESS_NAME = 2

function start(payload: () => string) {
  const transport = new ScriptedTransport(sent => {
    const sequence = sequenceOf(sent)
    return [datagram(message({ type: 0x0a0f, sequence, payload: `\0\0\0\0${payload()}` }))]
  })
  return { transport, read: generationReader(new Connection({ transport, clock: new FakeClock() })) }
}

describe('a reader of the generation', () => {
  it('reads each generation, also one beyond 31 bits', () => {
    let generation = 7
    const { read } = start(() => attribute(PROCESS_NAME, 'nft\0') + attribute(ID, be32(generation)))
    expect(read()).toBe(7)
    generation = 0xfffffffe
    expect(read()).toBe(0xfffffffe)
  })

  it('sends the same datagram each time, under another sequence number', () => {
    const { read, transport } = start(() => attribute(ID, be32(7)))
    read()
    read()
    const [first = new Uint8Array(), second = new Uint8Array()] = transport.sent
    expect(sequenceOf(first)).not.toBe(sequenceOf(second))
    expect([...first.slice(0, 8), ...first.slice(12)]).toEqual([...second.slice(0, 8), ...second.slice(12)])
  })

  it('rejects an answer without the generation, whatever it read before', () => {
    const answers = [attribute(ID, be32(8)), attribute(PROCESS_NAME, 'nft\0'), '']
    const { read } = start(() => answers.shift() ?? '')
    expect(read()).toBe(8)
    expect(read).toThrow(/a message without its id/)
    expect(read).toThrow(/a message without its id/)
  })

  it('throws an error for an empty answer, whatever it read before', () => {
    const transport = new ScriptedTransport(sent => {
      const sequence = sequenceOf(sent)
      if (transport.sent.length > 1) return [datagram(errorMessage(sequence, 0))]
      const payload = `\0\0\0\0${attribute(ID, be32(9))}`
      return [datagram(message({ type: 0x0a0f, sequence, payload }))]
    })
    const read = generationReader(new Connection({ transport, clock: new FakeClock() }))
    expect(read()).toBe(9)
    expect(read).toThrow('read nf_tables generation: EPROTO (Protocol error): an empty answer')
  })
})
