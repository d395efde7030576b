import type { Clock } from '../base/clock.ts'
import { isOlder } from '../source/kube/object-index.ts'
import type { ApiKind } from '../source/kube/wire/tables.ts'
import type { Revisions } from '../source/source.ts'
import type { MessageOf } from '../wire/protobuf/table.ts'
import type { Collection } from './collection.ts'
import {
  type Goal,
  judgeNode,
  type KnownNode,
  NODE_STATES,
  type NodeState,
  PROGRAMMED_KINDS,
} from './judgement.ts'
import { decodeReport, type NodeReport, REPORT_SPACING_MS, SILENT_MS } from './node-report.ts'
import { ChangeTimes, ProgrammingLatencies, type ProgrammingLatency } from './programming.ts'
import type { status } from './schema.ts'

type RelayStatus = MessageOf<typeof status.RelayStatus>
type Kind = (typeof PROGRAMMED_KINDS)[number]

/** The part of the relay's state that reports are compared with. */
interface Reported {
  readonly cluster: string
  readonly isComplete: boolean
  readonly isStale: boolean
  readonly collections: Readonly<Record<ApiKind, Collection>>
}

interface ReportsOptions {
  readonly clock: Clock
  /** Milliseconds since 1970; absent where changes bear no times. */
  readonly wallMs?: (() => number) | undefined
  readonly state: Reported
}

interface ChangeOptions {
  /** Wall-clock milliseconds that the first of the changes bears. */
  readonly triggerMs?: number | undefined
  readonly by: 'watch' | 'list' | 'another-history'
}

const REPORT_REFUSALS = ['malformed', 'other-node', 'late', 'backwards', 'too-often', 'too-many'] as const
type ReportRefusal = (typeof REPORT_REFUSALS)[number]

interface Entry {
  report: NodeReport
  text: string
  heardMs: number
  /** Reports that may come at once. */
  budget: number
}

const NODES_MAX = 16_384
/** Reports that a node may send together, as after a pause of the network. */
const BURST_MAX = 8
/** Minimum time between two counts of nodes. */
const COUNT_MS = 1_000

