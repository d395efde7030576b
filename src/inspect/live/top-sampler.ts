import { type Clock, restMs } from '../../base/clock.ts'
import { errorText } from '../../base/errors.ts'
import { fieldOf, listAt, numberAt, textAt } from '../../base/plain-data.ts'
import { rfc3339 } from '../../base/text.ts'
import { lent } from '../../cli/io.ts'
import { HERE } from '../../daemon/open.ts'
import { type ConntrackReader, createConntrackClient } from '../../kernel/conntrack/client.ts'
import { isJson } from '../../model/fields.ts'
import { isOfService } from '../../modes/common/show.ts'
import { type RefusedCount, readRefused } from '../../modes/refused.ts'
import { Connection } from '../../netlink/connection.ts'
import { askDaemon } from '../admin-client.ts'
import { type FlowFilter, type FlowGroup, FlowGroups, summedCounts } from './flow-groups.ts'
import { type FlowNames, FlowWatch, readFlowSettings } from './flow-reading.ts'
import { ROWS_MAX, type TopRow, TopRows } from './top-rows.ts'
import { UnansweredReader } from './unanswered.ts'
import { type Unanswered, WORST_MAX } from './unanswered-rows.ts'

/** Everything that `kprobe top` shows. Values that are not known are undefined, and are not shown. */
export interface TopState {
  readonly time: string
  readonly rows: readonly TopRow[]
  readonly perSecond: number
  /** Packets a second that kprobe's rules reject; undefined until the second sample. */
  readonly rejectsPerSecond: number | undefined
  readonly dropsPerSecond: number | undefined
  /** The rules that refuse most packets: their reason, and the Service where they have one. */
  readonly refused: readonly (Omit<RefusedCount, 'packets'> & { readonly perSecond: number })[]
  readonly table: { readonly entries: number; readonly entriesMax: number | undefined } | undefined
  /** The Services with most entries of the connection table, the largest first. */
  readonly largest: readonly TableUser[]
  /** The worst endpoints; undefined until the table was read. */
  readonly unanswered: Unanswered | undefined
  readonly daemon: DaemonState | undefined
  readonly lost: number
  readonly notices: readonly string[]
}

export interface DaemonState {
  readonly mode: string
  readonly services: number | undefined
  readonly quarantined: number
  /** Time since the last message of the source. */
  readonly sourceAgeMs: number | undefined
  readonly error: string | undefined
  readonly repairs: number
  /** Endpoints that get no new connections because they left some without a reply; 50 at most. */
  readonly failedOver: readonly FailedOver[]
  readonly commits: readonly { readonly time: string; readonly reason: string; readonly changes: number }[]
}

interface FailedOver {
  readonly service: string
  readonly endpoint: string
}

/** How the sampler names Services; where `socket` is undefined, it reads no state of a daemon. */
export type TopNames = Pick<
  FlowNames,
  'socket' | 'notice' | 'version' | 'serviceOf' | 'podAt' | 'refresh' | 'noticesAbout'
>

interface TopSamplerOptions {
  readonly clock: Clock
  readonly wallMs: () => number
  readonly names: TopNames
  /** `namespace/name`, or `namespace/` for all Services of it; empty for all. */
  readonly service: string
  readonly proxyName: string | undefined
}

const NOTHING_REFUSED = { rejectsPerSecond: undefined, dropsPerSecond: undefined, refused: [] } as const

/** The part of the time that reading the connection table may take, whose cost grows with its entries. */
const TABLE_PACE = { share: 0.005, minMs: 5_000 } as const

/** Measures what `kprobe top` shows. It costs nothing between two samples but counting the new connections. */
export class TopSampler {
  readonly #options: TopSamplerOptions
  readonly #filter: FlowFilter
  readonly #begun: FlowGroups
  readonly #watch: FlowWatch | undefined
  readonly #conntrack: ConntrackReader
  readonly #nft: Connection
  readonly #rows = new TopRows()
  readonly #whyNoEvents: string | undefined
  readonly #unansweredReader: UnansweredReader
  #unanswered: Unanswered | undefined
  #largest: TopState['largest'] = []
  #namesVersion: number | undefined
  /** The notice about a Service that does not exist, for that version of the names. */
  #aboutService: readonly string[] = []
  #tableDueMs = Number.NEGATIVE_INFINITY
  #refused: { readonly packets: ReadonlyMap<string, number>; readonly atMs: number } | undefined
  #sampledMs: number
  #lost = 0

