import { spawnSync } from 'node:child_process'

/** The mean of the two in the middle where there is no one there. */
export function median(values: readonly number[]): number {
  const isOdd = values.length % 2 === 1
  return isOdd
    ? quantile(values, 0.5)
    : (quantile(values, 0.5) + quantile(values, 0.5 - 1 / values.length)) / 2
}

export function quantile(values: readonly number[], q: number): number {
  const sorted = [...values].sort((a, b) => a - b)
  const value = sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))]
  if (value === undefined) throw new Error('no values')
  return value
}

/** Runs this benchmark's own bundle again in a fresh process and reads the JSON of its last line. */
export function childResult<T>(args: readonly string[]): T {
  const bundle = process.env.KPROBE_BENCH_BUNDLE
  if (bundle === undefined) throw new Error('start benchmarks with: npm run bench')
  const run = spawnSync(process.execPath, ['--expose-gc', bundle, ...args], {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  if (run.status !== 0) throw new Error(`${args.join(' ')} failed with status ${run.status}`)
  return JSON.parse(run.stdout.trimEnd().split('\n').at(-1) ?? '')
}

/** How a figure stands to the most it should be. */
export function goal(value: number, most: number): string {
  return value <= most ? `(goal ${most}: met)` : `(goal ${most}: MISSED)`
}

/** A table with right-aligned columns. */
export function print(title: string, rows: readonly Readonly<Record<string, string>>[]): void {
  const columns = Object.keys(rows[0] ?? {})
  const widths = columns.map(column =>
    Math.max(column.length, ...rows.map(row => (row[column] ?? '').length)),
  )
  const line = (cells: readonly string[]): string =>
    cells.map((cell, index) => cell.padStart(widths[index] ?? 0)).join('  ')
  console.log(`\n${title}\n${line(columns)}`)
  for (const row of rows) console.log(line(columns.map(column => row[column] ?? '')))
}
