import { describe, expect, it } from 'vitest'
import { systemClock } from '../../../../src/base/clock.ts'
import { formatIp } from '../../../../src/base/ip.ts'
import { createAddressReader } from '../../../../src/kernel/link/links.ts'
import { SystemError } from '../../../../src/netlink/transport.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { FakeLinks } from '../../../support/fake-link/kernel.ts'
import { FaultyTransport } from '../../../support/faulty-transport.ts'
import {
  attribute,
  datagram,
  doneMessage,
  message,
  ScriptedTransport,
  sequenceOf,
  typeOf,
  u32,
} from '../../../support/scripted-transport.ts'

const RTM_NEWADDR = 20
const DUMP_INTR = 0x10
const NODE = '\xc0\x00\x02\x01'
const PEER = '\xc0\x00\x02\x02'
const NODE_V6 = `\x20\x01\x0d\xb8${'\0'.repeat(11)}\x01`

/** RTM_NEWADDR as the kernel sends it: struct ifaddrmsg, then attributes. */
function address(sequence: number, family: number, attributes: readonly string[], flags = 2): string {
  const head = String.fromCharCode(family, 24, 0x80, 0) + u32(2)
  return message({ type: RTM_NEWADDR, flags, sequence, payload: head + attributes.join('') })
}

type Answers = ConstructorParameters<typeof ScriptedTransport>[0]

function readerOf(answers: Answers, options: { readonly except?: string } = {}) {
  const clock = new FakeClock()
  const opened: ScriptedTransport[] = []
  const openTransport = () => {
    const transport = new ScriptedTransport(answers)
    opened.push(transport)
    return transport
  }
  return { clock, opened, reader: createAddressReader({ openTransport, clock, ...options }) }
}

const whole: Answers = sent => {
  const sequence = sequenceOf(sent)
  return [
    datagram(
      address(sequence, 10, [attribute(1, NODE_V6)]),
      address(sequence, 2, [attribute(1, PEER), attribute(2, NODE), attribute(3, 'eth0\0')]),
      address(sequence, 2, [attribute(1, NODE), attribute(2, NODE)]),
      address(sequence, 28, [attribute(1, 'MPLS')]),
    ),
    datagram(doneMessage(sequence)),
  ]
}

describe('createAddressReader', () => {
  it('gives our own addresses of both families, sorted and once each, never those of the other end', async () => {
    const { reader } = readerOf(whole)
    expect((await reader.read()).map(formatIp)).toEqual(['2001:db8::1', '192.0.2.1'])
  })

  it('gives up, without a list, when it changed every time', async () => {
    let dumps = 0
    const { reader, clock } = readerOf(sent => {
      dumps++
      const sequence = sequenceOf(sent)
      return [datagram(address(sequence, 2, [attribute(2, NODE)], DUMP_INTR), doneMessage(sequence))]
    })
    const failing = expect(reader.read()).rejects.toThrow(
      /list addresses of interfaces: EAGAIN .*: they changed during each of 8 attempts/,
    )
    await clock.advance(1_000)
    await failing
    expect(dumps).toBe(8)
  })

  it('opens a new socket after one that failed', async () => {
    let dumps = 0
    const { reader, opened } = readerOf(sent => {
      dumps++
      return dumps === 1 ? [new SystemError('recvmsg', 105, 'ENOBUFS')] : whole(sent)
    })
    await expect(reader.read()).rejects.toThrow(/ENOBUFS/)
    expect(await reader.read()).toHaveLength(2)
    expect(await reader.read()).toHaveLength(2)
    expect(opened.map(({ closed }) => closed)).toEqual([true, false])
    await reader.close()
    expect(opened.map(({ closed }) => closed)).toEqual([true, true])
  })

  it.each([
    ['no ifaddrmsg', ''],
    ['an address of the wrong length', String.fromCharCode(2, 24, 0, 0) + u32(2) + attribute(2, 'abc')],
  ])('refuses an answer with %s', async (_, payload) => {
    const { reader } = readerOf(sent => {
      const sequence = sequenceOf(sent)
      const bad = message({ type: RTM_NEWADDR, flags: 2, sequence, payload })
      return [datagram(bad, doneMessage(sequence))]
    })
    await expect(reader.read()).rejects.toThrow(/EBADMSG/)
  })
})

describe('an excepted device', () => {
  const NAME = 'kube-ipvs0'
  const OURS = '\x0a\x60\x00\x01'

  function start(onSend: (sent: Uint8Array, kernel: FakeLinks) => void = () => undefined) {
    const kernel = new FakeLinks()
    const openTransport = () =>
      new FaultyTransport(kernel.open(), {
        onSend(sent) {
          onSend(sent, kernel)
          return sent
        },
      })
    kernel.add('eth0', undefined)
    kernel.addAddress('eth0', { family: 2, ip: NODE, prefixLength: 24, flags: 0 })
    return { kernel, reader: createAddressReader({ openTransport, clock: systemClock, except: NAME }) }
  }
  const bind = (kernel: FakeLinks): void => {
    kernel.add(NAME, 'dummy')
    kernel.addAddress(NAME, { family: 2, ip: OURS, prefixLength: 32, flags: 0 })
  }

  it('may be made while addresses are listed: they are listed again', async () => {
    let dumps = 0
    const { reader } = start((sent, kernel) => {
      if (typeOf(sent) === 22 && ++dumps === 1) bind(kernel)
    })
    expect(await reader.read()).toEqual([NODE])
    expect(dumps).toBe(2)
    await reader.close()
  })

  it('gives its place to one of another index: changes of that one are told until it is known', async () => {
    const { kernel, reader } = start()
    bind(kernel)
    await reader.read()
    let hints = 0
    const stop = reader.watch(() => hints++)
    const settle = () => new Promise(resolve => setTimeout(resolve, 20))
    kernel.addAddress(NAME, { family: 2, ip: PEER, prefixLength: 32, flags: 0 })
    await settle()
    expect(hints).toBe(0)
    kernel.links.delete(kernel.byName(NAME)?.index ?? 0)
    bind(kernel)
    await settle()
    expect(hints).toBe(1)
    expect(await reader.read()).toEqual([NODE])
    kernel.addAddress(NAME, { family: 2, ip: PEER, prefixLength: 32, flags: 0 })
    await settle()
    expect(hints).toBe(1)
    await stop?.()
    await reader.close()
  })

  it('hides nothing that cannot be read', async () => {
    const { reader, opened } = readerOf(whole, { except: NAME })
    let hints = 0
    const stop = reader.watch(() => hints++)
    opened[0]?.arrive(datagram(message({ type: RTM_NEWADDR, payload: '\0' })))
    expect(hints).toBe(1)
    await stop?.()
  })
})