  /** Begins to count. Throws when the kernel denies its events. */
  constructor(options: TopSamplerOptions) {
    const { clock, service } = options
    this.#options = options
    this.#filter = { ...EVERY_SERVICE, service }
    this.#begun = this.#groups()
    this.#whyNoEvents = readFlowSettings().whyNoEvents
    this.#watch =
      this.#whyNoEvents === undefined
        ? new FlowWatch({ clock, kinds: ['new'], take: (...event) => this.#begun.take(...event) })
        : undefined
    this.#conntrack = createConntrackClient({ openTransport: HERE.sockets.netfilter, clock })
    this.#unansweredReader = new UnansweredReader({ conntrack: this.#conntrack, clock })
    this.#nft = new Connection({ transport: HERE.sockets.netfilter(), clock })
    this.#sampledMs = clock.nowMs()
  }

  #groups(): FlowGroups {
    return new FlowGroups({
      names: this.#options.names,
      filter: this.#filter,
      by: 'endpoint',
      withVolume: false,
    })
  }

  async sample(): Promise<TopState> {
    const { clock, wallMs, names, service } = this.#options
    const notices = [
      ...(names.notice === undefined ? [] : [names.notice]),
      ...(this.#whyNoEvents === undefined ? [] : [this.#whyNoEvents]),
    ]
    const seconds = Math.max(0.001, (clock.nowMs() - this.#sampledMs) / 1000)
    this.#sampledMs = clock.nowMs()
    const perSecond = this.#takeBegun(seconds)
    this.#lost += this.#watch?.takeLost() ?? 0
    const tried = async <T>(read: () => Promise<T>): Promise<T | undefined> => {
      try {
        return await read()
      } catch (error) {
        notices.push(errorText(error))
        return undefined
      }
    }
    const status = await tried(() => this.#status())
    if (names.socket !== undefined && status === undefined)
      notices.push(`no daemon answers at ${names.socket}`)
    await tried(() => names.refresh(status?.synced))
    if (this.#namesVersion !== names.version) {
      this.#namesVersion = names.version
      this.#aboutService = (await tried(() => names.noticesAbout(service))) ?? []
    }
    notices.push(...this.#aboutService)
    const table = await tried(() => this.#conntrack.statistics())
    await tried(() => this.#readTable())
    const refused = await tried(() => this.#readRefused())
    if (this.#rows.isCut)
      notices.push(
        `only ${ROWS_MAX.toLocaleString('en-US')} endpoints are shown; others have connections, too`,
      )
    return {
      time: rfc3339(wallMs()),
      rows: this.#rows.all,
      perSecond,
      ...(refused ?? NOTHING_REFUSED),
      table,
      largest: this.#largest,
      unanswered: this.#unanswered,
      daemon: status?.daemon,
      lost: this.#lost,
      notices,
    }
  }

  async close(): Promise<void> {
    this.#watch?.stop()
    await Promise.all([this.#watch?.close(), this.#conntrack.close(), this.#nft.close()])
  }

  /** Moves the new connections into the rows; gives their rate. */
  #takeBegun(seconds: number): number {
    const groups = this.#begun.largest()
    const { begun } = summedCounts([...groups, this.#begun.others])
    this.#rows.takeBegun(groups, seconds)
    this.#begun.restart()
    return begun / seconds
  }

  async #status(): Promise<{ readonly synced: unknown; readonly daemon: DaemonState } | undefined> {
    const { socket } = this.#options.names
    if (socket === undefined) return undefined
    const status = await askDaemon(socket, '/status')
    return isJson(status) ? { synced: status.synced, daemon: daemonState(status) } : undefined
  }

  async #readTable(): Promise<void> {
    const { clock } = this.#options
    const startMs = clock.nowMs()
    if (startMs < this.#tableDueMs) return
    const groups = this.#groups()
    await this.#conntrack.dumpAll((view, message) => groups.take('new', view, message))
    await this.#readUnanswered()
    const endMs = clock.nowMs()
    this.#tableDueMs = endMs + restMs(endMs - startMs, TABLE_PACE)
    const all = groups.largest()
    this.#rows.takeOpen(all)
    this.#largest = largestUsers(all).slice(0, LARGEST_SHOWN)
  }

  async #readUnanswered(): Promise<void> {
    const { names, service } = this.#options
    const { rows, ...rest } = await this.#unansweredReader.read(names)
    const its = rows.filter(row => isOfService([row.service], service))
    this.#rows.takeUnanswered(its)
    this.#unanswered = { ...rest, rows: its.slice(0, WORST_MAX) }
  }

  /** Gives the rates since the last time; undefined at the first time. */
  async #readRefused(): Promise<
    Pick<TopState, 'rejectsPerSecond' | 'dropsPerSecond' | 'refused'> | undefined
  > {
    const { clock, proxyName } = this.#options
    const counts = await readRefused(this.#nft, proxyName)
    const before = this.#refused
    const atMs = clock.nowMs()
    this.#refused = { packets: new Map(counts.map(each => [refusedKey(each), each.packets])), atMs }
    if (before === undefined) return undefined
    const seconds = Math.max(0.001, (atMs - before.atMs) / 1000)
    const rates = counts.map(({ packets, ...each }) => {
      const was = before.packets.get(refusedKey(each)) ?? 0
      // A counter starts again with its rule.
      return { ...each, perSecond: (packets < was ? packets : packets - was) / seconds }
    })
    const sumOf = (its: RefusedCount['verdict']) =>
      rates.reduce((sum, { verdict, perSecond }) => sum + (verdict === its ? perSecond : 0), 0)
    const refused = rates.filter(({ perSecond }) => perSecond > 0).sort((a, b) => b.perSecond - a.perSecond)
    // Five fit into a line.
    return { rejectsPerSecond: sumOf('reject'), dropsPerSecond: sumOf('drop'), refused: refused.slice(0, 5) }
  }
}

function refusedKey({ family, verdict, reason, service }: Omit<RefusedCount, 'packets'>): string {
  return `${family} ${verdict} ${reason} ${service}`
}

/** The entries of the connection table that belong to one Service. */
export interface TableUser {
  readonly service: string
  readonly open: number
}

/** So many fit into a line. */
const LARGEST_SHOWN = 5

/** Adds up the groups of a Service, the one with most connections first. */
function largestUsers(groups: readonly FlowGroup[]): readonly TableUser[] {
  const sums = new Map<string, number>()
  for (const { service = '', begun } of groups) sums.set(service, (sums.get(service) ?? 0) + begun)
  return [...sums].sort(([, a], [, b]) => b - a).map(([service, open]) => ({ service, open }))
}

/**
 * Reads the table once, for commands that end: the Services that use most of it, the largest first. Costs 2 µs an entry.
 * Rejects where conntrack cannot be read.
 */
export async function readLargestUsers(
  names: Pick<FlowNames, 'serviceOf' | 'podAt' | 'version'>,
  clock: Clock,
): Promise<readonly TableUser[]> {
  const conntrack = createConntrackClient({ openTransport: HERE.sockets.netfilter, clock })
  const groups = new FlowGroups({ names, filter: EVERY_SERVICE, by: 'service', withVolume: false })
  await lent(conntrack, () => conntrack.dumpAll((view, message) => groups.take('new', view, message)))
  return largestUsers(groups.largest()).slice(0, LARGEST_SHOWN)
}

/** Takes all connections to Services. */
export const EVERY_SERVICE: FlowFilter = {
  service: '',
  from: [],
  to: undefined,
  endpoint: undefined,
  protocol: undefined,
  all: false,
}

/** Reads the daemon's page /status, and skips fields of another shape. */
export function daemonState(status: unknown): DaemonState {
  const error = textAt(status, 'error')
  return {
    mode: textAt(status, 'mode') || 'no',
    services: numberAt(status, 'services'),
    quarantined: numberAt(status, 'quarantined') ?? 0,
    sourceAgeMs: numberAt(fieldOf(status, 'source'), 'silentMs'),
    error: error === '' ? undefined : error,
    repairs: numberAt(fieldOf(status, 'repairs'), 'passes') ?? 0,
    failedOver: failedOverIn(status),
    commits: listAt(status, 'commits')
      .filter(isJson)
      .map(commit => ({
        time: textAt(commit, 'time'),
        reason: textAt(commit, 'reason'),
        changes: numberAt(commit, 'changes') ?? 0,
      })),
  }
}

/** Reads the endpoints that the page /status of a daemon lists as out. */
export function failedOverIn(status: unknown): readonly FailedOver[] {
  return listAt(status, 'failedOver').map(each => ({
    service: textAt(each, 'service'),
    endpoint: textAt(each, 'endpoint'),
  }))
}

/** Names the first three. */
export function failedOverText(all: readonly FailedOver[]): string {
  const named = all.slice(0, 3).map(({ service, endpoint }) => `${service} ${endpoint}`)
  return `${named.join(', ')}${all.length > named.length ? ', ...' : ''}`
}
