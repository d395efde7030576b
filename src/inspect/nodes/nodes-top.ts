import { secondsText } from '../../base/duration.ts'
import { failureText } from '../../base/errors.ts'
import { listAt, numberAt, textAt } from '../../base/plain-data.ts'
import { clockText, compareTexts } from '../../base/text.ts'
import { type Io, tableText } from '../../cli/io.ts'
import { isJson, type Json } from '../../model/fields.ts'
import { rateText } from '../live/live-table.ts'
import { type NodeResult, type PodAnswer, parsed, type Target } from './node-pods.ts'

/** A node's row; values that are not known, or that another command than `top` does not read, are undefined. */
export interface NodeRow extends NodeResult {
  /** The time of the node's answer, in RFC 3339. */
  readonly time?: string
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

/** Reads the answer of a node; fields of another shape are skipped, as a kprobe of another version may print them. */
export function topRow({ node, pod = '' }: Target, answer: PodAnswer, time: string): NodeRow {
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

const COLUMNS: readonly (readonly [heading: string, cell: (row: NodeRow) => string])[] = [
  ['NODE', ({ node }) => node],
  ['NEW/S', ({ perSecond }) => numberText(perSecond, rateText)],
  ['REJ/S', ({ rejectsPerSecond }) => numberText(rejectsPerSecond, rateText)],
  ['TABLE', row => numberText(tableShare(row), share => `${(share * 100).toFixed(1)} %`)],
  ['SOURCE', ({ sourceAgeMs }) => numberText(sourceAgeMs, secondsText)],
  ['COMMIT', ({ lastCommit }) => (lastCommit === undefined ? '-' : clockText(lastCommit))],
  ['REPAIRS', ({ repairs }) => numberText(repairs, String)],
  ['ERRORS', ({ result, detail }) => (result === 'unknown' ? `no answer: ${detail}` : detail)],
]

function numberText(value: number | undefined, format: (value: number) => string): string {
  return value === undefined ? '-' : format(value)
}

export function topTable(rows: readonly NodeRow[], io: Pick<Io, 'color'>): string {
  const heading = COLUMNS.map(([text]) => text)
  const cells = rows.map(row => COLUMNS.map(([, cell]) => cell(row)))
  return tableText(heading, cells, io)
}
