import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { expect, it } from 'vitest'

const TOP = fileURLToPath(new URL('../../../', import.meta.url))

it('docs/scale.md has what follows from its constants: node test/bench/scale-table.mjs writes it anew', () => {
  const args = [`${TOP}test/bench/scale-table.mjs`, '--print']
  const written = execFileSync(process.execPath, args, { encoding: 'utf8' })
  expect(readFileSync(`${TOP}docs/scale.md`, 'utf8')).toBe(written)
  expect(written).not.toMatch(/NaN|undefined|Infinity/)
})
