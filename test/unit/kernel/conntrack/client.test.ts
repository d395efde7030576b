import { describe, expect, it } from 'vitest'
import { type ConntrackClient, createConntrackClient } from '../../../../src/kernel/conntrack/client.ts'
import type { Flow, FlowFilter } from '../../../../src/kernel/conntrack/flow.ts'
import { SystemError } from '../../../../src/netlink/transport.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { messagesIn } from '../../../support/faulty-transport.ts'
import {
  attribute,
  be32,
  datagram,
  doneMessage,
  errorMessage,
  message,
  nest,
  ScriptedTransport,
  sequenceOf,
  typeOf,
} from '../../../support/scripted-transport.ts'
import { flow, flowText, socket } from './flows.ts'

const CT_NEW = 0x100
const CT_GET = 0x101
const CT_DELETE = 0x102
const STATS_CPU = 0x104
const STATS = 0x105
const DUMP_INTR = 0x10
const UDP: FlowFilter = { family: 'IPv4', protocol: 'UDP' }

type Answers = ConstructorParameters<typeof ScriptedTransport>[0]

interface World {
  readonly client: ConntrackClient
  readonly clock: FakeClock
  readonly opened: readonly CountingTransport[]
  /** Datagrams of a type, over all sockets. */
  readonly sent: (type: number) => readonly Buffer[]
}

class CountingTransport extends ScriptedTransport {
  pooled = 0

  override send(datagram: Uint8Array): Promise<void> {
    this.pooled++
    return super.send(datagram)
  }
}

/** A kernel that has statistics of two processors, and answers everything else as the test says. */
function worldOf(answers: Answers): World {
  const clock = new FakeClock()
  const opened: CountingTransport[] = []
  const openTransport = () => {
    const transport = new CountingTransport(sent => {
      if (typeOf(sent) === STATS_CPU) return [datagram(processor(sent, 3), processor(sent, 4), done(sent))]
      return answers(sent)
    })
    opened.push(transport)
    return transport
  }
  const client = createConntrackClient({ openTransport, clock })
  const sent = (type: number) =>
    opened.flatMap(transport =>
      transport.sent.filter(each => typeOf(each) === type).map(each => Buffer.from(each)),
    )
  return { client, clock, opened, sent }
}

function processor(sent: Uint8Array, failures: number): string {
  const payload = `\0\0\0\0${attribute(9, be32(failures))}${attribute(10, be32(1))}${attribute(11, be32(2))}`
  return message({ type: STATS_CPU, flags: 2, sequence: sequenceOf(sent), payload })
}

const done = (sent: Uint8Array) => doneMessage(sequenceOf(sent))

interface EntryFields {
  readonly protocol?: number
  readonly to?: string
  readonly by?: string
  readonly from?: string
  readonly family?: number
  readonly flags?: number
  readonly drop?: 'id' | 'reply'
}

/** IPCTNL_MSG_CT_NEW as the kernel sends it, written by hand. */
function listed(sent: Uint8Array, fields: EntryFields = {}): string {
  const { protocol = 17, to = '10.96.0.10:53', by = to, family = 2, flags = 2, drop } = fields
  const { from = '10.1.0.5:4000' } = fields
  const payload = [
    String.fromCharCode(family, 0, 0, 0),
    nest(1, ...tupleOf(from, to, protocol)),
    drop === 'reply' ? '' : nest(2, ...tupleOf(by, from, protocol)),
    attribute(3, be32(14)),
    attribute(99, 'of a later kernel'),
    drop === 'id' ? '' : attribute(12, be32(0xfedcba98)),
    attribute(18, '\0\x09'),
  ].join('')
  return message({ type: CT_NEW, flags, sequence: sequenceOf(sent), payload })
}

function tupleOf(from: string, to: string, protocol: number): string[] {
  const [source, destination] = [socket(from), socket(to)]
  const first = source.ip.length === 4 ? 1 : 3
  const port = (value: number) => String.fromCharCode(value >> 8, value & 255)
  return [
    nest(1, attribute(first, source.ip), attribute(first + 1, destination.ip)),
    nest(
      2,
      attribute(1, String.fromCharCode(protocol)),
      attribute(2, port(source.port)),
      attribute(3, port(destination.port)),
    ),
  ]
}

async function dumped(
  client: ConntrackClient,
  filter: FlowFilter,
): Promise<{ whole: boolean; flows: Flow[] }> {
  const flows: Flow[] = []
  const whole = await client.dump(filter, { isWanted: () => true, visit: each => flows.push(each) })
  return { whole, flows }
}

