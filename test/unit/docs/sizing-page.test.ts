import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { expect, it } from 'vitest'
import { parse } from 'yaml'

const TOP = fileURLToPath(new URL('../../../', import.meta.url))
const written = (flag: string) =>
  execFileSync(process.execPath, [`${TOP}test/bench/sizing-table.mjs`, flag], { encoding: 'utf8' })
const CHART = 'deploy/helm/kprobe/sizing.yaml'

it('docs/sizing.md and the chart have what was measured: node test/bench/sizing-table.mjs writes them anew', () => {
  expect(readFileSync(`${TOP}docs/sizing.md`, 'utf8')).toBe(written('--print'))
  expect(readFileSync(TOP + CHART, 'utf8')).toBe(written('--chart'))
})

it('the first row with room is the smallest one', () => {
  interface Row {
    readonly mode: string
    readonly services: number
    readonly changes: number
    readonly cpu: string
    readonly memory: string
    readonly limit: string
  }
  const rows: readonly Row[] = parse(readFileSync(TOP + CHART, 'utf8')).rows
  expect(rows.length).toBeGreaterThan(10)
  for (const [index, row] of rows.entries()) {
    const before = rows[index - 1]
    expect([row.cpu, row.memory, row.limit].join(' ')).toMatch(/^\d+m \d+Mi \d+Mi$/)
    if (before?.mode !== row.mode) continue
    expect(row.services * 1_000 + row.changes).toBeGreaterThan(before.services * 1_000 + before.changes)
    expect(parseInt(row.limit, 10)).toBeGreaterThanOrEqual(parseInt(before.limit, 10))
  }
})
