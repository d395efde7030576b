import { secondsText } from '../base/duration.ts'
import { compareTexts, oneLine } from '../base/text.ts'
import {
  columnLines,
  firstView,
  type KeyResult,
  keyPressed,
  keysHelp,
  type LiveColumn,
  type Picture,
  type Size,
  scrollMax,
  type TableView,
  tablePicture,
} from './live-table.ts'

/** Connections of one Service, or of one of its endpoints. */
export interface TopRow {
  readonly service: string
  readonly protocol: string
  /** Empty for a whole Service. */
  readonly endpoint: string
  /** New connections a second in the last interval. */
  readonly perSecond: number
  /** New connections since the start of the command. */
  readonly total: number
  /** Entries of the connection table; undefined until it was read. */
  readonly open: number | undefined
}

/** Everything that `kprobe top` shows. Values that are not known are undefined, and are not shown. */
export interface TopState {
  readonly time: string
  readonly rows: readonly TopRow[]
  readonly perSecond: number
  /** Packets a second that kprobe's rules reject; undefined where the rules do not count them. */
  readonly rejectsPerSecond: number | undefined
  readonly table: { readonly entries: number; readonly entriesMax: number | undefined } | undefined
  /** The Services with most entries of the connection table, the largest first. */
  readonly largest: readonly { readonly service: string; readonly open: number }[]
  readonly daemon: DaemonState | undefined
  /** Events that the kernel dropped since the start. */
  readonly lost: number
  /** What keeps something from being shown. */
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
  readonly commits: readonly { readonly time: string; readonly reason: string; readonly changes: number }[]
}

export const SORTS = ['rate', 'total', 'open', 'name'] as const
type Sort = (typeof SORTS)[number]

/** How the user looks at it; the filter is for the Service or endpoint. */
export interface TopView extends TableView<Sort> {
  readonly by: 'service' | 'endpoint'
}

export const FIRST_VIEW: TopView = { by: 'service', ...firstView('rate') }

/** Sorts and filters rows; a Service's row adds up its endpoints. Gives the first `max` of them. */
export function rowsOf(state: Pick<TopState, 'rows'>, view: TopView, max = Number.POSITIVE_INFINITY) {
  return firstSorted(filteredRows(state, view), comparison(view), max)
}

function filteredRows({ rows }: Pick<TopState, 'rows'>, { by, filter }: TopView): readonly TopRow[] {
  const all = by === 'endpoint' ? rows : summed(rows)
  if (filter === '') return all
  return all.filter(({ service, endpoint }) => service.includes(filter) || endpoint.includes(filter))
}

function comparison(view: TopView): (a: TopRow, b: TopRow) => number {
  const byName = (a: TopRow, b: TopRow) =>
    compareTexts(a.service, b.service) || compareTexts(a.endpoint, b.endpoint)
  const bySort: Readonly<Record<Sort, (a: TopRow, b: TopRow) => number>> = {
    rate: (a, b) => b.perSecond - a.perSecond || b.total - a.total,
    total: (a, b) => b.total - a.total,
    open: (a, b) => (b.open ?? 0) - (a.open ?? 0),
    name: byName,
  }
  return (a, b) => bySort[view.sort](a, b) || byName(a, b)
}

/** Lists that are cut by less are sorted as a whole. */
const CUT_MIN = 8

/** Gives the first `max` items of the sorted list. To find the few that a screen shows takes far less than to sort all. */
function firstSorted<T>(items: readonly T[], compare: (a: T, b: T) => number, max: number): readonly T[] {
  if (max * CUT_MIN > items.length) return [...items].sort(compare).slice(0, max)
  const first: T[] = []
  for (const item of items) {
    const last = first[max - 1]
    if (last !== undefined && compare(item, last) >= 0) continue
    const at = first.findIndex(each => compare(item, each) < 0)
    first.splice(at < 0 ? first.length : at, 0, item)
    if (first.length > max) first.pop()
  }
  return first
}

function summed(rows: readonly TopRow[]): readonly TopRow[] {
  const sums: { -readonly [K in keyof TopRow]: TopRow[K] }[] = []
  // Names are keys as they are: to join them with the protocol would take longer than all the rest.
  const byProtocol = new Map<string, Map<string, (typeof sums)[number]>>()
  for (const row of rows) {
    const { protocol, service, perSecond, total, open } = row
    const byService = byProtocol.get(protocol) ?? new Map<string, (typeof sums)[number]>()
    if (byService.size === 0) byProtocol.set(protocol, byService)
    const sum = byService.get(service)
    if (sum === undefined) {
      const first = { protocol, service, endpoint: '', perSecond, total, open }
      byService.set(service, first)
      sums.push(first)
      continue
    }
    sum.perSecond += perSecond
    sum.total += total
    if (open !== undefined) sum.open = (sum.open ?? 0) + open
  }
  return sums
}

/** Lays everything out for a terminal. Pure. */
export function topPicture(state: TopState, view: TopView, size: Size): Picture {
  const rows = filteredRows(state, view)
  const content = {
    name: 'kprobe top',
    head: headLines(state),
    count: rows.length,
    lines: (offset: number, room: number) => {
      const shown = firstSorted(rows, comparison(view), offset + room)
      return tableLines(shown.slice(offset), view, size.columns)
    },
    help: HELP,
    keys: 'q quit  s sort  e endpoints',
  }
  return tablePicture(content, view, size)
}

