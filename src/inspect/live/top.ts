import { pause, systemClock } from '../../base/clock.ts'
import { secondsText } from '../../base/duration.ts'
import { clockText, count, oneLine } from '../../base/text.ts'
import { OUTPUTS, outputFlag, writeDocument } from '../../cli/document.ts'
import { EXIT_FINE, type Io, lent } from '../../cli/io.ts'
import { ownCommand } from '../../cli/request.ts'
import { type FlagReader, type FlagSpec, flags } from '../../config/flag.ts'
import { INSTANCE_FLAG, readInstanceName, readSocketPath } from '../../config/own-flags.ts'
import { readNamespace } from '../model-request.ts'
import { paletteOf, type Tone } from '../palette.ts'
import { NAMES_IN, readServiceFlag } from '../service-flag.ts'
import { FlowNames } from './flow-reading.ts'
import { SERVICE_FLAG, SOCKET_FLAG } from './flow-request.ts'
import {
  FIRST_VIEW,
  fitted,
  LiveTable,
  rateText,
  SORTS,
  type TableContent,
  type TopSort,
  type TopView,
} from './live-table.ts'
import { rowsOf, type TopRow } from './top-rows.ts'
import { type DaemonState, failedOverText, TopSampler, type TopState } from './top-sampler.ts'
import { isSilent, unansweredText } from './unanswered-rows.ts'

const LIMIT = { min: 1, max: 10_000, fallback: 50 } as const
const INTERVAL = { minMs: 200, fallbackMs: 1_000 } as const
/** Width of a table that goes to no terminal; $COLUMNS may have any value. */
const TEXT_COLUMNS = { min: 40, max: 1_000, fallback: 100 } as const

const FLAGS: readonly FlagSpec[] = [
  SERVICE_FLAG,
  NAMES_IN,
  ...flags({
    '--by WHAT = service': ['a row for each service or endpoint', { choices: ['service', 'endpoint'] }],
    '--sort-by COLUMN = rate': [SORTS.join(', '), { choices: SORTS }],
    '--interval DURATION = 1s': 'time between two pictures, at least 200ms',
    '--once': 'measure one interval, print the table, and exit; also where standard output is not a terminal',
    [`--limit N = ${LIMIT.fallback}`]: 'with --once: rows to print',
  }),
  SOCKET_FLAG,
  INSTANCE_FLAG,
  outputFlag(OUTPUTS),
]

export const command = ownCommand({
  name: 'top',
  description:
    'Shows a live table of Services and endpoints by new connections a second, with the use of the connection table,\n' +
    'rejects, and the state of the daemon. Reads the kernel and the daemon, and changes nothing.',
  details: [
    'Keys:',
    '  q         quit',
    '  s         sort by the next column',
    '  e         Services, or their endpoints',
    '  /         filter by a text in the name',
    '  arrows    scroll',
    '  ?         help',
    '',
    'Rejects and drops are packets that rules of kprobe refused, with the reason; their Service is known in iptables mode. OPEN is counted by a read of the connection table, at most every 5 s.',
    'NO REPLY is how many connections of the last minute met no reply, of all; it is there while an endpoint has such.',
  ],
  flags: FLAGS,
  read: readTopRequest,
  run,
})

type TopRequest = ReturnType<typeof readTopRequest>

function readTopRequest(reader: FlagReader, io: Pick<Io, 'suspend'>) {
  const output = reader.oneOf('output', OUTPUTS, 'text')
  const once = reader.bool('once') || io.suspend === undefined
  if (output !== 'text' && !once) reader.fail('--output', 'is for --once')
  if (reader.given('limit') && !once) reader.fail('--limit', 'is for --once')
  const namespace = readNamespace(reader)
  return {
    view: {
      ...FIRST_VIEW,
      by: reader.oneOf('by', ['service', 'endpoint'], 'service'),
      sort: reader.oneOf('sort-by', SORTS, 'rate'),
    },
    service: readServiceFlag(reader, namespace),
    intervalMs: reader.durationMs('interval', INTERVAL),
    once,
    limit: reader.integer('limit', LIMIT),
    output,
    adminSocket: readSocketPath(reader),
    proxyName: readInstanceName(reader),
  }
}

async function run(request: TopRequest, io: Io): Promise<number> {
  const names = await FlowNames.open({ clock: systemClock, ...request })
  // The table of a namespace that is still empty fills by itself.
  if (!request.service.endsWith('/')) await names.require(request.service)
  const { suspend } = io
  await lent(new TopSampler({ clock: systemClock, wallMs: Date.now, names, ...request }), sampler =>
    request.once || suspend === undefined
      ? printOnce(request, sampler, io)
      : showLive(request, sampler, { io, suspend }),
  )
  return EXIT_FINE
}

