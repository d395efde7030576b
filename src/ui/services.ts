import { fieldOf, listAt, numberAt, textAt } from '../base/plain-data.ts'
import {
  ask,
  button,
  type Column,
  checkbox,
  element,
  facts,
  filterField,
  numberText,
  rateText,
  replaceChildren,
  searchForm,
  Table,
  type View,
} from './dom.ts'

/** Rows on show; the daemon finds them among any number of Services. */
const ROWS = 50

/** All Services in pages, by name or by endpoints, with what is wrong with them. */
export function services(): View {
  const asked = { filter: '', sort: 'name', problems: false, offset: 0 }
  const table = new Table<unknown>({
    caption: 'Services',
    empty: 'no Service matches',
    columns: COLUMNS,
    sorts: sort => go({ sort: sort === 'endpoints' && asked.sort === sort ? 'fewest' : sort, offset: 0 }),
  })
  const status = element('p', { 'aria-live': 'polite', class: 'status' })
  const previous = button('Previous', () => go({ offset: Math.max(0, asked.offset - ROWS) }))
  const next = button('Next', () => go({ offset: asked.offset + ROWS }))
  const problem = element('p', { role: 'alert' })
  let turn = 0
  async function refresh(): Promise<void> {
    const mine = ++turn
    const { filter, sort, problems, offset } = asked
    const query = { filter, sort, problems: problems ? '1' : '', offset: `${offset}`, limit: `${ROWS}` }
    const page = await ask('services', query)
    // The answer to an earlier question may come late.
    if (mine !== turn) return
    const rows = listAt(page, 'rows')
    const matching = numberAt(page, 'matching') ?? 0
    if (rows.length === 0 && offset > 0) return await go({ offset: 0 })
    table.show(
      rows,
      sort === 'fewest' ? { by: 'endpoints', isAscending: true } : { by: sort, isAscending: sort === 'name' },
    )
    replaceChildren(status, countText(offset, rows.length, { matching, total: numberAt(page, 'total') ?? 0 }))
    previous.disabled = offset === 0
    next.disabled = offset + rows.length >= matching
    problem.hidden = true
    table.node.hidden = false
  }
  /** Asks at once. The rows of another question are not shown under a failure. */
  function go(change: Partial<typeof asked>): Promise<void> {
    Object.assign(asked, change)
    return refresh().catch((error: unknown) => {
      problem.hidden = false
      table.node.hidden = true
      replaceChildren(problem, error instanceof Error ? error.message : String(error))
    })
  }
  problem.hidden = true
  const tools = searchForm(
    'Services',
    filterField('Filter by name', filter => void go({ filter, offset: 0 })),
    checkbox('Only with problems', problems => void go({ problems, offset: 0 })),
  )
  const pager = element('div', { class: 'pager' }, previous, status, next)
  return { node: element('div', {}, tools, problem, pager, table.node), everyMs: 5_000, refresh }
}

const COLUMNS: readonly Column<unknown>[] = [
  {
    title: 'Service',
    sort: 'name',
    cell: row => element('a', { href: pathLink(textAt(row, 'service')) }, textAt(row, 'service')),
  },
  { title: 'Type', cell: row => textAt(row, 'type') },
  { title: 'Served at', cell: frontendsText },
  {
    title: 'Endpoints',
    sort: 'endpoints',
    isNumber: true,
    cell: row => numberText(numberAt(row, 'endpoints')),
  },
  { title: 'On this node', isNumber: true, cell: row => numberText(numberAt(row, 'localEndpoints')) },
  { title: 'Problem', sort: 'problem', cell: row => textAt(row, 'problem') },
]

function frontendsText(row: unknown): string {
  const more = numberAt(row, 'moreFrontends') ?? 0
  const shown = listAt(row, 'frontends').map(String).join(', ')
  return more === 0 ? shown : `${shown} and ${numberText(more)} more`
}

