import { describe, expect, it, onTestFinished } from 'vitest'
import { UnansweredReader } from '../../../../src/inspect/live/unanswered.ts'
import { isSilent, type UnansweredRow, unansweredText } from '../../../../src/inspect/live/unanswered-rows.ts'
import { UnansweredWatch } from '../../../../src/inspect/live/unanswered-watch.ts'
import { serviceOfFlow } from '../../../../src/modes/common/service-names.ts'
import { SystemError } from '../../../../src/netlink/transport.ts'
import type { EventFact } from '../../../../src/telemetry/event.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { FakeConntrack } from '../../../support/fake-conntrack.ts'
import { createMetrics } from '../../../support/metrics.ts'
import { recordedLog } from '../../../support/recorded-log.ts'
import { type Entry, entry } from '../../kernel/conntrack/flows.ts'
import { endpoint, node, service, slice, snapshotOf, tableOf } from '../../model/objects.ts'
import { SHOP, unansweredRow } from './rows.ts'

const names: Parameters<UnansweredReader['read']>[0] = {
  serviceOf: (...destination) => serviceOfFlow(SHOP, ...destination),
}

const [SYN_SENT, SYN_RECV, ESTABLISHED, TIME_WAIT] = [1, 2, 3, 7]
const [A, B] = ['10.1.0.1:8080', '10.1.0.2:8080']

let port = 1024
const from = (client: string): string => `${client}:${port++}`

/** A SYN that nobody has answered for so long. */
function syn(endpoint: string, client: string, { silentS = 10, to = '10.96.0.1:80' } = {}): Entry {
  return entry(from(client), to, endpoint, {
    protocol: 'TCP',
    isHalfOpen: true,
    isDnat: false,
    timeoutS: 120 - silentS,
    tcpState: SYN_SENT,
  })
}

/** A connection that was answered; its last packet passed so long ago. */
function answered(endpoint: string, client: string, { quietS = 5, tcpState = ESTABLISHED } = {}): Entry {
  const full = { [SYN_RECV]: 60, [ESTABLISHED]: 432_000, [TIME_WAIT]: 120 }[tcpState] ?? 0
  return entry(from(client), '10.96.0.1:80', endpoint, {
    protocol: 'TCP',
    timeoutS: full - quietS,
    tcpState,
  })
}

function datagram(to: string, endpoint: string, isHalfOpen: boolean): Entry {
  return entry(from('10.2.0.1'), to, endpoint, { isHalfOpen, isDnat: false, timeoutS: 20 })
}

const setting = (): number | undefined => undefined
const KERNEL: Readonly<Record<string, number>> = {
  tcp_timeout_syn_sent: 120,
  udp_timeout: 30,
}
const ofKernel = (path: string): number | undefined =>
  KERNEL[path.replace('/proc/sys/net/netfilter/nf_conntrack_', '')]

function readerOf(entries: readonly Entry[], more: { readonly ignoresFilter?: boolean } = {}) {
  const conntrack = new FakeConntrack(entries, more)
  const clock = new FakeClock()
  const reader = new UnansweredReader({ conntrack, clock, setting: ofKernel })
  return { conntrack, clock, reader, read: () => reader.read(names) }
}

const rowTexts = (rows: readonly UnansweredRow[]) =>
  rows.map(row => `${row.service} ${row.endpoint} ${row.unanswered}/${row.connections}`)

async function rowsOf(entries: readonly Entry[]) {
  return (await readerOf(entries).read()).rows
}

const many = <T>(length: number, make: (index: number) => T): T[] => Array.from({ length }, (_, i) => make(i))

