import { type Cancel, pause, systemClock } from '../../base/clock.ts'
import { secondsText } from '../../base/duration.ts'
import { formatIpPort } from '../../base/ip.ts'
import { fieldOf } from '../../base/plain-data.ts'
import { bytesText, oneLine, rfc3339 } from '../../base/text.ts'
import { askDaemon } from '../../cli/admin-client.ts'
import { aborted, EXIT_FINE, type Io, tableText, writeWarnings } from '../../cli/io.ts'
import { ownCommand } from '../../cli/request.ts'
import { HERE } from '../../daemon/open.ts'
import { createConntrackClient } from '../../kernel/conntrack/client.ts'
import { decodeRecord, type FlowEventKind, type Volume } from '../../kernel/conntrack/record.ts'
import type { ByteView } from '../../netlink/attribute.ts'
import type { Message } from '../../netlink/message.ts'
import {
  endpointText,
  type FlowGroup,
  FlowGroups,
  type Grouping,
  type NamedFlow,
  namedFlow,
  summedCounts,
} from './flow-groups.ts'
import { FlowNames, type FlowSettings, FlowWatch, readFlowSettings } from './flow-reading.ts'
import { FLOWS_FLAGS, type FlowsRequest, readFlowsRequest, withPeers } from './flow-request.ts'

export const command = ownCommand({
  name: 'flows',
  description:
    'Prints the tracked connections of this network namespace with their Service, client and\n' +
    'endpoint. With --follow, connections as they begin and end. Reads the kernel, and the daemon for the names.',
  details: [
    'Example:',
    '  kprobe flows --service shop/cart',
    '  kprobe flows --follow --from 10.1.0.0/16 -o json',
    '  kprobe flows --to pod/shop/cart-1 --group-by client',
    '  kprobe flows --follow --group-by endpoint --duration 10s',
    '',
    'The kernel counts bytes and packets where net.netfilter.nf_conntrack_acct is 1, and keeps times where net.netfilter.nf_conntrack_timestamp is 1, each for connections that begin after it is set.',
    'Since Linux 5.19, --follow reports the end only of connections that began while a program listened.',
    'The command counts and names events that the kernel dropped.',
  ],
  flags: FLOWS_FLAGS,
  read: readFlowsRequest,
  run,
})

interface Session {
  readonly request: FlowsRequest
  readonly names: FlowNames
  readonly settings: FlowSettings
  readonly io: Io
}

async function run(asked: FlowsRequest, io: Io): Promise<number> {
  const settings = readFlowSettings()
  const request = await withPeers(asked)
  const names = await FlowNames.open({ clock: systemClock, ...request })
  await names.require(request.filter.service)
  const session = { request, names, settings, io }
  for (const notice of await noticesOf(session)) io.err(`kprobe flows: ${oneLine(notice)}\n`)
  if (!request.follow) return await listFlows(session)
  if (settings.whyNoEvents !== undefined) throw new Error(settings.whyNoEvents)
  return await new Follower(session).run()
}

async function noticesOf({ request, names, settings }: Session): Promise<readonly string[]> {
  const own = names.notice === undefined ? [] : [names.notice]
  return [...own, ...(await names.noticesAbout(request.filter.service)), ...settings.notices]
}

async function listFlows({ request, names, settings, io }: Session): Promise<number> {
  const { filter, by, limit, output } = request
  const client = createConntrackClient({ openTransport: HERE.sockets.netfilter, clock: systemClock })
  const flows: NamedFlow[] = []
  const withVolume = settings.hasVolume
  const groups = by === undefined ? undefined : new FlowGroups({ names, filter, by, withVolume })
  let more = 0
  const isWhole = await client
    .dumpAll((view, message) => {
      if (groups !== undefined) return groups.take('new', view, message)
      const record = decodeRecord(view, message)
      const flow = record === undefined ? undefined : namedFlow(record, { names, filter })
      if (flow === undefined) return
      if (flows.length < limit) flows.push(flow)
      else more++
    })
    .finally(() => client.close())
  const nowMs = Date.now()
  if (by !== undefined && groups !== undefined) {
    const largest = groups.largest()
    const counts = { by, of: 'open' } as const
    const shown = largest.slice(0, limit)
    if (output === 'json') for (const group of shown) io.out(`${JSON.stringify(groupJson(group, counts))}\n`)
    else io.out(textOf(groupTable(shown, counts), io))
    more = largest.slice(limit).reduce((sum, { begun }) => sum + begun, groups.others.begun)
  } else if (output === 'json')
    for (const flow of flows) io.out(`${JSON.stringify(flowJson('open', flow, nowMs))}\n`)
  else io.out(textOf(flowTable(flows, nowMs), io))
  await writeWarnings(
    [
      ...(more === 0
        ? []
        : [`left out ${more.toLocaleString('en-US')} more connections; --limit prints more lines`]),
      ...(isWhole ? [] : ['the table changed while it was read: some connections may be missing']),
    ],
    io,
  )
  return EXIT_FINE
}