/** The last reports of nodes about their kernels. Lost at a restart, and full again within one period of reports. */
export class NodeReports {
  readonly #options: ReportsOptions
  readonly #entries = new Map<string, Entry>()
  /** Names of them without a Node object, at the last check. */
  readonly #strangers = new Set<string>()
  /** Open streams of nodes that have reported there. */
  readonly #streams = new Map<string, number>()
  /** The sum of them by the user who reports there. */
  readonly #joins = new Map<string, number>()
  readonly #refused = new Map<ReportRefusal, number>()
  readonly #times: Readonly<Record<Kind, ChangeTimes>> = {
    Service: new ChangeTimes(),
    EndpointSlice: new ChangeTimes(),
  }
  readonly #latencies = new ProgrammingLatencies(latency => this.observed(latency))
  readonly #beganMs: number
  #countedMs = Number.NEGATIVE_INFINITY
  #reporting = 0
  #states: { readonly atMs: number; readonly states: ReadonlyMap<NodeState | 'updating', number> } | undefined
  /** Gets how long a change took to a share of the nodes. */
  observed: (latency: ProgrammingLatency) => void = () => undefined
  taken: (node: string, text: string) => void = () => undefined

  constructor(options: ReportsOptions) {
    this.#options = options
    this.#beganMs = options.clock.nowMs()
  }

  /** Reports that were not taken, since the start. */
  get refused(): ReadonlyMap<ReportRefusal, number> {
    return this.#refused
  }

  /** Counts a report of another node than the one whose certificate came with it, or under what is not a node name. */
  refuseOther(): void {
    this.#refuse('other-node')
  }

  /**
   * A node reports on a stream of a user, until it leaves. False where the streams of this user bear too many nodes: the node
   * then counts only where it reports by itself.
   */
  joined(name: string, user: string, isFirst: boolean): boolean {
    const joins = this.#joins.get(user) ?? 0
    // Nodes of the streams of one user: each may have four.
    if (!isFirst && joins >= 4 * NODES_MAX) return false
    this.#joins.set(user, joins + 1)
    this.#streams.set(name, (this.#streams.get(name) ?? 0) + 1)
    return true
  }

  left(name: string, user: string): void {
    decrease(this.#joins, user)
    decrease(this.#streams, name)
  }

  /** Takes the report of a node. Its cost does not depend on the number of nodes. */
  take(name: string, text: string): void {
    const nowMs = this.#options.clock.nowMs()
    const known = this.#entries.get(name)
    const report = decodeReport(text)
    const refusal = report === undefined ? 'malformed' : this.#whyNot(name, report, nowMs)
    if (report === undefined || refusal !== undefined) {
      this.#refuse(refusal ?? 'malformed')
      return
    }
    if (report.held !== undefined) this.#latencies.advanced(known?.report.held, report.held)
    if (known === undefined && this.#options.state.collections.Node.get(name) === undefined)
      this.#strangers.add(name)
    this.#entries.set(name, { report, text, heardMs: nowMs, budget: budgetOf(known, nowMs) })
    this.#count(nowMs)
    this.#latencies.settle(this.#reporting, nowMs)
    this.taken(name, text)
  }

  /** The relay has read changes of this kind, up to a revision. */
  changed(kind: Kind, revision: string, { triggerMs, by }: ChangeOptions): void {
    const { clock, wallMs } = this.#options
    const nowMs = clock.nowMs()
    const times = this.#times[kind]
    if (by === 'another-history' || isOlder(revision, times.changed)) {
      times.forget()
      this.#latencies.forget()
    }
    times.add(revision, nowMs)
    this.#count(nowMs)
    // The changes of a list have no known time.
    if (by !== 'watch' || this.#reporting === 0) return
    const ageMs = triggerMs === undefined || wallMs === undefined ? -1 : wallMs() - triggerMs
    // A time that a change bears counts if it is not longer ago than 10 minutes, by the wall clock of the relay: an older
    // one is of an earlier change, or of a clock that is wrong.
    const isUsable = ageMs >= 0 && ageMs < 600_000
    this.#latencies.changed(kind, revision, { nowMs, ...(isUsable ? { triggerMs: nowMs - ageMs } : {}) })
  }

  /** The revisions that every node should hold now. */
  get goal(): Goal {
    const { Service, EndpointSlice } = this.#times
    const revisions = { Service: Service.changed, EndpointSlice: EndpointSlice.changed }
    return { revisions, cluster: this.#options.state.cluster, service: undefined }
  }

  /** Nodes that exist; before the Node objects were read, those that report. */
  *nodes(): Generator<KnownNode & { readonly text: string }, undefined, undefined> {
    const nowMs = this.#options.clock.nowMs()
    for (const name of this.#nodeNames() ?? this.#entries.keys()) {
      const entry = this.#entries.get(name)
      const held = entry?.report.held
      yield {
        name,
        report: entry?.report,
        text: entry?.text ?? '',
        ageMs: nowMs - (entry?.heardMs ?? this.#beganMs),
        behindMs: entry === undefined ? 0 : this.#behindMs(held, nowMs),
        isElsewhere: held !== undefined && PROGRAMMED_KINDS.some(kind => this.#isElsewhere(kind, held[kind])),
      }
    }
  }

  /**
   * Nodes by state, judged by what the relay has now, once a second: a scrape of the metrics costs the readers little. Where
   * changes keep coming, nodes lack the newest ones all the time.
   */
  states(): ReadonlyMap<NodeState | 'updating', number> {
    const nowMs = this.#options.clock.nowMs()
    if (this.#states === undefined || nowMs - this.#states.atMs >= COUNT_MS)
      this.#states = { atMs: nowMs, states: this.#judged() }
    return this.#states.states
  }

  #judged(): ReadonlyMap<NodeState | 'updating', number> {
    const states = new Map<NodeState | 'updating', number>([['updating', 0]])
    for (const state of NODE_STATES) states.set(state, 0)
    const { goal } = this
    for (const node of this.nodes()) {
      const { state: judged } = judgeNode(node, goal)
      // For metrics, a node that has lacked a change for less than 10 s is not behind: while changes keep coming, it always
      // lacks one, and its reports are a second apart.
      const state = judged === 'behind' && node.behindMs < 10_000 ? 'updating' : judged
      states.set(state, (states.get(state) ?? 0) + 1)
    }
    return states
  }

  status(): RelayStatus {
    const nowMs = this.#options.clock.nowMs()
    const { cluster, isComplete, isStale } = this.#options.state
    const nodes = [...this.nodes()].map(({ name, text, ageMs, behindMs, isElsewhere }) => ({
      name,
      report: text,
      age_ms: Math.round(ageMs),
      behind_ms: Math.round(behindMs),
      elsewhere: isElsewhere,
    }))
    const kinds = PROGRAMMED_KINDS.map(kind => ({
      kind,
      revision: this.#options.state.collections[kind].revision ?? '',
      changed: this.#times[kind].changed,
    }))
    return {
      cluster,
      up_ms: Math.round(nowMs - this.#beganMs),
      serving: isComplete && !isStale,
      knows_nodes: this.#nodeNames() !== undefined,
      kinds,
      nodes,
    }
  }

  #refuse(why: ReportRefusal): void {
    this.#refused.set(why, (this.#refused.get(why) ?? 0) + 1)
  }

  /** Tests for a place, and makes one: a name without a Node object, which a trusted client can invent, gives way to a node that exists. */
  #hasPlaceFor(name: string, nowMs: number): boolean {
    if (this.#entries.size >= NODES_MAX) this.#count(nowMs)
    if (this.#entries.size < NODES_MAX) return true
    const { Node: nodes } = this.#options.state.collections
    if (nodes.get(name) === undefined) return false
    for (const other of this.#strangers) {
      if (nodes.get(other) === undefined) return this.#forget(other)
      this.#strangers.delete(other)
    }
    return false
  }

  #forget(name: string): boolean {
    this.#strangers.delete(name)
    return this.#entries.delete(name)
  }

  #whyNot(name: string, report: NodeReport, nowMs: number): ReportRefusal | undefined {
    const known = this.#entries.get(name)
    if (known === undefined) return this.#hasPlaceFor(name, nowMs) ? undefined : 'too-many'
    if (budgetOf(known, nowMs) < 0) return 'too-often'
    const { startedMs, number, held } = known.report
    const isOfBefore = report.startedMs < startedMs && nowMs - known.heardMs < SILENT_MS
    if (isOfBefore) return 'late'
    if (report.startedMs !== startedMs) return undefined
    if (report.number <= number) return 'late'
    // The kernel of one daemon goes back to an older revision only if the API server does.
    const isBack = PROGRAMMED_KINDS.some(
      kind =>
        isOlder(report.held?.[kind] ?? '', held?.[kind] ?? '') &&
        !this.#isElsewhere(kind, held?.[kind] ?? '') &&
        !isOlder(this.#options.state.collections[kind].revision ?? '', held?.[kind] ?? ''),
    )
    return isBack ? 'backwards' : undefined
  }

  /** Nodes that read here and report: others have their changes elsewhere. Those that are gone are forgotten. */
  #count(nowMs: number): void {
    if (nowMs - this.#countedMs < COUNT_MS) return
    this.#countedMs = nowMs
    const { Node: nodes } = this.#options.state.collections
    this.#reporting = 0
    for (const [name, { heardMs }] of this.#entries) {
      const isGone = nodes.revision !== undefined && nodes.get(name) === undefined
      const isSilent = nowMs - heardMs > SILENT_MS
      if (isGone) this.#strangers.add(name)
      if (isGone && isSilent) this.#forget(name)
      else if (!isGone && !isSilent && this.#streams.has(name)) this.#reporting++
    }
  }

  #behindMs(held: Revisions | undefined, nowMs: number): number {
    const since = PROGRAMMED_KINDS.map(kind => this.#times[kind].lackedSinceMs(held?.[kind] ?? ''))
    const first = Math.min(...since.map(ms => ms ?? Number.POSITIVE_INFINITY))
    return Number.isFinite(first) ? Math.max(1, nowMs - first) : 0
  }

  #isElsewhere(kind: Kind, revision: string): boolean {
    return this.#options.state.collections[kind].positionOf(revision) === 'another'
  }

  #nodeNames(): Iterable<string> | undefined {
    const { Node: nodes } = this.#options.state.collections
    return nodes.revision === undefined ? undefined : nodes.names()
  }
}

function decrease(counts: Map<string, number>, key: string): void {
  const rest = (counts.get(key) ?? 0) - 1
  if (rest > 0) counts.set(key, rest)
  else counts.delete(key)
}

function budgetOf(known: Entry | undefined, nowMs: number): number {
  if (known === undefined) return BURST_MAX
  return Math.min(BURST_MAX, known.budget + (nowMs - known.heardMs) / REPORT_SPACING_MS) - 1
}