describe('UnansweredReader', () => {
  it('counts an endpoint that answers nothing beside one that answers all', async () => {
    const { read } = readerOf([
      ...many(41, i => syn(A, `10.2.0.${i}`)),
      ...many(40, i => answered(B, `10.2.0.${i}`)),
    ])
    const found = await read()
    expect(found).toEqual({
      seenS: 60,
      rows: [expect.objectContaining({ isOneWay: false, isOneClient: false })],
    })
    expect(rowTexts(found.rows)).toEqual([`shop/cart:http ${A} 41/41`])
  })

  it('counts answered connections that had a packet in the last minute, in any state', async () => {
    const rows = await rowsOf([
      syn(A, '10.2.0.1'),
      answered(A, '10.2.0.2'),
      answered(A, '10.2.0.3', { quietS: 61 }),
      answered(A, '10.2.0.4', { tcpState: TIME_WAIT, quietS: 59 }),
      answered(A, '10.2.0.5', { tcpState: TIME_WAIT, quietS: 61 }),
      // Data that nobody acknowledges: 300 s are left of 5 days.
      answered(A, '10.2.0.6', { quietS: 432_000 - 300 }),
    ])
    expect(rowTexts(rows)).toEqual([`shop/cart:http ${A} 1/3`])
  })

  it('waits for the answer of a SYN, and forgets one that is older than a minute', async () => {
    const rows = await rowsOf([0, 1, 2, 60, 61].map(silentS => syn(A, '10.2.0.1', { silentS })))
    expect(rowTexts(rows)).toEqual([`shop/cart:http ${A} 2/2`])
  })

  it('adds up the frontends of a service port, and counts IPv6', async () => {
    const rows = await rowsOf([
      syn(A, '10.2.0.1'),
      syn(A, '10.2.0.1', { to: '192.0.2.9:30080' }),
      syn('[fd00::9]:8080', '[fd00::5]', { to: '[fd00::1]:80' }),
    ])
    expect(rowTexts(rows)).toEqual([`shop/cart:http ${A} 2/2`, 'shop/cart6:http [fd00::9]:8080 1/1'])
  })

  it('reads the answered connections only where something met no answer', async () => {
    const quiet = readerOf(many(5, i => answered(A, `10.2.0.${i}`)))
    expect(await quiet.read()).toEqual({ seenS: 60, rows: [] })
    expect(quiet.conntrack.dumps).toEqual(['UDP IPv4', 'UDP IPv6', 'unanswered'])
    await quiet.read()
    expect(quiet.conntrack.dumps.slice(3)).toEqual(['unanswered'])
  })

  it('does not read them for one-way ports and for connections to no Service', async () => {
    const oneWay = datagram('10.96.0.20:514', A, true)
    const { conntrack, read } = readerOf([oneWay, syn(A, '10.2.0.1', { to: '192.0.2.1:8443' })])
    await read()
    expect(conntrack.dumps).not.toContain('answered')
  })

  it('compares the status itself where the kernel ignores the filter', async () => {
    const entries = [syn(A, '10.2.0.1'), answered(A, '10.2.0.2'), datagram('10.96.0.20:514', A, true)]
    const { rows } = await readerOf(entries, { ignoresFilter: true }).read()
    expect(rowTexts(rows)).toEqual([`shop/cart:http ${A} 1/2`, `infra/syslog ${A} 1/1`])
    expect(rows[1]?.isOneWay).toBe(true)
  })
})

describe('what is no trouble', () => {
  it('takes a UDP port that never answers for one-way, and one that once answered not', async () => {
    const { conntrack, read } = readerOf([
      datagram('10.96.0.20:514', A, true),
      datagram('10.96.0.10:53', B, false),
    ])
    expect((await read()).rows).toMatchObject([{ service: 'infra/syslog', isOneWay: true }])
    conntrack.entries = [datagram('10.96.0.20:514', A, true), datagram('10.96.0.10:53', B, true)]
    expect((await read()).rows).toMatchObject([
      { service: 'infra/dns:dns', isOneWay: false },
      { service: 'infra/syslog', isOneWay: true },
    ])
  })

  it('asks for no name of a Service while every connection is answered', async () => {
    const { reader } = readerOf([answered(A, '10.2.0.1'), datagram('10.96.0.10:53', B, false)])
    let questions = 0
    const serviceOf: typeof names.serviceOf = (...destination) => {
      questions++
      return names.serviceOf(...destination)
    }
    expect((await reader.read({ serviceOf })).rows).toEqual([])
    expect(questions).toBe(0)
  })

  it('learns anew every 10 minutes which ports answer', async () => {
    const { conntrack, clock, read } = readerOf([])
    await read()
    conntrack.entries = [datagram('10.96.0.10:53', B, false)]
    await clock.advance(600_000)
    await read()
    conntrack.entries = [datagram('10.96.0.10:53', B, true)]
    expect((await read()).rows).toMatchObject([{ isOneWay: false }])
  })

  it('half-open clients: an endpoint that sent SYN-ACK has answered', async () => {
    expect(await rowsOf(many(50, i => answered(A, `10.2.0.${i}`, { tcpState: SYN_RECV })))).toEqual([])
  })

  it('a scanner: one client without an answer among others that are answered', async () => {
    const [row] = await rowsOf([
      ...many(200, () => syn(A, '203.0.113.9')),
      ...many(3, i => answered(A, `10.2.0.${i}`)),
    ])
    expect(row).toMatchObject({ unanswered: 200, connections: 203, isOneClient: true })
    expect(row && isSilent(row)).toBe(false)
  })

  it('asymmetric routes: a connection that nothing translated passes by', async () => {
    expect(
      await rowsOf([
        syn('10.96.0.1:80', '10.2.0.1'),
        syn('10.1.0.1:8080', '10.2.0.1', { to: '10.1.0.1:8080' }),
      ]),
    ).toEqual([])
  })

  it('connections to no Service', async () => {
    expect(await rowsOf([syn(A, '10.2.0.1', { to: '192.0.2.1:8443' })])).toEqual([])
  })
})

