import { describe, expect, it } from 'vitest'
import { formatIp, type Ip } from '../../../../src/base/ip.ts'
import { DummyClient } from '../../../../src/kernel/link/dummy.ts'
import { OutcomeUnknownError } from '../../../../src/netlink/errors.ts'
import { SystemError } from '../../../../src/netlink/transport.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { FakeLinks } from '../../../support/fake-link/kernel.ts'
import { FaultyTransport, type TransportFaults } from '../../../support/faulty-transport.ts'
import {
  attribute,
  datagram,
  errorMessage,
  message,
  nest,
  ScriptedTransport,
  sequenceOf,
  typeOf,
  u32,
} from '../../../support/scripted-transport.ts'

const NAME = 'kube-ipvs0'
const V4 = '\x0a\x60\x00\x01'
const V6 = `\xfd\x00${'\0'.repeat(13)}\x01`

function manyIps(count: number): readonly Ip[] {
  return Array.from({ length: count }, (_, i) => String.fromCharCode(10, 97, i >> 8, i & 255))
}

function start(faults: TransportFaults = {}) {
  const kernel = new FakeLinks()
  const clock = new FakeClock()
  const client = new DummyClient({ transport: new FaultyTransport(kernel.open(), faults), clock })
  return { kernel, clock, client }
}

describe('what is sent', () => {
  const GETLINK = 18
  const transport = new ScriptedTransport(sent => {
    const sequence = sequenceOf(sent)
    if (typeOf(sent) !== GETLINK) return [datagram(errorMessage(sequence, 0))]
    const info = nest(18, attribute(1, 'dummy\0'))
    return [datagram(message({ type: 16, sequence, payload: u32(0) + u32(7) + u32(0) + u32(0) + info }))]
  })
  const lastSent = () => Buffer.from(transport.sent.at(-1) ?? [])

  it('adds and removes addresses, of which the last asks for an acknowledgement', async () => {
    const client = new DummyClient({ transport, clock: new FakeClock() })
    await client.commit(NAME, { add: [V4, V6], remove: [V4, V6] })
    const first = sequenceOf(lastSent())
    const changes = [
      { type: 20, flags: 0x601, payload: `\x02\x20\0\0${u32(7)}${attribute(1, V4)}${attribute(2, V4)}` },
      { type: 20, flags: 0x601, payload: `\x0a\x80\x02\0${u32(7)}${attribute(2, V6)}` },
      { type: 21, flags: 0x001, payload: `\x02\x20\0\0${u32(7)}${attribute(2, V4)}` },
      { type: 21, flags: 0x005, payload: `\x0a\x80\0\0${u32(7)}${attribute(2, V6)}` },
    ]
    const messages = changes.map((change, i) => message({ ...change, sequence: first + i }))
    expect(lastSent()).toEqual(Buffer.from(datagram(...messages)))
  })
})

describe('what goes wrong with a dummy device', () => {
  it('is no device that somebody else makes at the same time', () => {
    const made = (kind: string): TransportFaults => ({
      onSend(sent) {
        if (typeOf(sent) === 16 && kernel?.byName(NAME) === undefined) kernel?.add(NAME, kind)
        return sent
      },
    })
    let kernel: FakeLinks | undefined
    for (const kind of ['dummy', 'veth']) {
      const { kernel: fresh, client } = start(made(kind))
      kernel = fresh
      if (kind === 'dummy') client.ensure(NAME)
      else expect(() => client.ensure(NAME)).toThrow(/not a dummy device but of kind veth/)
      expect(fresh.byName(NAME)?.kind).toBe(kind)
    }
  })

  it('is an answer that is lost: nobody knows, and what comes behind is not sent', async () => {
    let losing = false
    const { kernel, clock, client } = start({ onReceive: datagram => (losing ? undefined : datagram) })
    client.ensure(NAME)
    const transport = client.commit(NAME, { add: manyIps(400), remove: [] })
    losing = true
    await clock.advance(15_000)
    const { unknown, failures, messages } = await transport
    expect(unknown).toBeInstanceOf(OutcomeUnknownError)
    expect([failures, messages]).toEqual([[], 200])
    expect(kernel.byName(NAME)?.addresses).toHaveLength(200)
  })

  it('is a device that goes while addresses do: those to remove are gone, those to add have failed', async () => {
    const { kernel, client } = start({
      onSend(sent) {
        if (typeOf(sent) === 20) kernel.links.delete(kernel.byName(NAME)?.index ?? 0)
        return sent
      },
    })
    client.ensure(NAME)
    const { failures } = await client.commit(NAME, { add: [V4], remove: [V6] })
    expect(failures.map(({ ip, code }) => [ip, code])).toEqual([[V4, 'ENODEV']])
  })

  it('is a send that fails for good: what was not sent has failed', async () => {
    let sends = 0
    const { kernel, client } = start({
      onSend(sent) {
        if (typeOf(sent) === 20 && ++sends === 2) throw new SystemError('sendmsg', 1, 'EPERM')
        return sent
      },
    })
    client.ensure(NAME)
    const add = manyIps(401)
    const { unknown, failures, messages } = await client.commit(NAME, { add, remove: [] })
    expect([unknown, messages]).toEqual([undefined, 200])
    expect(failures.map(({ ip, code }) => `${formatIp(ip)} ${code}`)).toEqual(
      add.slice(200).map(ip => `${formatIp(ip)} EPERM`),
    )
    expect(kernel.byName(NAME)?.addresses).toHaveLength(200)
  })
})
