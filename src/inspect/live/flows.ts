import { systemClock } from '../../base/clock.ts'
import { fieldOf } from '../../base/plain-data.ts'
import { oneLine, rfc3339 } from '../../base/text.ts'
import { EXIT_FINE, type Io, lent, tableText, writeWarnings } from '../../cli/io.ts'
import { ownCommand } from '../../cli/request.ts'
import { HERE } from '../../daemon/open.ts'
import { createConntrackClient } from '../../kernel/conntrack/client.ts'
import { decodeRecord, type FlowEventKind } from '../../kernel/conntrack/record.ts'
import type { ByteView } from '../../netlink/attribute.ts'
import type { Message } from '../../netlink/message.ts'
import { askDaemon } from '../admin-client.ts'
import { FlowGroups, type NamedFlow, namedFlow, summedCounts } from './flow-groups.ts'
import {
  type Columns,
  flowColumns,
  flowJson,
  flowLine,
  type GroupsOf,
  groupColumns,
  groupJson,
} from './flow-lines.ts'
import { FlowNames, type FlowSettings, FlowWatch, readFlowSettings } from './flow-reading.ts'
import { FLOWS_FLAGS, type FlowsRequest, readFlowsRequest, withPeers } from './flow-request.ts'
import { followFor } from './follow.ts'

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
    'REPLY is none, and NO REPLY counts, where a connection has met no reply (of groups with --follow: at its end).',
    'The command counts and names events that the kernel dropped.',
  ],
  flags: FLOWS_FLAGS,
  read: readFlowsRequest,
  run,
})

interface Session {
  readonly request: Awaited<ReturnType<typeof withPeers>>
  readonly names: FlowNames
  readonly settings: FlowSettings
  /** Undefined where each connection is printed. */
  readonly groups: FlowGroups | undefined
  readonly io: Io
}

async function run(asked: FlowsRequest, io: Io): Promise<number> {
  const settings = readFlowSettings()
  const request = await withPeers(asked)
  const { filter, by } = request
  const names = await FlowNames.open({ clock: systemClock, ...request })
  await names.require(filter.service)
  const notices = [names.notice ?? [], settings.notices].flat()
  for (const notice of notices) io.err(`kprobe flows: ${oneLine(notice)}\n`)
  const withVolume = settings.hasVolume
  const groups =
    by === undefined
      ? undefined
      : new FlowGroups({ names, filter, by, withVolume, repliesOf: request.follow ? 'ended' : 'new' })
  const session = { request, names, settings, groups, io }
  if (!request.follow) await listFlows(session)
  else if (settings.whyNoEvents === undefined) await new Follower(session).run()
  else throw new Error(settings.whyNoEvents)
  return EXIT_FINE
}

function flowOf({ request, names }: Session, view: ByteView, message: Message): NamedFlow | undefined {
  const record = decodeRecord(view, message)
  return record === undefined ? undefined : namedFlow(record, { names, filter: request.filter })
}

async function listFlows(session: Session): Promise<void> {
  const { request, groups, io } = session
  const { limit, output } = request
  const flows: NamedFlow[] = []
  let more = 0
  const take = (view: ByteView, message: Message) => {
    if (groups !== undefined) return groups.take('new', view, message)
    const flow = flowOf(session, view, message)
    if (flow === undefined) return
    if (flows.length < limit) flows.push(flow)
    else more++
  }
  const client = createConntrackClient({ openTransport: HERE.sockets.netfilter, clock: systemClock })
  const isWhole = await lent(client, () => client.dumpAll(take))
  const nowMs = Date.now()
  if (groups !== undefined) more = writeGroups(groups, session, 'open').hidden.begun
  else if (output === 'json') for (const flow of flows) writeJson(io, flowJson('open', flow, nowMs))
  else io.out(textOf(flowColumns(flows, nowMs), flows, io))
  await writeWarnings(
    [
      ...(more === 0
        ? []
        : [`left out ${more.toLocaleString('en-US')} more connections; --limit prints more lines`]),
      ...(isWhole ? [] : ['the table changed while it was read: some connections may be missing']),
    ],
    io,
  )
}

function writeJson(io: Io, line: object): void {
  io.out(`${JSON.stringify(line)}\n`)
}

function textOf<Row>(columns: Columns<Row>, rows: readonly Row[], { color }: Io): string {
  const cells = rows.map(row => columns.map(([, cell]) => cell(row)))
  return tableText(
    columns.map(([heading]) => heading),
    cells,
    { color },
  )
}

/** Prints the largest groups. Gives the counts of all, and of those that --limit hides. */
function writeGroups(groups: FlowGroups, { request, io }: Session, of: GroupsOf, seconds?: number) {
  const { by = 'service', limit, output } = request
  const all = groups.largest()
  const shown = all.slice(0, limit)
  if (output === 'json') for (const group of shown) writeJson(io, { ...groupJson(group, of), seconds })
  else {
    const title = seconds === undefined ? '' : `in ${seconds.toFixed(1)} s:\n`
    io.out(`${title}${textOf(groupColumns(shown, by, of), shown, io)}`)
  }
  return {
    sum: summedCounts([...all, groups.others]),
    hidden: summedCounts([...all.slice(limit), groups.others]),
    hiddenGroups: all.length - shown.length,
  }
}

