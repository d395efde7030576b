import { pause, systemClock } from '../../base/clock.ts'
import { secondsText } from '../../base/duration.ts'
import { failureText } from '../../base/errors.ts'
import { listAt, numberAt, textAt } from '../../base/plain-data.ts'
import { clockText, compareTexts, oneLine, rfc3339 } from '../../base/text.ts'
import { type Io, tableText } from '../../cli/io.ts'
import { isJson, type Json } from '../../model/fields.ts'
import {
  columnLines,
  firstView,
  keysHelp,
  type LiveColumn,
  LiveTable,
  rateText,
  type TableContent,
  type TableView,
} from '../live/live-table.ts'
import {
  type NodePods,
  type NodeResult,
  type PodAnswer,
  parsed,
  type Target,
  totalText,
} from './node-pods.ts'

/** A node's row in `kprobe top`. Values that are not known are undefined. */
interface NodeRow extends NodeResult {
  /** The time of the node's answer, in RFC 3339. */
  readonly time: string
  readonly mode?: string | undefined
  readonly perSecond?: number | undefined
  readonly rejectsPerSecond?: number | undefined
  readonly entries?: number | undefined
  readonly entriesMax?: number | undefined
  readonly sourceAgeMs?: number | undefined
  readonly lastCommit?: string | undefined
  readonly repairs?: number | undefined
}

export const NODE_SORTS = ['name', 'rate', 'rejects', 'table', 'source', 'repairs', 'errors'] as const
export type NodeSort = (typeof NODE_SORTS)[number]

export class NodesTop {
  readonly #pods: NodePods
  readonly #argv: readonly string[]
  readonly #rows = new Map<string, NodeRow>()
  /** Nodes of this round, and how many of them have answered. */
  progress = { nodes: 0, asked: 0 }

  /** `argv` is the command, which prints a document of `kprobe top --once`. */
  constructor(pods: NodePods, argv: readonly string[]) {
    this.#pods = pods
    this.#argv = argv
  }