/** Time between two reports of what was lost or skipped, and the window of --rate. */
const TICK_MS = 1_000
/** Ticks between two questions to the daemon whether Services changed. */
const NAMES_TICKS = 5
/** A reader that is further behind than this loses lines and tables, which are counted. */
const BACKLOG_BYTES_MAX = 8 << 20

/** Prints connections, or counts of them, until the duration is over or the process is asked to end. */
class Follower {
  readonly #session: Session
  readonly #groups: FlowGroups | undefined
  readonly #total = { new: 0, ended: 0, lost: 0, skipped: 0 }
  #watch: FlowWatch | undefined
  #printedInTick = 0
  #skippedInTick = 0
  /** Tables that were not printed since the last report. */
  #skippedTables = 0
  #ticks = 0
  #intervalStartMs = 0

  constructor(session: Session) {
    const { request, names, settings } = session
    const { filter, by } = request
    this.#session = session
    this.#groups =
      by === undefined ? undefined : new FlowGroups({ names, filter, by, withVolume: settings.hasVolume })
  }

  async run(): Promise<number> {
    const { request, io } = this.#session
    const startMs = systemClock.nowMs()
    this.#intervalStartMs = startMs
    const take = this.#groups === undefined ? this.#line : this.#count
    const watch = new FlowWatch({ clock: systemClock, kinds: request.events, take })
    this.#watch = watch
    io.err('kprobe flows: following connections; Ctrl-C ends\n')
    const timers = [every(TICK_MS, () => this.#tick())]
    if (this.#groups !== undefined && request.intervalMs > 0)
      timers.push(every(request.intervalMs, () => this.#printInterval()))
    const stop = AbortSignal.any([io.signal, io.outLost])
    await (request.durationMs > 0 ? pause(systemClock, request.durationMs, stop) : aborted(stop))
    for (const cancel of timers) cancel()
    watch.stop()
    this.#report()
    if (this.#groups !== undefined) this.#printGroups()
    await watch.close()
    await io.outWritten()
    io.err(`kprobe flows: ${this.#summary((systemClock.nowMs() - startMs) / 1000)}\n`)
    return EXIT_FINE
  }

  readonly #count = (kind: FlowEventKind, view: ByteView, message: Message): void => {
    this.#groups?.take(kind, view, message)
  }

  readonly #line = (kind: FlowEventKind, view: ByteView, message: Message): void => {
    const { request, names, io } = this.#session
    const wallMs = Date.now()
    const record = decodeRecord(view, message)
    const flow = record === undefined ? undefined : namedFlow(record, { names, filter: request.filter })
    if (flow === undefined) return
    this.#total[kind]++
    if (this.#printedInTick >= request.rate || this.#isBehind) {
      this.#skippedInTick++
      return
    }
    this.#printedInTick++
    const text =
      request.output === 'json' ? JSON.stringify(flowJson(kind, flow, wallMs)) : flowLine(kind, flow, wallMs)
    io.out(`${text}\n`)
  }

  /** The reader of standard output does not keep up. */
  get #isBehind(): boolean {
    return this.#session.io.outBacklogBytes() > BACKLOG_BYTES_MAX
  }

  #tick(): void {
    this.#printedInTick = 0
    if (!this.#isBehind) this.#report()
    if (this.#ticks++ % NAMES_TICKS === 0) void refreshNames(this.#session.names)
  }

  /** Says what was lost and skipped since the last report. */
  #report(): void {
    const lost = this.#watch?.takeLost() ?? 0
    const skipped = this.#skippedInTick
    const tables = this.#skippedTables
    this.#skippedInTick = 0
    this.#skippedTables = 0
    this.#total.lost += lost
    this.#total.skipped += skipped
    this.#say('lost', lost, 'events were lost: the kernel dropped them before they were read')
    this.#say(
      'skipped',
      skipped,
      'more connections were not printed; --rate prints more, --group-by counts all',
    )
    this.#say(
      'skipped-tables',
      tables,
      'tables were not printed: standard output is too slow; the next one has their counts',
    )
  }

  #say(event: 'lost' | 'skipped' | 'skipped-tables', count: number, text: string): void {
    const { request, io } = this.#session
    if (count === 0) return
    if (request.output === 'json') io.out(`${JSON.stringify({ time: rfc3339(Date.now()), event, count })}\n`)
    else io.err(`${count.toLocaleString('en-US')} ${text}\n`)
  }