async function printOnce(
  { view, intervalMs, limit, output }: TopRequest,
  sampler: TopSampler,
  io: Io,
): Promise<void> {
  // Rates start from the first sample.
  await sampler.sample()
  await pause(systemClock, intervalMs, io.signal)
  const state = await sampler.sample()
  if (output !== 'text') await writeDocument({ ...state, rows: rowsOf(state, view, limit) }, output, io)
  else io.out(topText(state, view, { limit, columns: io.columns ?? TEXT_COLUMNS.fallback, color: io.color }))
}

async function showLive(
  { view, intervalMs }: TopRequest,
  sampler: TopSampler,
  terminal: { readonly io: Io; readonly suspend: () => void },
): Promise<void> {
  let state: TopState | undefined
  const live = new LiveTable({
    ...terminal,
    view,
    content: (at, columns) => state && topContent(state, at, columns),
  })
  await live.run(async stop => {
    while (!stop.aborted) {
      state = await sampler.sample()
      live.draw()
      await pause(systemClock, intervalMs, stop)
    }
  })
}

export function topContent(state: TopState, view: TopView, columns: number): TableContent {
  const rows = rowsOf(state, view)
  return {
    head: headLines(state),
    toneOf,
    count: rows.length,
    lines: (offset: number, room: number) => tableLines(rows.slice(offset, offset + room), view, columns),
  }
}

/** Formats it for a pipe: all rows, in full width. */
export function topText(
  state: TopState,
  view: TopView,
  {
    limit,
    columns,
    color = false,
  }: { readonly limit: number; readonly columns: number; readonly color?: boolean },
): string {
  const list = rowsOf(state, view)
  const more = list.length > limit ? [`and ${list.length - limit} more rows; --limit prints more`] : []
  const width = Math.min(Math.max(columns, TEXT_COLUMNS.min), TEXT_COLUMNS.max)
  const lines = [...headLines(state), ...tableLines(list.slice(0, limit), view, width), ...more]
  const palette = paletteOf({ color })
  const painted = lines.map(line => {
    const tone = toneOf(line)
    return tone === undefined ? line.trimEnd() : palette[tone](line.trimEnd())
  })
  return `${painted.join('\n')}\n`
}

/** Gives the meaning of a line: of one about a failure, and of a row most of whose connections had no reply. */
function toneOf(line: string): Tone | undefined {
  if (/ had no reply | sync fails: |^sync fails: /.test(line)) return 'bad'
  if (/ events lost: | quarantined \| |^out for a time: /.test(line)) return 'warning'
  const [, unanswered, connections] = / (\d+)\/(\d+)(?: |$)/.exec(line) ?? []
  return unanswered !== undefined && Number(unanswered) * 2 > Number(connections) ? 'bad' : undefined
}

function headLines(state: TopState): readonly string[] {
  const { daemon, table, largest, refused, lost, notices } = state
  const lines = [
    [
      `kprobe top ${clockText(state.time)}`,
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
      ...(state.dropsPerSecond === undefined ? [] : [`${rateText(state.dropsPerSecond)} drops/s`]),
      ...(table === undefined ? [] : [`table ${tableUse(table)}`]),
    ],
    ...(largest.length === 0
      ? []
      : [[`most connections: ${largest.map(({ service, open }) => `${service} ${open}`).join(', ')}`]]),
    ...(refused.length === 0 ? [] : [[`refused: ${refused.map(refusedText).join(', ')}`]]),
    ...unansweredLine(state.unanswered),
    ...(daemon === undefined || daemon.failedOver.length === 0
      ? []
      : [[`out for a time: ${failedOverText(daemon.failedOver)}`]]),
    ...(daemon === undefined ? [] : [daemonTexts(daemon)]),
    ...(lost === 0 ? [] : [[`${lost} events lost: rates are too low`]]),
    ...notices.map(notice => [notice]),
  ]
  return lines.map(parts => oneLine(parts.join(' | ')))
}

function refusedText({ reason, service, perSecond }: TopState['refused'][number]): string {
  return `${service === '' ? '' : `${service} `}${reason} ${rateText(perSecond)}/s`
}

