import { textAt } from '../base/plain-data.ts'
import { oneLine } from '../base/text.ts'

type Child = Node | string

type Attributes = Readonly<Record<string, string | undefined>>

/** Makes an element. Every text is shown as text, with its control and direction characters escaped. */
export function element<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  attributes: Attributes = {},
  ...children: readonly Child[]
): HTMLElementTagNameMap[Tag] {
  return filled(document.createElement(tag), attributes, children)
}

export function svgElement<Tag extends keyof SVGElementTagNameMap>(
  tag: Tag,
  attributes: Attributes = {},
  ...children: readonly Child[]
): SVGElementTagNameMap[Tag] {
  return filled(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children)
}

function filled<E extends Element>(made: E, attributes: Attributes, children: readonly Child[]): E {
  for (const [name, value] of Object.entries(attributes))
    if (value !== undefined) made.setAttribute(name, value)
  made.append(...cleaned(children))
  return made
}

export function replaceChildren(parent: Element, ...children: readonly Child[]): void {
  parent.replaceChildren(...cleaned(children))
}

function cleaned(children: readonly Child[]): readonly Child[] {
  return children.map(child => (typeof child === 'string' ? oneLine(child) : child))
}

export function button(text: string, press: () => void, attributes: Attributes = {}): HTMLButtonElement {
  const made = element('button', { type: 'button', ...attributes }, text)
  made.addEventListener('click', press)
  return made
}

export interface Column<Row> {
  readonly title: string
  readonly cell: (row: Row) => Child
  readonly isNumber?: boolean
  /** The name of the order that the column's button requests; absent for none. */
  readonly sort?: string
}

interface TableOptions<Row> {
  readonly caption: string
  readonly columns: readonly Column<Row>[]
  readonly empty: string
  readonly sorts?: (sort: string) => void
}

/** A table that its owner fills again and again. The first cell of a row is its header. */
export class Table<Row> {
  /** A region that a keyboard can scroll, where the table is wider than the window. */
  readonly node: HTMLElement
  readonly #options: TableOptions<Row>
  readonly #body = element('tbody')
  readonly #heads: ReadonlyMap<string, HTMLElement>

  constructor(options: TableOptions<Row>) {
    const { caption, columns, sorts } = options
    this.#options = options
    const heads = columns.map(column => ({ column, head: headOf(column, sorts) }))
    this.#heads = new Map(
      heads.flatMap(({ column: { sort }, head }) => (sort === undefined ? [] : [[sort, head]])),
    )
    const row = element('tr', {}, ...heads.map(({ head }) => head))
    const table = element('table', {}, element('caption', {}, caption), element('thead', {}, row), this.#body)
    this.node = element(
      'div',
      { class: 'scroll', role: 'region', 'aria-label': caption, tabindex: '0' },
      table,
    )
  }

  /** Shows these rows, and marks the header of the sorted column. */
  show(rows: readonly Row[], sorted?: { readonly by: string; readonly isAscending: boolean }): void {
    const { columns, empty } = this.#options
    for (const [name, head] of this.#heads)
      if (name === sorted?.by) head.setAttribute('aria-sort', sorted.isAscending ? 'ascending' : 'descending')
      else head.removeAttribute('aria-sort')
    const none = element('tr', {}, element('td', { colspan: `${columns.length}` }, empty))
    const focused = this.#body.querySelector('a:focus')?.getAttribute('href')
    this.#body.replaceChildren(...(rows.length === 0 ? [none] : rows.map(row => this.#row(row))))
    if (focused === undefined) return
    // Keyboard focus stays on its row.
    for (const link of this.#body.querySelectorAll('a'))
      if (link.getAttribute('href') === focused) link.focus()
  }

  #row(row: Row): HTMLElement {
    const cells = this.#options.columns.map(({ cell, isNumber }, index) => {
      const style = isNumber === true ? 'number' : undefined
      return index === 0
        ? element('th', { scope: 'row', class: style }, cell(row))
        : element('td', { class: style }, cell(row))
    })
    return element('tr', {}, ...cells)
  }
}