  /** Prints the table of an interval; behind a reader that stalls, the next table has its counts too. */
  #printInterval(): void {
    if (this.#isBehind) this.#skippedTables++
    else this.#printGroups()
  }

  #printGroups(): void {
    const { request, io } = this.#session
    const { by, limit, output } = request
    const groups = this.#groups
    if (groups === undefined || by === undefined) return
    const all = groups.largest()
    const { begun, ended } = summedCounts([...all, groups.others])
    this.#total.new += begun
    this.#total.ended += ended
    const nowMs = systemClock.nowMs()
    const seconds = (nowMs - this.#intervalStartMs) / 1000
    this.#intervalStartMs = nowMs
    const counts = { by, of: 'events' } as const
    const shown = all.slice(0, limit)
    const hidden = summedCounts([...all.slice(limit), groups.others])
    const rest = { groups: all.length - shown.length, connections: hidden.begun, ended: hidden.ended }
    const hasRest = rest.connections + rest.ended > 0
    if (output === 'json') {
      for (const group of shown) io.out(`${JSON.stringify({ ...groupJson(group, counts), seconds })}\n`)
      if (hasRest) io.out(`${JSON.stringify({ time: rfc3339(Date.now()), event: 'rest', ...rest })}\n`)
    } else {
      io.out(`in ${seconds.toFixed(1)} s:\n${textOf(groupTable(shown, counts), io)}`)
      if (hasRest)
        io.out(
          `and ${rest.connections} new and ${rest.ended} ended connections in further lines; --limit prints more\n`,
        )
      io.out('\n')
    }
    groups.restart()
  }

  #summary(seconds: number): string {
    const { new: begun, ended, lost, skipped } = this.#total
    const counted = `${begun.toLocaleString('en-US')} new and ${ended.toLocaleString('en-US')} ended connections in ${seconds.toFixed(1)} s`
    return [
      counted,
      ...(skipped === 0 ? [] : [`${skipped.toLocaleString('en-US')} not printed`]),
      `${lost.toLocaleString('en-US')} events lost`,
    ].join(', ')
  }
}

function every(ms: number, run: () => void): Cancel {
  let cancel = systemClock.after(ms, function again() {
    run()
    cancel = systemClock.after(ms, again)
  })
  return () => cancel()
}

/** Reads the names again if Services changed; they stay as they are while the daemon is away. */
async function refreshNames(names: FlowNames): Promise<void> {
  try {
    const status = names.socket === undefined ? undefined : await askDaemon(names.socket, '/status')
    await names.refresh(fieldOf(status, 'synced'))
  } catch {
    // The next tick asks again.
  }
}

/** The event of a connection; `open` for an entry of the present table. */
type LineKind = FlowEventKind | 'open'

/** A connection as one line of JSON; fields that are not known are absent. */
export function flowJson(kind: LineKind, flow: NamedFlow, wallMs: number): object {
  const { protocol, service, client, clientPort, destination, destinationPort, volume } = flow
  return {
    time: rfc3339(wallMs),
    event: kind,
    protocol,
    service,
    client: formatIpPort(client, clientPort),
    destination: formatIpPort(destination, destinationPort),
    endpoint: endpointText(flow),
    ...volume,
    startedAt: flow.startNs === undefined ? undefined : rfc3339(Number(flow.startNs / NS_PER_MS)),
    durationMs: durationMs(flow, wallMs),
  }
}

const NS_PER_MS = 1_000_000n