/** Names the two endpoints in most trouble: more do not fit into the line. */
function unansweredLine(unanswered: TopState['unanswered']): readonly (readonly string[])[] {
  const silent = unanswered?.rows.filter(row => isSilent(row)) ?? []
  if (silent.length === 0) return unanswered?.limits === undefined ? [] : [[`no reply: ${unanswered.limits}`]]
  const more = silent.length > 2 ? [count(silent.length - 2, 'more endpoint')] : []
  const texts = silent.slice(0, 2).map(row => `${row.service}: ${unansweredText(row)}`)
  return [[...texts, ...more]]
}

function daemonTexts({ repairs, commits, quarantined, error }: DaemonState): readonly string[] {
  const last = commits.at(-1)
  return [
    ...(error === undefined ? [] : [`sync fails: ${error}`]),
    ...(quarantined === 0 ? [] : [`${quarantined} quarantined`]),
    `repairs ${repairs}`,
    ...(last === undefined
      ? []
      : [`last commit ${clockText(last.time)} (${last.reason}, ${last.changes} changes)`]),
  ]
}

function tableUse({ entries, entriesMax }: NonNullable<TopState['table']>): string {
  if (entriesMax === undefined || entriesMax === 0) return `${entries}`
  return `${entries} of ${entriesMax} (${((entries / entriesMax) * 100).toFixed(1)} %)`
}

interface Column {
  readonly heading: string
  /** The order of the rows that this column marks. */
  readonly sort?: TopSort
  readonly width: number
  readonly side?: 'right'
  readonly cell: (row: TopRow) => string
}

/** Formats a heading, which marks the column that the rows are sorted by, and a line for each row. */
function columnLines(columns: readonly Column[], rows: readonly TopRow[], sort: TopSort): readonly string[] {
  const line = (text: (column: Column) => string) =>
    columns.map(column => fitted(oneLine(text(column)), column.width, column.side)).join(' ')
  return [
    line(({ heading, sort: its }) => (its === sort ? `${heading}v` : heading)),
    ...rows.map(row => line(({ cell }) => cell(row))),
  ]
}

const NUMBER = 9
/** The total and the protocol have room from this width on. */
const WITH_TOTAL = 60
/** The Pods of endpoints, too, from this width on. */
const WITH_POD = 90
const ENDPOINT = 22
const GAP = 1

function tableLines(rows: readonly TopRow[], { by, sort }: TopView, columns: number): readonly string[] {
  const isWide = columns >= WITH_TOTAL
  const hasUnanswered = isWide && (sort === 'unanswered' || rows.some(row => row.unanswered !== undefined))
  const numbers = (isWide ? 3 : 2) + Number(hasUnanswered)
  const rest = columns - numbers * (NUMBER + GAP) - (isWide ? 5 : 0)
  const endpoint = by === 'endpoint' ? Math.min(ENDPOINT, Math.floor(rest / 2)) : 0
  const hasPods = endpoint > 0 && columns >= WITH_POD && rows.some(({ pod }) => pod !== undefined)
  const named = rest - (endpoint === 0 ? 0 : endpoint + GAP)
  const pod = hasPods ? Math.floor(named / 2) : 0
  const name = named - (hasPods ? pod + GAP : 0)
  const number = { width: NUMBER, side: 'right' } as const
  const shown: readonly Column[] = [
    { heading: 'SERVICE', sort: 'name', width: name, cell: row => row.service },
    ...(endpoint === 0
      ? []
      : [{ heading: 'ENDPOINT', width: endpoint, cell: (row: TopRow) => row.endpoint }]),
    ...(hasPods ? [{ heading: 'POD', width: pod, cell: (row: TopRow) => row.pod ?? '' }] : []),
    ...(isWide ? [{ heading: '', width: 4, cell: (row: TopRow) => row.protocol }] : []),
    { heading: 'NEW/S', sort: 'rate', ...number, cell: row => rateText(row.perSecond) },
    { heading: 'OPEN', sort: 'open', ...number, cell: ({ open }) => (open === undefined ? '-' : `${open}`) },
    ...(hasUnanswered
      ? [{ heading: 'NO REPLY', sort: 'unanswered', ...number, cell: unansweredCell } as const]
      : []),
    ...(isWide
      ? [{ heading: 'TOTAL', sort: 'total', ...number, cell: (row: TopRow) => `${row.total}` } as const]
      : []),
  ]
  return columnLines(shown, rows, sort)
}

/** `41/41`: connections of the last minute without a reply, of all. */
function unansweredCell({ unanswered: its }: TopRow): string {
  return its === undefined ? '-' : `${its.unanswered}/${its.connections}`
}