function headOf<Row>({ title, isNumber, sort }: Column<Row>, sorts?: (sort: string) => void): HTMLElement {
  const child = sort === undefined || sorts === undefined ? title : button(title, () => sorts(sort))
  return element('th', { scope: 'col', class: isNumber === true ? 'number' : undefined }, child)
}

/** Terms with their values; an empty value leaves its term out. */
export function facts(pairs: readonly (readonly [string, Child])[]): HTMLElement {
  const shown = pairs.filter(([, value]) => value !== '')
  return element(
    'dl',
    {},
    ...shown.map(([term, value]) => element('div', {}, element('dt', {}, term), element('dd', {}, value))),
  )
}

export function searchForm(label: string, ...fields: readonly Child[]): HTMLFormElement {
  const made = element('form', { role: 'search', 'aria-label': label }, ...fields)
  made.addEventListener('submit', event => event.preventDefault())
  return made
}

/** A field whose text is taken once the user pauses. */
export function filterField(label: string, take: (text: string) => void): HTMLElement {
  const input = element('input', { type: 'search', autocomplete: 'off', spellcheck: 'false' })
  let typing = 0
  input.addEventListener('input', () => {
    window.clearTimeout(typing)
    // Time that a filter is typed in.
    typing = window.setTimeout(() => take(input.value), 200)
  })
  return element('label', {}, `${label} `, input)
}

export function checkbox(label: string, take: (isOn: boolean) => void): HTMLElement {
  const input = element('input', { type: 'checkbox' })
  input.addEventListener('change', () => take(input.checked))
  return element('label', {}, input, ` ${label}`)
}

/** One part of the page. It is made when it is opened, and forgotten when another is. */
export interface View {
  readonly node: HTMLElement
  /** Time between two refreshes; undefined to refresh once. */
  readonly everyMs: number | undefined
  /** Reads its data and shows them. Rejects with a DaemonAway or NoAnswer. */
  refresh(): Promise<void>
}

/** `12,345`. */
export function numberText(value: number | undefined): string {
  return value === undefined ? '' : Math.round(value).toLocaleString('en-US')
}

/** A rate, with a digit behind the point where it is small. */
export function rateText(value: number | undefined): string {
  if (value === undefined) return ''
  return value > 0 && value < 10 ? value.toFixed(1) : numberText(value)
}

/** `2 min 5 s`. */
export function ageText(ms: number | undefined): string {
  if (ms === undefined) return ''
  const seconds = Math.round(ms / 1000)
  if (seconds < 60) return `${seconds} s`
  const minutes = Math.floor(seconds / 60)
  if (minutes < 60) return `${minutes} min ${seconds % 60} s`
  return `${numberText(Math.floor(minutes / 60))} h ${minutes % 60} min`
}

/** No answer within this time means that the daemon is away. */
const TIMEOUT_MS = 10_000

/** The daemon does not answer, or something else does. */
export class DaemonAway extends Error {}

/** The daemon's answer is that there is none, such as for a Service that is gone. */
export class NoAnswer extends Error {}

/** The daemon's answers whose body is a reason for people. */
const HAS_REASON: ReadonlySet<number> = new Set([422, 429])

export async function ask(page: string, query: Readonly<Record<string, string>> = {}): Promise<unknown> {
  const parameters = new URLSearchParams(query)
  const { status, body } = await answered(`data/${page}?${parameters}`)
  if (status === 200) return body
  if (HAS_REASON.has(status)) throw new NoAnswer(textAt(body, 'error'))
  throw new DaemonAway(`status ${status}`)
}

async function answered(url: string): Promise<{ readonly status: number; readonly body: unknown }> {
  try {
    const response = await fetch(url, { cache: 'no-store', signal: AbortSignal.timeout(TIMEOUT_MS) })
    const body: unknown = response.ok || HAS_REASON.has(response.status) ? await response.json() : undefined
    return { status: response.status, body }
  } catch (error) {
    throw new DaemonAway(error instanceof Error ? error.message : String(error))
  }
}