function countText(
  offset: number,
  rows: number,
  { matching, total }: { readonly matching: number; readonly total: number },
): string {
  if (rows === 0) return `0 of ${numberText(total)}`
  const range = `${numberText(offset + 1)} to ${numberText(offset + rows)} of ${numberText(matching)}`
  return matching === total ? range : `${range} that match; ${numberText(total)} in all`
}

/** The place of one Service's path on the page. */
function pathLink(service: string): string {
  return `#services/${service.split('/').map(encodeURIComponent).join('/')}`
}

/** Shows new connections by Service or endpoint, as `kprobe top` does. The daemon counts only while this is open. */
export function rates(): View {
  const asked = { by: 'service', sort: 'rate', filter: '' }
  let isPaused = false
  /** The question whose answer is shown: a paused view shows the answer to a new one, too. */
  let shown = ''
  let spokenAt = Number.NEGATIVE_INFINITY
  const spoken = element('p', { class: 'spoken', 'aria-live': 'polite' })
  const head = element('div')
  const notices = element('ul')
  const table = new Table<unknown>({
    caption: 'New connections',
    empty: 'no connections to Services yet',
    columns: RATE_COLUMNS,
    sorts: sort => {
      asked.sort = sort
    },
  })
  const pause = button(
    'Pause',
    () => {
      isPaused = !isPaused
      pause.setAttribute('aria-pressed', `${isPaused}`)
    },
    { 'aria-pressed': 'false' },
  )
  const tools = searchForm(
    'Rates',
    filterField('Filter', filter => {
      asked.filter = filter
    }),
    checkbox('By endpoint', isOn => {
      asked.by = isOn ? 'endpoint' : 'service'
    }),
    pause,
  )
  return {
    node: element('div', {}, tools, spoken, head, notices, table.node),
    everyMs: 2_000,
    async refresh() {
      const question = JSON.stringify(asked)
      if (isPaused && question === shown) return
      const { sort } = asked
      const state = await ask('rates', asked)
      // Rows of another question would stand under the wrong heading.
      if (question !== JSON.stringify(asked) || (isPaused && question === shown)) return
      shown = question
      // A screen reader does not read each number.
      if (performance.now() - spokenAt >= 10_000) {
        spokenAt = performance.now()
        replaceChildren(spoken, `${rateText(numberAt(state, 'perSecond'))} new connections a second`)
      }
      replaceChildren(head, facts(rateFacts(state)))
      replaceChildren(notices, ...listAt(state, 'notices').map(text => element('li', {}, String(text))))
      table.show(listAt(state, 'rows'), { by: sort, isAscending: sort === 'name' })
    },
  }
}

const RATE_COLUMNS: readonly Column<unknown>[] = [
  { title: 'Service', sort: 'name', cell: row => textAt(row, 'service') || 'no Service' },
  { title: 'Endpoint', cell: row => textAt(row, 'endpoint') },
  { title: 'Protocol', cell: row => textAt(row, 'protocol') },
  { title: 'New a second', sort: 'rate', isNumber: true, cell: row => rateText(numberAt(row, 'perSecond')) },
  {
    title: 'New since opened',
    sort: 'total',
    isNumber: true,
    cell: row => numberText(numberAt(row, 'total')),
  },
  { title: 'Open', sort: 'open', isNumber: true, cell: row => numberText(numberAt(row, 'open')) },
]

function rateFacts(state: unknown): readonly (readonly [string, string])[] {
  const table = fieldOf(state, 'table')
  const [entries, most] = [numberAt(table, 'entries'), numberAt(table, 'entriesMax')]
  const lost = numberAt(state, 'lost') ?? 0
  const largest = listAt(state, 'largest').map(
    each => `${textAt(each, 'service')} ${numberText(numberAt(each, 'open'))}`,
  )
  return [
    ['New connections a second', rateText(numberAt(state, 'perSecond'))],
    ['Rejected packets a second', rateText(numberAt(state, 'rejectsPerSecond'))],
    [
      'Connection table',
      most === undefined ? numberText(entries) : `${numberText(entries)} of ${numberText(most)}`,
    ],
    ['Largest', largest.join(', ')],
    ['Events lost', lost === 0 ? '' : numberText(lost)],
  ]
}
