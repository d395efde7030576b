import { fieldOf, listAt, numberAt, textAt } from '../base/plain-data.ts'
import { count } from '../base/text.ts'
import {
  ageText,
  ask,
  type Column,
  element,
  facts,
  filterField,
  numberText,
  replaceChildren,
  searchForm,
  svgElement,
  Table,
  type View,
} from './dom.ts'

export function overview(): View {
  const state = element('div')
  const commits = new Table<unknown>({
    caption: 'Last commits',
    empty: 'no commit yet',
    columns: COMMIT_COLUMNS,
  })
  return {
    node: element('div', {}, state, commits.node),
    everyMs: 2_000,
    async refresh() {
      const status = await ask('status')
      replaceChildren(state, facts(statusFacts(status)))
      commits.show(listAt(status, 'commits').toReversed())
    },
  }
}

function statusFacts(status: unknown): readonly (readonly [string, string])[] {
  const [snapshot, synced] = [numberAt(status, 'snapshot'), numberAt(status, 'synced')]
  const repairs = fieldOf(status, 'repairs')
  const passes = numberAt(repairs, 'passes') ?? 0
  const last = textAt(repairs, 'lastAt')
  return [
    ['Node', textAt(status, 'node')],
    ['Mode', textAt(status, 'mode') || 'none yet'],
    ['Version', textAt(status, 'version')],
    ['Started', textAt(status, 'startedAt')],
    ['Services', numberText(numberAt(status, 'services'))],
    ['Rejected by the kernel', numberText(numberAt(status, 'quarantined') || undefined)],
    [
      'Kernel',
      synced === snapshot ? 'holds everything' : `behind: holds ${synced ?? 'nothing'} of ${snapshot}`,
    ],
    ['Source', sourceText(fieldOf(status, 'source'))],
    ['Error', textAt(status, 'error')],
    [
      'Repairs',
      passes === 0
        ? 'none'
        : `${numberText(passes)}, ${numberText(numberAt(repairs, 'objects'))} objects, last ${last}`,
    ],
  ]
}

function sourceText(source: unknown): string {
  const missing = listAt(source, 'missing').map(String)
  const [trouble, silent] = [textAt(source, 'trouble'), numberAt(source, 'silentMs')]
  return [
    fieldOf(source, 'stale') === true ? 'objects of the last run' : missing.length === 0 ? 'complete' : '',
    missing.length === 0 ? '' : `lacks ${missing.join(', ')}`,
    trouble,
    silent === undefined ? '' : `last message ${ageText(silent)} ago`,
  ]
    .filter(text => text !== '')
    .join('; ')
}

/** The journal: the last commits, the newest first. */
export function receipts(): View {
  const table = new Table<unknown>({ caption: 'Receipts', empty: 'no commit yet', columns: COLUMNS })
  return {
    node: table.node,
    everyMs: 5_000,
    async refresh() {
      table.show(linesOf(await ask('receipts')).toReversed())
    },
  }
}

const COLUMNS: readonly Column<unknown>[] = [
  { title: 'Time', cell: line => textAt(line, 'time') },
  { title: 'Reason', cell: line => textAt(line, 'reason') },
  { title: 'Outcome', cell: line => textAt(line, 'outcome') },
  { title: 'Changes', isNumber: true, cell: line => numberText(numberAt(line, 'changes')) },
  { title: 'Bytes', isNumber: true, cell: line => numberText(numberAt(line, 'bytes')) },
  { title: 'Messages', isNumber: true, cell: line => numberText(numberAt(line, 'messages')) },
  { title: 'Took, ms', isNumber: true, cell: line => numberAt(line, 'durationMs')?.toFixed(1) ?? '' },
  { title: 'Rejected', cell: line => listAt(line, 'refusals').map(refusalText).join('; ') },
]

const COMMIT_COLUMNS = COLUMNS.filter(({ title }) => !['Bytes', 'Messages', 'Rejected'].includes(title))

function refusalText(refusal: unknown): string {
  return `${listAt(refusal, 'services').map(String).join(', ')}: ${textAt(refusal, 'error')}`
}

function linesOf(journal: unknown): readonly unknown[] {
  return Array.isArray(journal) ? journal : []
}

