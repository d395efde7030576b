import { readdirSync, utimesSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { temporaryFolder } from '../../support/folder.ts'
import { keepNewest } from '../../support/keep-newest.ts'

it('keeps the files that were written last, and no folder is no error', () => {
  const folder = temporaryFolder()
  for (const [age, name] of ['new', 'old', 'older'].entries()) {
    writeFileSync(join(folder, name), '')
    utimesSync(join(folder, name), 1_000 - age, 1_000 - age)
  }
  keepNewest(folder, 3)
  expect(readdirSync(folder)).toHaveLength(3)
  keepNewest(folder, 1)
  expect(readdirSync(folder)).toEqual(['new'])
  keepNewest(folder, 1)
})