/** How many rows can be scrolled away. Pure. */
export function offsetMaxOf(state: TopState, view: TopView, size: Size): number {
  return scrollMax({ head: headLines(state), count: filteredRows(state, view).length }, size)
}

/** Formats it for a pipe: all rows, in full width. */
export function topText(
  state: TopState,
  view: TopView,
  { limit, columns }: { readonly limit: number; readonly columns: number },
): string {
  const list = rowsOf(state, view)
  const more = list.length > limit ? [`and ${list.length - limit} more rows; --limit prints more`] : []
  const lines = [...headLines(state), ...tableLines(list.slice(0, limit), view, columns), ...more]
  return `${lines.map(line => line.trimEnd()).join('\n')}\n`
}

function headLines(state: TopState): readonly string[] {
  const { daemon, table, largest, lost, notices } = state
  const lines = [
    [
      `kprobe top ${state.time}`,
      ...(daemon === undefined
        ? []
        : [
            `${daemon.mode} mode`,
            ...(daemon.services === undefined ? [] : [`${daemon.services} Services`]),
            ...(daemon.sourceAgeMs === undefined ? [] : [`source ${secondsText(daemon.sourceAgeMs)} ago`]),
          ]),
    ],
    [
      `${rateText(state.perSecond)} new/s`,
      ...(state.rejectsPerSecond === undefined ? [] : [`${rateText(state.rejectsPerSecond)} rejects/s`]),
      ...(table === undefined ? [] : [`table ${tableUse(table)}`]),
    ],
    ...(largest.length === 0
      ? []
      : [[`most connections: ${largest.map(({ service, open }) => `${service} ${open}`).join(', ')}`]]),
    ...(daemon === undefined ? [] : [daemonTexts(daemon)]),
    ...(lost === 0 ? [] : [[`${lost} events lost: rates are too low`]]),
    ...notices.map(notice => [notice]),
  ]
  return lines.map(parts => oneLine(parts.join(' | ')))
}

function daemonTexts({ repairs, commits, quarantined, error }: DaemonState): readonly string[] {
  const last = commits.at(-1)
  return [
    ...(error === undefined ? [] : [`sync fails: ${error}`]),
    ...(quarantined === 0 ? [] : [`${quarantined} quarantined`]),
    `repairs ${repairs}`,
    ...(last === undefined
      ? []
      : [`last commit ${last.time.slice(11, 19)} (${last.reason}, ${last.changes} changes)`]),
  ]
}

function tableUse({ entries, entriesMax }: NonNullable<TopState['table']>): string {
  if (entriesMax === undefined || entriesMax === 0) return `${entries}`
  return `${entries} of ${entriesMax} (${((entries / entriesMax) * 100).toFixed(1)} %)`
}

export function rateText(perSecond: number): string {
  return perSecond >= 100 ? perSecond.toFixed(0) : perSecond.toFixed(1)
}

const NUMBER = 9
/** From here on there is room for the total and for the protocol. */
const WITH_TOTAL = 60
const ENDPOINT = 22
const GAP = 1

/** Formats a heading and a line for each row. */
function tableLines(rows: readonly TopRow[], { by, sort }: TopView, columns: number): readonly string[] {
  const isWide = columns >= WITH_TOTAL
  const numbers = isWide ? 3 : 2
  const rest = columns - numbers * (NUMBER + GAP) - (isWide ? 5 : 0)
  const endpoint = by === 'endpoint' ? Math.min(ENDPOINT, Math.floor(rest / 2)) : 0
  const name = rest - (endpoint === 0 ? 0 : endpoint + GAP)
  const number = { width: NUMBER, side: 'right' } as const
  const shown: readonly LiveColumn<TopRow, Sort>[] = [
    { heading: 'SERVICE', sort: 'name', width: name, cell: row => row.service },
    ...(endpoint === 0
      ? []
      : [{ heading: 'ENDPOINT', width: endpoint, cell: (row: TopRow) => row.endpoint }]),
    ...(isWide ? [{ heading: '', width: 4, cell: (row: TopRow) => row.protocol }] : []),
    { heading: 'NEW/S', sort: 'rate', ...number, cell: row => rateText(row.perSecond) },
    { heading: 'OPEN', sort: 'open', ...number, cell: ({ open }) => (open === undefined ? '-' : `${open}`) },
    ...(isWide
      ? [{ heading: 'TOTAL', sort: 'total', ...number, cell: (row: TopRow) => `${row.total}` } as const]
      : []),
  ]
  return columnLines(shown, rows, sort)
}

const HELP: readonly string[] = [
  'e           Services, or their endpoints',
  ...keysHelp(['new/s', 'total', 'open', 'name']),
]

/** Applies a key as a terminal sends it; at most `offsetMax` rows are scrolled away. Pure. */
export function topKeyPressed(view: TopView, key: string, offsetMax: number): KeyResult<TopView> {
  if (key === 'e' && view.pane !== 'filter')
    return { ...view, by: view.by === 'service' ? 'endpoint' : 'service', offset: 0 }
  return keyPressed(view, key, { sorts: SORTS, offsetMax })
}
