import { oneLine } from '../base/text.ts'

const GAP = '   '
const BOLD = ['\u001b[1m', '\u001b[22m'] as const

export interface TableOptions {
  readonly color: boolean
  /**
   * Maximum width of a column: a longer cell does not widen its column, but shifts the rest of its row. Unset: no
   * limit.
   */
  readonly widest?: number
}

/** Formats aligned columns with a heading, one line a row; cells from outside cannot break the lines. */
export function tableText(
  heading: readonly string[],
  rows: readonly (readonly string[])[],
  options: TableOptions,
): string {
  const clean = rows.map(row => row.map(oneLine))
  const { widest = Number.POSITIVE_INFINITY } = options
  const widths = heading.map((title, column) =>
    clean
      .map(row => row[column]?.length ?? 0)
      .filter(length => length <= widest)
      .reduce((width, length) => Math.max(width, length), title.length),
  )
  const line = (cells: readonly string[]) =>
    cells
      .map((cell, column) => cell.padEnd(column === cells.length - 1 ? 0 : (widths[column] ?? 0)))
      .join(GAP)
      .trimEnd()
  const [on, off] = options.color ? BOLD : ['', '']
  return [on + line(heading) + off, ...clean.map(line), ''].join('\n')
}
