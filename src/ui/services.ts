import { listAt, numberAt, textAt } from '../base/plain-data.ts'
import { button, type Column, element, replaceChildren, Table } from './dom.ts'
import { ask, numberText, type View } from './view.ts'

/** Rows on show; the daemon finds them among any number of Services. */
const ROWS = 50
/** Time that a filter is typed in. */
const TYPING_MS = 200

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
  const tools = element(
    'form',
    { role: 'search', 'aria-label': 'Services' },
    filterField('Filter by name', filter => void go({ filter, offset: 0 })),
    checkbox('Only with problems', problems => void go({ problems, offset: 0 })),
  )
  tools.addEventListener('submit', event => event.preventDefault())
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

/** A field whose text is taken once the user pauses. */
export function filterField(label: string, take: (text: string) => void): HTMLElement {
  const input = element('input', { type: 'search', autocomplete: 'off', spellcheck: 'false' })
  let typing = 0
  input.addEventListener('input', () => {
    window.clearTimeout(typing)
    typing = window.setTimeout(() => take(input.value), TYPING_MS)
  })
  return element('label', {}, `${label} `, input)
}

export function checkbox(label: string, take: (isOn: boolean) => void): HTMLElement {
  const input = element('input', { type: 'checkbox' })
  input.addEventListener('change', () => take(input.checked))
  return element('label', {}, input, ` ${label}`)
}