describe('a table that does not say all', () => {
  it('names the reason where there is no conntrack', async () => {
    const { conntrack, read } = readerOf([syn(A, '10.2.0.1')])
    conntrack.failure = new SystemError('socket', 93, 'EPROTONOSUPPORT')
    expect(await read()).toEqual({
      rows: [],
      seenS: 0,
      limits: expect.stringMatching(/^conntrack cannot be read: .*EPROTONOSUPPORT/),
    })
    conntrack.failure = undefined
    expect((await read()).rows).toHaveLength(1)
  })

  it('says that a read was torn', async () => {
    const { conntrack, read } = readerOf([syn(A, '10.2.0.1')])
    conntrack.isTorn = true
    expect(await read()).toMatchObject({
      rows: [{ unanswered: 1 }],
      limits: 'the table changed while it was read: some connections may be missing',
    })
  })

  it('assumes the defaults of the kernel where the timeouts cannot be read', async () => {
    const conntrack = new FakeConntrack([syn(A, '10.2.0.1')])
    const reader = new UnansweredReader({ conntrack, clock: new FakeClock(), setting })
    expect(await reader.read(names)).toMatchObject({
      rows: [{ unanswered: 1 }],
      limits: expect.stringContaining('defaults'),
    })
  })

  it('sees a shorter time where the kernel forgets a SYN sooner', async () => {
    const conntrack = new FakeConntrack([])
    const reader = new UnansweredReader({ conntrack, clock: new FakeClock(), setting: () => 20 })
    expect(await reader.read(names)).toEqual({ rows: [], seenS: 20 })
  })

  it('bounds the pairs that it counts', async () => {
    const entries = many(10_050, i =>
      syn(`10.${100 + (i >> 14)}.${(i >> 7) & 127}.${1 + (i & 127)}:80`, '10.2.0.1'),
    )
    const { rows, limits } = await readerOf(entries).read()
    expect(rows).toHaveLength(10_000)
    expect(limits).toBe('only 10,000 pairs are counted')
  })
})

describe('isSilent', () => {
  const row = (more: Partial<UnansweredRow>) =>
    unansweredRow({ endpoint: A, connections: 10, unanswered: 6, ...more })

  it.each([
    ['more than half', {}, true],
    ['half', { unanswered: 5 }, false],
    ['a one-way port', { isOneWay: true }, false],
    ['one client of several', { isOneClient: true }, false],
    ['the only client', { isOneClient: true, unanswered: 10 }, true],
  ])('%s', (_, more, is) => {
    expect(isSilent(row(more))).toBe(is)
  })

  it('needs as many as it is given', () => {
    expect([6, 7].map(least => isSilent(row({}), least))).toEqual([true, false])
  })

  it('has a sentence, also of one connection', () => {
    expect(unansweredText(row({ unanswered: 1, connections: 1 }))).toBe(
      '1 of 1 connection to 10.1.0.1:8080 had no reply in the last minute',
    )
  })
})

const [DEAD, ALIVE] = ['10.1.0.1', '10.1.0.2']

/** What the daemon holds of one Service with these endpoints, each a Pod. */
function heldWith(addresses: readonly string[], pod = 'web-a') {
  const pods = addresses.map(each => endpoint(each, { targetRef: { kind: 'Pod', name: pod } }))
  const objects = [node(), service('web'), slice('a', 'web', pods)]
  return { table: tableOf(objects), snapshot: snapshotOf(objects) }
}

const syns = (address: string, number: number): Entry[] =>
  Array.from({ length: number }, (_, n) =>
    entry(`10.2.0.${n}:4000`, '10.96.0.1:80', `${address}:8080`, {
      protocol: 'TCP',
      isHalfOpen: true,
      isDnat: false,
      timeoutS: 100,
    }),
  )

function watching(entries: readonly Entry[]) {
  const conntrack = new FakeConntrack(entries)
  const clock = new FakeClock()
  const { log, lines } = recordedLog()
  const facts: EventFact[] = []
  const world = { held: heldWith([DEAD, ALIVE]) }
  const watch = new UnansweredWatch({
    conntrack,
    clock,
    log,
    nodeName: 'here',
    held: () => world.held,
    tell: fact => facts.push(fact),
    setting: () => undefined,
  })
  onTestFinished(() => watch.stop())
  const notes = () => facts.map(({ reason, note, regarding }) => ({ reason, note, regarding }))
  const readings = () => conntrack.dumps.filter(each => each === 'unanswered').length
  return { conntrack, clock, watch, notes, readings, lines, world }
}

