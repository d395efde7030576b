import { existsSync, readFileSync, statSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { beforeEach, expect, it } from 'vitest'
import { writeWholeFile } from '../../../src/cli/io.ts'
import { temporaryFolder } from '../../support/folder.ts'

let folder: string

beforeEach(() => {
  folder = temporaryFolder()
})

it('makes a file, and replaces a longer and a shorter one', async () => {
  const path = join(folder, 'file')
  for (const text of ['first', 'the second one', 'third', '']) {
    await writeWholeFile(path, text)
    expect(readFileSync(path, 'utf8')).toBe(text)
  }
  expect(statSync(path).mode & 0o777).toBe(0o644 & ~process.umask())
})

it('keeps the mode of a file, and writes through a symbolic link', async () => {
  const [path, link] = [join(folder, 'file'), join(folder, 'link')]
  writeFileSync(path, 'before', { mode: 0o600 })
  symlinkSync(path, link)
  await writeWholeFile(link, 'after')
  expect(readFileSync(path, 'utf8')).toBe('after')
  expect(statSync(path).mode & 0o777).toBe(0o600)
})

it('writes to a device, and says what is wrong with it', async () => {
  await writeWholeFile('/dev/null', 'text')
  await expect(writeWholeFile('/dev/full', 'text')).rejects.toThrow('ENOSPC')
  expect(existsSync('/dev/full')).toBe(true)
})

it.each([
  ['a folder', '.', 'EISDIR'],
  ['in a folder that is not there', 'none/file', 'ENOENT'],
])('refuses a place that is %s', async (_, name, code) => {
  await expect(writeWholeFile(join(folder, name), 'text')).rejects.toThrow(code)
})
