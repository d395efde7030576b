import { compareTexts } from '../../base/text.ts'
import type { FlowGroup } from './flow-groups.ts'
import type { TopSort, TopView } from './live-table.ts'
import type { UnansweredRow } from './unanswered-rows.ts'

export interface TopRow {
  readonly service: string
  readonly protocol: string
  /** Empty for a whole Service. */
  readonly endpoint: string
  /** `namespace/name` of the endpoint's Pod, where it is known. */
  readonly pod?: string
  /** New connections a second in the last interval. */
  readonly perSecond: number
  /** New connections since the start of the command. */
  readonly total: number
  /** Entries of the connection table; undefined until it was read. */
  readonly open: number | undefined
  /** Connections of the last minute without a reply, one-way ports left out, and all of the last minute; absent for none without a reply. */
  readonly unanswered?: { readonly unanswered: number; readonly connections: number } | undefined
}

interface Rows {
  readonly rows: readonly TopRow[]
}

/** Sorts and filters rows; a Service's row adds up its endpoints. Gives the first `max` of them. */
export function rowsOf(state: Rows, view: TopView, max = Number.POSITIVE_INFINITY): readonly TopRow[] {
  return filteredRows(state, view).toSorted(comparison(view)).slice(0, max)
}

function filteredRows({ rows }: Rows, { by, filter }: TopView): readonly TopRow[] {
  const all = by === 'endpoint' ? rows : summed(rows)
  if (filter === '') return all
  return all.filter(({ service, endpoint, pod = '' }) =>
    [service, endpoint, pod].some(text => text.includes(filter)),
  )
}

function comparison(view: TopView): (a: TopRow, b: TopRow) => number {
  const byName = (a: TopRow, b: TopRow) =>
    compareTexts(a.service, b.service) || compareTexts(a.endpoint, b.endpoint)
  const bySort: Readonly<Record<TopSort, (a: TopRow, b: TopRow) => number>> = {
    rate: (a, b) => b.perSecond - a.perSecond || b.total - a.total,
    total: (a, b) => b.total - a.total,
    open: (a, b) => (b.open ?? 0) - (a.open ?? 0),
    unanswered: (a, b) => (b.unanswered?.unanswered ?? 0) - (a.unanswered?.unanswered ?? 0),
    name: byName,
  }
  return (a, b) => bySort[view.sort](a, b) || byName(a, b)
}

function summed(rows: readonly TopRow[]): readonly TopRow[] {
  const sums = new Map<string, TopRow>()
  for (const { protocol, service, perSecond, total, open, unanswered } of rows) {
    const key = `${protocol} ${service}`
    const sum = sums.get(key) ?? { protocol, service, endpoint: '', perSecond: 0, total: 0, open: undefined }
    sums.set(key, {
      ...sum,
      perSecond: sum.perSecond + perSecond,
      total: sum.total + total,
      open: open === undefined ? sum.open : (sum.open ?? 0) + open,
      unanswered: addedCounts(sum.unanswered, unanswered),
    })
  }
  return [...sums.values()]
}

function addedCounts(a: TopRow['unanswered'], b: TopRow['unanswered']): TopRow['unanswered'] {
  if (a === undefined || b === undefined) return a ?? b
  return { unanswered: a.unanswered + b.unanswered, connections: a.connections + b.connections }
}

export const ROWS_MAX = 10_000

/** The rows by endpoint, a bounded number: those without connections make room for others. */
export class TopRows {
  readonly #max: number
  readonly #rows = new Map<string, TopRow>()
  #hasOpen = false
  #isCutByBegun = false
  #isCutByOpen = false

  constructor(max = ROWS_MAX) {
    this.#max = max
  }

  get all(): readonly TopRow[] {
    return [...this.#rows.values()]
  }

  /** An endpoint with connections had no room. */
  get isCut(): boolean {
    return this.#isCutByBegun || this.#isCutByOpen
  }

  takeBegun(groups: readonly FlowGroup[], seconds: number): void {
    for (const [key, row] of this.#rows) if (row.perSecond > 0) this.#rows.set(key, { ...row, perSecond: 0 })
    for (const group of groups) {
      const key = keyOf(group)
      const row = this.#rows.get(key) ?? { ...rowOf(group), open: this.#hasOpen ? 0 : undefined }
      this.#rows.set(key, { ...row, perSecond: group.begun / seconds, total: row.total + group.begun })
    }
    this.#isCutByBegun = this.#shrink()
  }

  takeOpen(groups: readonly FlowGroup[]): void {
    const open = new Map(groups.map(group => [keyOf(group), group.begun]))
    this.#hasOpen = true
    for (const [key, row] of this.#rows) {
      const now = open.get(key) ?? 0
      if (now !== row.open) this.#rows.set(key, { ...row, open: now })
    }
    for (const group of groups)
      if (!this.#rows.has(keyOf(group))) this.#rows.set(keyOf(group), { ...rowOf(group), open: group.begun })
    this.#isCutByOpen = this.#shrink()
  }

  takeUnanswered(rows: readonly UnansweredRow[]): void {
    for (const [key, row] of this.#rows)
      if (row.unanswered !== undefined) this.#rows.set(key, { ...row, unanswered: undefined })
    for (const its of rows) {
      const { unanswered, connections, isOneWay } = its
      if (isOneWay) continue
      const row = this.#rows.get(keyOf(its)) ?? { ...rowOf(its), open: this.#hasOpen ? 0 : undefined }
      this.#rows.set(keyOf(its), { ...row, unanswered: { unanswered, connections } })
    }
    this.#shrink()
  }

  /** Removes the rows beyond the maximum, the idle ones first. Gives whether one with connections was among them. */
  #shrink(): boolean {
    const excess = this.#rows.size - this.#max
    if (excess <= 0) return false
    const byUse = [...this.#rows].sort(
      ([, a], [, b]) => a.perSecond - b.perSecond || (a.open ?? 0) - (b.open ?? 0),
    )
    const gone = byUse.slice(0, excess)
    for (const [key] of gone) this.#rows.delete(key)
    return gone.some(([, { perSecond, open = 0 }]) => perSecond + open > 0)
  }
}

type Place = Pick<FlowGroup, 'protocol' | 'service' | 'endpoint'> & Partial<Pick<FlowGroup, 'pod'>>

function keyOf({ protocol, service, endpoint }: Place): string {
  return `${protocol} ${service} ${endpoint}`
}

function rowOf({ protocol, service = '', endpoint = '', pod }: Place): TopRow {
  const named = pod === undefined ? {} : { pod }
  return { service, protocol, endpoint, ...named, perSecond: 0, total: 0, open: undefined }
}