describe('UnansweredWatch', () => {
  it('reads once a minute, and four times while something meets no answer', async () => {
    const { conntrack, clock, readings } = watching([])
    await clock.advance(59_999)
    expect(readings()).toBe(0)
    await clock.advance(1)
    expect(readings()).toBe(1)
    conntrack.entries = syns(DEAD, 5)
    await clock.advance(60_000)
    expect(readings()).toBe(2)
    await clock.advance(15_000)
    expect(readings()).toBe(3)
  })

  it('reports an endpoint once that is silent in two readings, and logs its end', async () => {
    const { conntrack, clock, watch, notes, lines } = watching(syns(DEAD, 5))
    await clock.advance(60_000)
    expect([notes().length, watch.silent]).toEqual([0, 1])
    await clock.advance(60_000)
    const note =
      'node here: endpoint 10.1.0.1:8080 (pod ns/web-a) of ns/web leaves most connections without a reply'
    expect(notes()).toEqual([
      { reason: 'EndpointSilent', note, regarding: { kind: 'Service', key: 'ns/web' } },
    ])
    expect(lines).toMatchObject([{ msg: 'the endpoint does not answer', pod: 'ns/web-a' }])
    expect(watch.last?.rows).toMatchObject([{ pod: 'ns/web-a' }])
    conntrack.entries = []
    await clock.advance(60_000)
    expect(watch.silent).toBe(0)
    expect(lines.at(-1)).toMatchObject({ service: 'ns/web', endpoint: '10.1.0.1:8080', level: 'info' })
  })

  it('reports neither a few connections, nor an endpoint that is gone', async () => {
    const few = watching(syns(DEAD, 4))
    await few.clock.advance(120_000)
    expect([few.watch.silent, few.notes()]).toEqual([0, []])
    const gone = watching(syns(DEAD, 9))
    gone.world.held = heldWith([ALIVE])
    await gone.clock.advance(120_000)
    expect([gone.watch.silent, gone.watch.last?.rows]).toEqual([0, []])
  })

  it('is shown as metrics of the 50 worst endpoints', async () => {
    const { clock, watch } = watching([...syns(DEAD, 9), ...syns(ALIVE, 1)])
    const metrics = createMetrics({ unanswered: () => watch })
    expect(await metrics.text()).toContain('kprobe_silent_endpoints 0')
    await clock.advance(60_000)
    const text = await metrics.text()
    expect(text).toContain('kprobe_silent_endpoints 1')
    const labels = 'namespace="ns",service="web",port="",protocol="TCP",endpoint="10.1.0.1:8080"'
    expect(text).toContain(`kprobe_endpoint_unanswered_connections{${labels}} 9`)
    expect(text).toContain(`kprobe_endpoint_recent_connections{${labels}} 9`)
  })

  it('stays after a table that cannot be read', async () => {
    const { conntrack, clock, watch } = watching(syns(DEAD, 5))
    conntrack.failure = new Error('no conntrack')
    await clock.advance(60_000)
    expect(watch.last).toMatchObject({ rows: [], limits: 'conntrack cannot be read: no conntrack' })
    conntrack.failure = undefined
    await clock.advance(60_000)
    expect(watch.last?.rows).toHaveLength(1)
  })

  it('says neither of an endpoint that it answers again, nor reports it again, after a table that cannot be read', async () => {
    const { conntrack, clock, watch, notes, lines } = watching(syns(DEAD, 5))
    await clock.advance(120_000)
    expect(notes()).toHaveLength(1)
    conntrack.failure = new Error('no conntrack')
    await clock.advance(60_000)
    expect(watch.silent).toBe(1)
    conntrack.failure = undefined
    await clock.advance(120_000)
    expect([notes().length, lines.length]).toEqual([1, 1])
  })

  it('reports 50 endpoints at a time, and counts all', async () => {
    const addresses = Array.from({ length: 60 }, (_, n) => `10.1.1.${n}`)
    const { conntrack, clock, watch, notes, lines, world } = watching(
      addresses.flatMap(each => syns(each, 5)),
    )
    world.held = heldWith(addresses)
    await clock.advance(180_000)
    expect([notes().length, watch.silent, lines.length]).toEqual([50, 60, 50])
    // The order of the worst changes: nothing is reported of those that stay silent.
    conntrack.entries = addresses.toReversed().flatMap((each, n) => syns(each, n < 30 ? 6 : 5))
    await clock.advance(60_000)
    expect([notes().length, watch.silent, lines.length]).toEqual([50, 60, 50])
  })
})