const UNPRINTED = {
  lost: 'events were lost: the kernel dropped them before they were read',
  skipped: 'more connections were not printed; --rate prints more, --group-by counts all',
  'skipped-tables': 'tables were not printed: standard output is too slow; the next one has their counts',
} as const

/** Prints connections, or counts of them, until the duration is over or the process is asked to end. */
class Follower {
  readonly #session: Session
  readonly #total = { new: 0, ended: 0, lost: 0, skipped: 0 }
  #watch: FlowWatch | undefined
  #printedInTick = 0
  /** Connections and tables that were not printed since the last report. */
  #skipped = { lines: 0, tables: 0 }
  #ticks = 0
  readonly #startMs = systemClock.nowMs()
  #intervalStartMs = this.#startMs

  constructor(session: Session) {
    this.#session = session
  }

  async run(): Promise<void> {
    const { request, groups, io } = this.#session
    const take = groups === undefined ? this.#line.bind(this) : groups.take.bind(groups)
    const watch = new FlowWatch({ clock: systemClock, kinds: request.events, take })
    this.#watch = watch
    io.err('kprobe flows: following connections; Ctrl-C ends\n')
    const tables = groups !== undefined && request.intervalMs > 0
    await followFor(io, {
      durationMs: request.durationMs,
      timers: [
        // Time between two reports of what was lost or skipped, and the window of --rate.
        [1_000, () => this.#tick()],
        ...(tables ? [[request.intervalMs, () => this.#printInterval(groups)] as const] : []),
      ],
    })
    watch.stop()
    this.#report()
    if (groups !== undefined) this.#printGroups(groups)
    await watch.close()
    await io.outWritten()
    io.err(`kprobe flows: ${this.#summary()}\n`)
  }

  #line(kind: FlowEventKind, view: ByteView, message: Message): void {
    const { request, io } = this.#session
    const wallMs = Date.now()
    const flow = flowOf(this.#session, view, message)
    if (flow === undefined) return
    this.#total[kind]++
    if (this.#printedInTick >= request.rate || this.#isBehind) {
      this.#skipped.lines++
      return
    }
    this.#printedInTick++
    if (request.output === 'json') writeJson(io, flowJson(kind, flow, wallMs))
    else io.out(`${flowLine(kind, flow, wallMs)}\n`)
  }

  get #isBehind(): boolean {
    // A reader that is further behind than this loses lines and tables, which are counted.
    return this.#session.io.outBacklogBytes() > 8 << 20
  }

  #tick(): void {
    this.#printedInTick = 0
    if (!this.#isBehind) this.#report()
    // Ticks between two questions to the daemon whether Services changed.
    if (this.#ticks++ % 5 === 0) void refreshNames(this.#session.names)
  }

  #report(): void {
    const lost = this.#watch?.takeLost() ?? 0
    const { lines, tables } = this.#skipped
    this.#skipped = { lines: 0, tables: 0 }
    this.#total.lost += lost
    this.#total.skipped += lines
    this.#say('lost', lost)
    this.#say('skipped', lines)
    this.#say('skipped-tables', tables)
  }

  #say(event: keyof typeof UNPRINTED, count: number): void {
    const { request, io } = this.#session
    if (count === 0) return
    if (request.output === 'json') writeJson(io, { time: rfc3339(Date.now()), event, count })
    else io.err(`${count.toLocaleString('en-US')} ${UNPRINTED[event]}\n`)
  }

  /** Prints the table of an interval; behind a reader that stalls, the next table has its counts too. */
  #printInterval(groups: FlowGroups): void {
    if (this.#isBehind) this.#skipped.tables++
    else this.#printGroups(groups)
  }

  #printGroups(groups: FlowGroups): void {
    const { request, io } = this.#session
    const nowMs = systemClock.nowMs()
    const seconds = (nowMs - this.#intervalStartMs) / 1000
    this.#intervalStartMs = nowMs
    const { sum, hidden, hiddenGroups } = writeGroups(groups, this.#session, 'events', seconds)
    this.#total.new += sum.begun
    this.#total.ended += sum.ended
    const rest = { groups: hiddenGroups, connections: hidden.begun, ended: hidden.ended }
    const hasRest = hidden.begun + hidden.ended > 0
    if (request.output === 'json') {
      if (hasRest) writeJson(io, { time: rfc3339(Date.now()), event: 'rest', ...rest })
    } else {
      const text = `and ${hidden.begun} new and ${hidden.ended} ended connections in further lines; --limit prints more\n`
      io.out(`${hasRest ? text : ''}\n`)
    }
    groups.restart()
  }

  #summary(): string {
    const { new: begun, ended, lost, skipped } = this.#total
    const seconds = (systemClock.nowMs() - this.#startMs) / 1000
    const counted = `${begun.toLocaleString('en-US')} new and ${ended.toLocaleString('en-US')} ended connections in ${seconds.toFixed(1)} s`
    return [
      counted,
      ...(skipped === 0 ? [] : [`${skipped.toLocaleString('en-US')} not printed`]),
      `${lost.toLocaleString('en-US')} events lost`,
    ].join(', ')
  }
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