  get rows(): readonly NodeRow[] {
    return [...this.#rows.values()]
  }

  async ask(signal: AbortSignal): Promise<void> {
    const targets = await this.#pods.targets(signal)
    const nodes = new Set(targets.map(({ node }) => node))
    for (const node of this.#rows.keys()) if (!nodes.has(node)) this.#rows.delete(node)
    this.progress = { nodes: targets.length, asked: 0 }
    // Maximum bytes that `kprobe top --once --limit=1` prints.
    const command = { argv: this.#argv, outputBytesMax: 256 * 1024, signal }
    await this.#pods.ask(targets, command, (target, answer) => {
      this.progress.asked++
      this.#rows.set(target.node, nodeRow(target, answer, rfc3339(Date.now())))
    })
  }
}

/** Reads the answer of a node; fields of another shape are skipped, as a kprobe of another version may print them. */
export function nodeRow({ node, pod = '' }: Target, answer: PodAnswer, time: string): NodeRow {
  const unknown = (detail: string): NodeRow => ({ node, pod, result: 'unknown', detail, time })
  if (answer.kind === 'unknown') return unknown(answer.why)
  let state: Json
  try {
    state = parsed(answer.stdout)
  } catch (error) {
    return unknown(failureText(error))
  }
  const daemon = isJson(state.daemon) ? state.daemon : undefined
  const failure = textAt(daemon, 'error')
  const quarantined = numberAt(daemon, 'quarantined') ?? 0
  const lost = numberAt(state, 'lost') ?? 0
  const errors = [
    ...(failure === '' ? [] : [`sync fails: ${failure}`]),
    ...(quarantined === 0 ? [] : [`${quarantined} quarantined`]),
  ]
  const notices = listAt(state, 'notices').map(String)
  return {
    node,
    pod,
    result: daemon === undefined || errors.length > 0 ? 'differs' : 'fine',
    detail: [...errors, ...notices, ...(lost === 0 ? [] : [`${lost} events lost`])].join('; '),
    time,
    mode: textAt(daemon, 'mode') || undefined,
    perSecond: numberAt(state, 'perSecond'),
    rejectsPerSecond: numberAt(state, 'rejectsPerSecond'),
    entries: numberAt(state.table, 'entries'),
    entriesMax: numberAt(state.table, 'entriesMax'),
    sourceAgeMs: numberAt(daemon, 'sourceAgeMs'),
    lastCommit: textAt(listAt(daemon, 'commits').at(-1), 'time') || undefined,
    repairs: numberAt(daemon, 'repairs'),
  }
}

const RESULTS: readonly NodeResult['result'][] = ['unknown', 'differs', 'fine']

/** Sorts by name, or by a column with the largest value first. */
export function sortedRows(rows: readonly NodeRow[], sort: NodeSort): readonly NodeRow[] {
  const values: Readonly<Record<NodeSort, (row: NodeRow) => number>> = {
    name: () => 0,
    rate: row => row.perSecond ?? -1,
    rejects: row => row.rejectsPerSecond ?? -1,
    table: row => tableShare(row) ?? -1,
    source: row => row.sourceAgeMs ?? -1,
    repairs: row => row.repairs ?? -1,
    errors: row => -RESULTS.indexOf(row.result),
  }
  const value = values[sort]
  return [...rows].sort((a, b) => value(b) - value(a) || compareTexts(a.node, b.node))
}

function tableShare({ entries, entriesMax }: NodeRow): number | undefined {
  return entries === undefined || !entriesMax ? undefined : entries / entriesMax
}

/** The columns after the node, with the width that a terminal gives them; the narrow ones fit into 40 columns. */
const COLUMNS: readonly (LiveColumn<NodeRow, NodeSort> & { readonly isNarrow?: true })[] = [
  {
    heading: 'NEW/S',
    sort: 'rate',
    width: 7,
    isNarrow: true,
    cell: ({ perSecond }) => numberText(perSecond, rateText),
  },
  {
    heading: 'REJ/S',
    sort: 'rejects',
    width: 6,
    cell: ({ rejectsPerSecond }) => numberText(rejectsPerSecond, rateText),
  },
  {
    heading: 'TABLE',
    sort: 'table',
    width: 7,
    isNarrow: true,
    cell: row => numberText(tableShare(row), share => `${(share * 100).toFixed(1)} %`),
  },
  {
    heading: 'SOURCE',
    sort: 'source',
    width: 7,
    cell: ({ sourceAgeMs }) => numberText(sourceAgeMs, secondsText),
  },
  {
    heading: 'COMMIT',
    width: 9,
    cell: ({ lastCommit }) => (lastCommit === undefined ? '-' : clockText(lastCommit)),
  },
  { heading: 'REPAIRS', sort: 'repairs', width: 8, cell: ({ repairs }) => numberText(repairs, String) },
]

function numberText(value: number | undefined, format: (value: number) => string): string {
  return value === undefined ? '-' : format(value)
}

function errorsOf({ result, detail }: NodeRow): string {
  return result === 'unknown' ? `no answer: ${detail}` : detail
}

/** Formats it for a pipe: all nodes, in full width. */
export function nodesText(rows: readonly NodeRow[], io: Pick<Io, 'color'>): string {
  const heading = ['NODE', ...COLUMNS.map(column => column.heading), 'ERRORS']
  const cells = rows.map(row => [row.node, ...COLUMNS.map(({ cell }) => cell(row)), errorsOf(row)])
  return `${tableText(heading, cells, io)}${totalText(rows)}\n`
}

type NodesView = TableView<NodeSort>
type NodesTable = LiveTable<NodeSort, NodesView>
type NodesState = Pick<NodesTop, 'rows' | 'progress'> & { readonly failure?: string | undefined }

/** Gives the table of a terminal. Pure. */
export function nodesContent(state: NodesState, view: NodesView, columns: number): TableContent {
  const shown = sortedRows(state.rows, view.sort).filter(({ node }) => node.includes(view.filter))
  return {
    name: 'kprobe nodes top',
    head: headLines(state),
    count: shown.length,
    lines: (offset: number, room: number) =>
      tableLines(shown.slice(offset, offset + room), view.sort, columns),
    help: keysHelp(NODE_SORTS),
    keys: 'q quit  s sort',
  }
}

function headLines({ rows, progress, failure }: NodesState): readonly string[] {
  const sum = (of: (row: NodeRow) => number | undefined) =>
    rateText(rows.reduce((total, row) => total + (of(row) ?? 0), 0))
  const { nodes, asked } = progress
  return [
    `kprobe nodes top | ${asked} of ${nodes} nodes queried in this round`,
    `${sum(row => row.perSecond)} new/s | ${sum(row => row.rejectsPerSecond)} rejects/s | ${totalText(rows)}`,
    ...(failure === undefined ? [] : [oneLine(failure)]),
  ]
}

/** All columns have room from this width on. */
const WIDE = 72
const NODE_MIN = 12

function tableLines(rows: readonly NodeRow[], sort: NodeSort, columns: number): readonly string[] {
  const shown = COLUMNS.filter(({ isNarrow }) => isNarrow || columns >= WIDE)
  const rest = columns - shown.reduce((width, column) => width + column.width + 1, 0) - 1
  const longest = rows.reduce((width, { node }) => Math.max(width, node.length), NODE_MIN)
  const name = Math.min(longest, Math.max(NODE_MIN, Math.floor(rest / 2)))
  return columnLines(
    [
      { heading: 'NODE', sort: 'name', width: name, cell: ({ node }) => node },
      ...shown.map(column => ({ ...column, side: 'right' }) as const),
      { heading: 'ERRORS', sort: 'errors', width: Math.max(0, rest - name), cell: errorsOf },
    ],
    rows,
    sort,
  )
}

interface ShowOptions {
  readonly io: Io
  readonly suspend: NonNullable<Io['suspend']>
  readonly sort: NodeSort
  /** Time between two rounds. */
  readonly intervalMs: number
}

/** Shows the table until the user quits. A round that fails is named above the table, and the next one begins. */
export async function showNodes(top: NodesTop, options: ShowOptions): Promise<void> {
  const { sort, intervalMs, ...terminal } = options
  let failure: string | undefined
  const live: NodesTable = new LiveTable({
    ...terminal,
    view: firstView(sort),
    sorts: NODE_SORTS,
    content: (view, columns) =>
      nodesContent({ rows: top.rows, progress: top.progress, failure }, view, columns),
  })
  await live.run(async stop => {
    while (!stop.aborted) {
      const over = new AbortController()
      const redrawn = redrawUntil(AbortSignal.any([over.signal, stop]), live)
      try {
        await top.ask(stop)
        failure = undefined
      } catch (error) {
        failure = failureText(error)
      }
      over.abort()
      await redrawn
      await pause(systemClock, intervalMs, stop)
    }
  })
}

async function redrawUntil(over: AbortSignal, live: NodesTable): Promise<void> {
  while (!over.aborted) {
    live.draw()
    // Time between two pictures while nodes answer.
    await pause(systemClock, 500, over)
  }
  live.draw()
}
