import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { assert } from '../../src/base/errors.ts'

const PAGE = fileURLToPath(new URL('../../SECURITY.md', import.meta.url))

/** One row of a table in SECURITY.md: its first cell without backticks, and the others as they are. */
export interface Entry {
  readonly name: string
  readonly rest: readonly string[]
}

/** Rows of the table below a heading of SECURITY.md. */
export function securityEntries(heading: string): readonly Entry[] {
  const [, section] = readFileSync(PAGE, 'utf8').split(`### ${heading}\n`)
  assert(section !== undefined, `SECURITY.md has no heading ${heading}`)
  const [table = ''] = section.split(/\n##+ /)
  const rows = table
    .split('\n')
    .filter(line => line.startsWith('|'))
    .slice(2)
  return rows.map(row => {
    const [name = '', ...rest] = row
      .split('|')
      .slice(1, -1)
      .map(cell => cell.trim())
    return { name: name.replaceAll('`', ''), rest }
  })
}