/** Drift and repairs among the last commits: a strip of them over time, and each in words. */
export function timeline(): View {
  const strip = element('div', { class: 'scroll strip' })
  const events = element('ol', { class: 'events' })
  const total = element('p', { 'aria-live': 'polite' })
  return {
    node: element('div', {}, total, strip, events),
    everyMs: 5_000,
    async refresh() {
      const [status, journal] = await Promise.all([ask('status'), ask('receipts')])
      const lines = linesOf(journal)
      const shown = lines.filter(line => kindOf(line) !== 'change').toReversed()
      const repairs = fieldOf(status, 'repairs')
      const passes = numberAt(repairs, 'passes') ?? 0
      const since = textAt(status, 'startedAt')
      replaceChildren(
        total,
        passes === 0
          ? `No repair since the start at ${since}.`
          : `${count(passes, 'repair')} of ${count(numberAt(repairs, 'objects') ?? 0, 'object')} since the start at ${since}.`,
      )
      replaceChildren(strip, stripOf(lines))
      replaceChildren(events, ...shown.map(eventItem))
    },
  }
}

type EventKind = 'start' | 'change' | 'drift' | 'failure'

/** Classifies a commit for a reader who searches for drift. Pure. */
function kindOf(line: unknown): EventKind {
  if (textAt(line, 'outcome') !== 'committed' || listAt(line, 'refusals').length > 0) return 'failure'
  const reason = textAt(line, 'reason')
  if (reason === 'drift') return 'drift'
  return reason === 'start' ? 'start' : 'change'
}

const WORDS: Readonly<Record<EventKind, string>> = {
  start: 'first sync',
  change: 'change',
  drift: 'repaired changes of another program',
  failure: 'not committed as a whole',
}

function eventItem(line: unknown): HTMLElement {
  const kind = kindOf(line)
  const time = textAt(line, 'time')
  const refusals = listAt(line, 'refusals').map(refusalText).join('; ')
  const changes = `${numberText(numberAt(line, 'changes'))} objects`
  const text = `${WORDS[kind]}: ${changes}, ${textAt(line, 'outcome')}${refusals === '' ? '' : `: ${refusals}`}`
  return element('li', { class: kind }, element('time', { datetime: time }, time), ` ${text}`)
}

const STRIP = { width: 600, height: 40, margin: 8 } as const

/** A mark for each commit, from the oldest at the left to the newest. The list has the same in words. */
function stripOf(lines: readonly unknown[]): SVGElement {
  const times = lines.map(line => Date.parse(textAt(line, 'time')))
  const [first = 0, last = 0] = [times[0], times.at(-1)]
  const { width, height, margin } = STRIP
  const marks = lines.map((line, index) => {
    const part = last === first ? 0.5 : ((times[index] ?? first) - first) / (last - first)
    const x = (margin + part * (width - 2 * margin)).toFixed(1)
    return svgElement('path', { d: `M${x} 6V34`, class: kindOf(line) })
  })
  const line = svgElement('path', { d: `M0 20H${width}`, class: 'axis' })
  return svgElement(
    'svg',
    { viewBox: `0 0 ${width} ${height}`, width: `${width}`, height: `${height}`, 'aria-hidden': 'true' },
    line,
    ...marks,
  )
}

type Pair = readonly [string, string]

/** The flags as they hold, and the configuration as kube-proxy's API type. */
export function configuration(): View {
  let wanted = ''
  let flags: readonly Pair[] = []
  let fields: readonly Pair[] = []
  const columns = [
    { title: 'Name', cell: ([name]: Pair) => name },
    { title: 'Value', cell: ([, value]: Pair) => value },
  ]
  const flagTable = new Table<Pair>({ caption: 'Flags', empty: 'no flag matches', columns })
  const fieldTable = new Table<Pair>({ caption: 'Configuration', empty: 'no field matches', columns })
  const show = () => {
    const isWanted = (pair: Pair) => pair.some(text => text.toLowerCase().includes(wanted))
    flagTable.show(flags.filter(isWanted))
    fieldTable.show(fields.filter(isWanted))
  }
  const tools = searchForm(
    'Configuration',
    filterField('Filter', text => {
      wanted = text.trim().toLowerCase()
      show()
    }),
  )
  return {
    node: element('div', {}, tools, flagTable.node, fieldTable.node),
    everyMs: 10_000,
    async refresh() {
      const config = await ask('config')
      flags = pairsOf(fieldOf(config, 'flags')).map(([name, value]): Pair => [`--${name}`, value])
      fields = pairsOf(fieldOf(config, 'configuration'))
      show()
    },
  }
}

function pairsOf(tree: unknown, path = ''): readonly Pair[] {
  if (typeof tree !== 'object' || tree === null || Array.isArray(tree))
    return [[path, typeof tree === 'string' ? tree : (JSON.stringify(tree) ?? '')]]
  return Object.entries(tree).flatMap(([name, value]) =>
    pairsOf(value, path === '' ? name : `${path}.${name}`),
  )
}
