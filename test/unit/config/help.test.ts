import { expect, it } from 'vitest'
import { RUN_FLAGS } from '../../../src/config/flags.ts'
import { helpText } from '../../../src/config/help.ts'

const HELP = helpText({ usage: 'kprobe run [flags]', description: 'Runs.', flags: RUN_FLAGS })

it('names every flag of the table with its default', () => {
  for (const { name } of RUN_FLAGS) expect(HELP).toMatch(new RegExp(`^  (-\\w, )?--?${name}( |$)`, 'm'))
  expect(HELP).toContain('(default 20ms)')
})

it('fits a terminal of 100 columns', () => {
  for (const line of HELP.split('\n')) expect(line.length).toBeLessThanOrEqual(100)
})
