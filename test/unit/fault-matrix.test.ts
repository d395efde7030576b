import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { expect, it } from 'vitest'

const TOP = fileURLToPath(new URL('../..', import.meta.url))

it('docs/fault-matrix.md names the tests that there are: node test/faults/matrix.mjs writes it anew', () => {
  const written = execFileSync(process.execPath, [`${TOP}test/faults/matrix.mjs`, '--print'], {
    encoding: 'utf8',
  })
  expect(readFileSync(`${TOP}docs/fault-matrix.md`, 'utf8')).toBe(written)
})