describe('dump', () => {
  it('decodes what decides about an entry, and keeps its tuple as it came', async () => {
    const { client } = worldOf(sent => [
      datagram(listed(sent, { by: '10.200.0.1:1053' })),
      datagram(done(sent)),
    ])
    const { whole, flows } = await dumped(client, UDP)
    expect(whole).toBe(true)
    expect(flows).toHaveLength(1)
    expect(flows[0]).toMatchObject({ destinationPort: 53, answererPort: 1053, id: 0xfedcba98, zone: 9 })
    expect(flows.map(flowText)).toEqual(['UDP 10.1.0.5:4000 > 10.96.0.10:53 = 10.200.0.1:1053'])
    expect(flows[0]?.tuple).toBe(tupleOf('10.1.0.5:4000', '10.96.0.10:53', 17).join(''))
  })

  it('asks for an IPv4 address and port with CTA_FILTER', async () => {
    const { client, sent } = worldOf(request => [datagram(done(request))])
    await dumped(client, { ...UDP, destination: socket('10.96.0.10:1').ip, destinationPort: 53 })
    const [request] = sent(CT_GET)
    const payload = [
      '\x02\0\0\0',
      nest(1, nest(1, attribute(2, '\x0a\x60\0\x0a')), nest(2, attribute(1, '\x11'), attribute(3, '\0\x35'))),
      nest(25, attribute(1, '\x2a\0\0\0')),
    ].join('')
    expect(request?.readUInt16LE(6)).toBe(0x301)
    expect(request?.subarray(16).toString('latin1')).toBe(payload)
  })

  const V6 = { family: 10, from: '[fd00:10::5]:4000' } as const

  it('never asks for one IPv6 address, which the kernel compares the wrong way round', async () => {
    const { client, sent } = worldOf(request => [
      datagram(
        listed(request, { ...V6, to: '[fd00:96::10]:53' }),
        listed(request, { ...V6, to: '[fd00:96::11]:53' }),
        done(request),
      ),
    ])
    const { ip } = socket('[fd00:96::10]:53')
    const { flows } = await dumped(client, { family: 'IPv6', protocol: 'UDP', destination: ip })
    expect(flows.map(flowText)).toEqual(['UDP [fd00:10::5]:4000 > [fd00:96::10]:53 = [fd00:96::10]:53'])
    const [request] = sent(CT_GET)
    expect(request?.includes(Buffer.from(ip, 'latin1'))).toBe(false)
    expect(request?.subarray(-4).toString('hex')).toBe('08000000')
  })

  it('compares itself what a kernel without CTA_FILTER lists as well', async () => {
    const { client } = worldOf(sent => [
      datagram(
        listed(sent),
        listed(sent, { protocol: 6 }),
        listed(sent, { to: '10.96.0.11:53' }),
        listed(sent, { to: '10.96.0.10:54' }),
        message({ type: CT_DELETE, sequence: sequenceOf(sent), payload: '\x02\0\0\0' }),
        done(sent),
      ),
    ])
    const filter = { ...UDP, destination: socket('10.96.0.10:53').ip, destinationPort: 53 }
    expect((await dumped(client, filter)).flows.map(flowText)).toEqual([
      'UDP 10.1.0.5:4000 > 10.96.0.10:53 = 10.96.0.10:53',
    ])
  })

  it('decodes no more than the destination of what nobody wants', async () => {
    const { client } = worldOf(sent => [datagram(listed(sent, { drop: 'id' }), done(sent))])
    const asked: number[] = []
    const isWanted = (_ip: string, port: number) => asked.push(port) < 0
    await client.dump(UDP, { isWanted, visit: () => expect.unreachable() })
    expect(asked).toEqual([53])
  })

  it.each(['id', 'reply'] as const)('rejects an entry without its %s', async drop => {
    const { client } = worldOf(sent => [datagram(listed(sent, { drop }), done(sent))])
    await expect(dumped(client, UDP)).rejects.toThrow('an entry of conntrack without its tuples or its id')
  })

  it('tells when the table changed while it was listed, with what was listed', async () => {
    const { client } = worldOf(sent => [datagram(listed(sent, { flags: 2 | DUMP_INTR }), done(sent))])
    const { whole, flows } = await dumped(client, UDP)
    expect([whole, flows.length]).toEqual([false, 1])
  })

  it('asks from the thread pool, and rejects when that fails', async () => {
    const { client, opened } = worldOf(sent => [datagram(done(sent))])
    await dumped(client, UDP)
    expect(opened.map(({ pooled }) => pooled)).toEqual([1])
    const denied = worldOf(() => {
      throw new SystemError('sendmsg', 1, 'EPERM')
    })
    await expect(dumped(denied.client, UDP)).rejects.toThrow('sendmsg: EPERM')
  })

  it('ends at once when the visitor throws, and lists over a new socket afterwards', async () => {
    const { client, opened } = worldOf(sent => [datagram(listed(sent), done(sent))])
    const visitor = {
      isWanted: () => {
        throw new Error('enough')
      },
      visit: () => undefined,
    }
    await expect(client.dump(UDP, visitor)).rejects.toThrow('enough')
    expect(opened.map(({ closed }) => closed)).toEqual([true])
    expect((await dumped(client, UDP)).flows).toHaveLength(1)
    expect(opened.map(({ closed }) => closed)).toEqual([true, false])
  })
})

