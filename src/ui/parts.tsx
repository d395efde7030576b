import type { ComponentChildren } from 'preact'
import { createContext } from 'preact'
import { useContext, useEffect, useRef } from 'preact/hooks'
import { agoText } from './format.ts'

/** The daemon's time at its last answer, RFC 3339: ages are differences to it. */
export const Now = createContext('')

/** A time, relative; the absolute one is its title. */
export function Ago({ at }: { readonly at: string }) {
  const text = agoText(at, useContext(Now))
  return at === '' ? null : (
    <time dateTime={at} title={at}>
      {text === '' ? at : text}
    </time>
  )
}

export interface Column<Row> {
  readonly title: string
  readonly cell: (row: Row) => ComponentChildren
  readonly isNumber?: boolean
  /** The name of the order that the column's button requests; absent for none. */
  readonly sort?: string
  /** A narrow window leaves the column out. */
  readonly isWide?: boolean
}

interface TableProps<Row> {
  readonly caption: string
  readonly columns: readonly Column<Row>[]
  readonly rows: readonly Row[]
  readonly keyOf?: (row: Row) => string
  readonly empty: string
  readonly sorted?: string
  readonly sort?: (name: string) => void
}

/** A table that a keyboard can scroll, where it is wider than the window. The first cell of a row is its header. */
export function Table<Row>({ caption, columns, rows, keyOf, empty, sorted, sort }: TableProps<Row>) {
  const styleOf = ({ isNumber, isWide }: Column<Row>) =>
    [isNumber === true ? 'number' : '', isWide === true ? 'wide' : ''].join(' ').trim() || undefined
  const head = (column: Column<Row>) => (
    <th
      key={column.title}
      scope="col"
      class={styleOf(column)}
      aria-sort={column.sort === undefined || column.sort !== sorted ? undefined : orderOf(sorted)}
    >
      {column.sort === undefined || sort === undefined ? (
        column.title
      ) : (
        <button type="button" onClick={() => sort(column.sort ?? '')}>
          {column.title}
        </button>
      )}
    </th>
  )
  const cells = (row: Row) =>
    columns.map((column, index) =>
      index === 0 ? (
        <th key={column.title} scope="row" class={styleOf(column)}>
          {column.cell(row)}
        </th>
      ) : (
        <td key={column.title} class={styleOf(column)}>
          {column.cell(row)}
        </td>
      ),
    )
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls has to take the focus for that.
    <section class="scroll" aria-label={caption} tabIndex={0}>
      <table>
        <caption>{caption}</caption>
        <thead>
          <tr>{columns.map(head)}</tr>
        </thead>
        <tbody>
          {rows.map((row, index) => (
            <tr key={keyOf?.(row) ?? index}>{cells(row)}</tr>
          ))}
          {rows.length > 0 ? null : (
            <tr>
              <td colSpan={columns.length}>{empty}</td>
            </tr>
          )}
        </tbody>
      </table>
    </section>
  )
}

const orderOf = (sort: string) => (sort === 'name' || sort === 'fewest' ? 'ascending' : 'descending')

interface FilterProps {
  readonly label: string
  readonly value: string
  readonly placeholder?: string
  readonly take: (text: string) => void
}

/** A field that the key `/` leads to, and Enter out of to the first row. */
export function Filter({ label, value, placeholder, take }: FilterProps) {
  return (
    <label>
      {`${label} `}
      <input
        type="search"
        autocomplete="off"
        spellcheck={false}
        size={30}
        value={value}
        placeholder={placeholder}
        data-filter
        onInput={event => take(event.currentTarget.value)}
      />
    </label>
  )
}

interface CheckProps {
  readonly label: string
  readonly isOn: boolean
  readonly take: (isOn: boolean) => void
}

export function Check({ label, isOn, take }: CheckProps) {
  return (
    <label>
      <input type="checkbox" checked={isOn} onChange={event => take(event.currentTarget.checked)} />
      {` ${label}`}
    </label>
  )
}

/** A name that may break behind its namespace, and elsewhere only where a part is too long. */
export function Name({ text }: { readonly text: string }) {
  const parts = text.split(/(?<=[/:])/)
  return parts.flatMap((part, index) => (index === 0 ? [part] : [<wbr key={index} />, part]))
}

/** What keeps newer data from being shown. */
export function Trouble({ error }: { readonly error: Error | undefined }) {
  return error === undefined ? null : <p role="alert">{error.message}</p>
}

/** A sign beside the colour: its shape alone says the level. */
export function Sign({ level }: { readonly level: 'well' | 'warning' | 'error' }) {
  return (
    <span class={`sign ${level}`} role="img" aria-label={level}>
      {SIGNS[level]}
    </span>
  )
}

const SIGNS = { well: '✔', warning: '▲', error: '✖' } as const

/** Gives the width of an element in pixels through `take`, at first and after each change. */
export function useWidth(take: (width: number) => void) {
  const ref = useRef<HTMLElement>(null)
  useEffect(() => {
    const { current } = ref
    if (current === null) return
    const observer = new ResizeObserver(() => take(current.clientWidth))
    observer.observe(current)
    return () => observer.disconnect()
  }, [])
  return ref
}
