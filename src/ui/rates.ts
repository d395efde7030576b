import { fieldOf, listAt, numberAt, textAt } from '../base/plain-data.ts'
import { button, type Column, element, facts, replaceChildren, Table } from './dom.ts'
import { checkbox, filterField } from './services.ts'
import { ask, numberText, rateText, type View } from './view.ts'

/** A screen reader does not read each number. */
const SPOKEN_EVERY_MS = 10_000

/** What `kprobe top` shows: new connections by Service or endpoint. The daemon counts only while this is open. */
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
    columns: COLUMNS,
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
  const tools = element(
    'form',
    { role: 'search', 'aria-label': 'Rates' },
    filterField('Filter', filter => {
      asked.filter = filter
    }),
    checkbox('By endpoint', isOn => {
      asked.by = isOn ? 'endpoint' : 'service'
    }),
    pause,
  )
  tools.addEventListener('submit', event => event.preventDefault())
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
      if (performance.now() - spokenAt >= SPOKEN_EVERY_MS) {
        spokenAt = performance.now()
        replaceChildren(spoken, `${rateText(numberAt(state, 'perSecond'))} new connections a second`)
      }
      replaceChildren(head, facts(rateFacts(state)))
      replaceChildren(notices, ...listAt(state, 'notices').map(text => element('li', {}, String(text))))
      table.show(listAt(state, 'rows'), { by: sort, isAscending: sort === 'name' })
    },
  }
}

const COLUMNS: readonly Column<unknown>[] = [
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