describe('delete', () => {
  const flows = Array.from({ length: 600 }, (_, n) => flow(`10.1.0.5:${1000 + n}`, '10.96.0.10:53'))

  /** As the kernel does for the last message, which asks for it. */
  const acknowledged = (sent: Uint8Array) => [
    datagram(errorMessage(messagesIn(sent).at(-1)?.sequence ?? 0, 0)),
  ]

  it('sends many a datagram, each with its tuple and id', async () => {
    const { client, sent } = worldOf(acknowledged)
    expect(await client.delete(flows)).toEqual({ deleted: 600, gone: 0 })
    const datagrams = sent(CT_DELETE)
    const messages = datagrams.map(each => messagesIn(each))
    expect(messages.map(({ length }) => length)).toEqual([256, 256, 88])
    const [first] = datagrams
    const [tuple = ''] = flows.map(each => each.tuple)
    const payload = `\x02\0\0\0${nest(1, tuple)}${attribute(12, be32(7))}`
    expect(first?.subarray(16, messages[0]?.[0]?.end).toString('latin1')).toBe(payload)
    for (const { start, end } of messages[0] ?? [])
      expect(first?.subarray(start + 20, end).toString('latin1')).toContain('\x01\x80')
  })

  it('says nothing to the kernel when there is nothing to delete', async () => {
    const { client, opened } = worldOf(() => [])
    expect(await client.delete([])).toEqual({ deleted: 0, gone: 0 })
    expect(opened).toEqual([])
  })

  it('counts what had gone by itself', async () => {
    const { client } = worldOf(sent => {
      const [first, second] = messagesIn(sent)
      const gone = [first, second].map(each => errorMessage(each?.sequence ?? 0, 2))
      return [datagram(...gone), ...acknowledged(sent)]
    })
    expect(await client.delete(flows.slice(0, 5))).toEqual({ deleted: 3, gone: 2 })
  })

  it('rejects with anything else that the kernel says', async () => {
    const { client } = worldOf(sent => [datagram(errorMessage(messagesIn(sent)[0]?.sequence ?? 0, 1))])
    await expect(client.delete(flows.slice(0, 5))).rejects.toThrow(
      'delete flows: EPERM (Operation not permitted)',
    )
  })

  it('rejects when answers were lost', async () => {
    const { client } = worldOf(() => [new SystemError('recvmsg', 105, 'ENOBUFS')])
    await expect(client.delete(flows.slice(0, 5))).rejects.toThrow("the kernel's reply was lost")
  })
})

describe('statistics', () => {
  it('gives the size of the table, and sums what processors count', async () => {
    const { client } = worldOf(sent => {
      const payload = `\0\0\0\0${attribute(1, be32(12))}${attribute(2, be32(262_144))}`
      return [datagram(message({ type: STATS, sequence: sequenceOf(sent), payload }))]
    })
    expect(await client.statistics()).toEqual({
      entries: 12,
      entriesMax: 262_144,
      insertFailed: 7,
      dropped: 2,
      droppedEarly: 4,
    })
  })
})

it('closes both sockets, and a second time without harm', async () => {
  const { client, opened } = worldOf(sent => [
    datagram(typeOf(sent) === CT_DELETE ? errorMessage(sequenceOf(sent), 0) : done(sent)),
  ])
  await dumped(client, UDP)
  await client.delete([flow('10.1.0.5:1', '10.96.0.10:53')])
  await client.close()
  await client.close()
  expect(opened.map(({ closed }) => closed)).toEqual([true, true])
})