/** Gives the time from start to end, or to now; undefined where the kernel keeps no times. */
function durationMs({ startNs, stopNs }: NamedFlow, wallMs: number): number | undefined {
  if (startNs === undefined) return undefined
  const endMs = stopNs === undefined ? wallMs : Number(stopNs / NS_PER_MS)
  return Math.max(0, Math.round(endMs - Number(startNs / NS_PER_MS)))
}

/** `10:21:03.123Z new   TCP 10.0.0.5:4000 > shop/cart:http (10.96.0.1:80) > 10.1.0.1:8080`. */
export function flowLine(kind: LineKind, flow: NamedFlow, wallMs: number): string {
  const { protocol, service, client, clientPort, destination, destinationPort } = flow
  const to = formatIpPort(destination, destinationPort)
  const endpoint = endpointText(flow)
  const text = [
    new Date(wallMs).toISOString().slice(11),
    kind.padEnd(5),
    protocol.padEnd(4),
    `${formatIpPort(client, clientPort)} > ${service === undefined ? to : `${service} (${to})`}`,
    ...(endpoint === undefined ? [] : [`> ${endpoint}`]),
    ...(flow.volume === undefined ? [] : [volumeText(flow.volume)]),
    ...(kind === 'ended' ? [timeText(durationMs(flow, wallMs))] : []),
  ]
  return oneLine(text.filter(part => part !== '').join(' '))
}

function volumeText({ packetsSent, packetsReceived, bytesSent, bytesReceived }: Volume): string {
  return `sent ${packetsSent} packets, ${bytesText(bytesSent)}; received ${packetsReceived}, ${bytesText(bytesReceived)}`
}

function timeText(ms: number | undefined): string {
  return ms === undefined ? '' : `in ${secondsText(ms)}`
}

/** The columns of the present table; those that the kernel does not fill are absent. */
function flowTable(flows: readonly NamedFlow[], wallMs: number) {
  const hasVolume = flows.some(({ volume }) => volume !== undefined)
  const hasTime = flows.some(({ startNs }) => startNs !== undefined)
  return {
    heading: [
      'SERVICE',
      'PROTOCOL',
      'CLIENT',
      'DESTINATION',
      'ENDPOINT',
      ...(hasVolume ? ['SENT', 'RECEIVED'] : []),
      ...(hasTime ? ['AGE'] : []),
    ],
    rows: flows.map(flow => {
      const age = durationMs(flow, wallMs)
      return [
        flow.service ?? '-',
        flow.protocol,
        formatIpPort(flow.client, flow.clientPort),
        formatIpPort(flow.destination, flow.destinationPort),
        endpointText(flow) ?? '-',
        ...(hasVolume ? volumeCells(flow.volume) : []),
        ...(hasTime ? [age === undefined ? '-' : secondsText(age)] : []),
      ]
    }),
  }
}

function volumeCells(volume: Volume | undefined): readonly string[] {
  return volume === undefined ? ['-', '-'] : [bytesText(volume.bytesSent), bytesText(volume.bytesReceived)]
}

interface GroupCounts {
  readonly by: Grouping
  /** `open`: the entries of the present table. */
  readonly of: 'open' | 'events'
}

function groupTable(groups: readonly FlowGroup[], { by, of }: GroupCounts) {
  const hasVolume = groups.some(({ volume }) => volume !== undefined)
  const others = by === 'service' ? [] : [by.toUpperCase()]
  return {
    heading: [
      'SERVICE',
      'PROTOCOL',
      ...others,
      ...(of === 'open' ? ['OPEN'] : ['NEW', 'ENDED']),
      ...(hasVolume ? ['SENT', 'RECEIVED'] : []),
    ],
    rows: groups.map(({ service, protocol, endpoint, client, begun, ended, volume }) => [
      service ?? '-',
      protocol,
      ...(by === 'service' ? [] : [endpoint ?? client ?? '-']),
      `${begun}`,
      ...(of === 'open' ? [] : [`${ended}`]),
      ...(hasVolume ? volumeCells(volume) : []),
    ]),
  }
}

function groupJson(group: FlowGroup, { of }: GroupCounts): object {
  const { protocol, service, endpoint, client, begun, ended, volume } = group
  const counts = of === 'open' ? { open: begun } : { new: begun, ended }
  return { time: rfc3339(Date.now()), protocol, service, endpoint, client, ...counts, ...volume }
}

function textOf({ heading, rows }: ReturnType<typeof groupTable>, { color }: Pick<Io, 'color'>): string {
  return tableText(heading, rows, { color })
}
