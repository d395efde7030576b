import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { beforeEach, describe, expect, it } from 'vitest'
import { SavedStateError, STATE_BYTES_MAX, StateFile } from '../../../../src/daemon/saved/state-file.ts'
import { temporaryFolder } from '../../../support/folder.ts'

let parent: string
let folder: string
let file: StateFile

beforeEach(() => {
  parent = temporaryFolder()
  folder = join(parent, 'state')
  file = new StateFile(folder, '')
})

const chunks = (...texts: readonly string[]) => texts.map(text => Buffer.from(text))

async function reasonOf(work: Promise<unknown>): Promise<string> {
  try {
    await work
  } catch (error) {
    if (error instanceof SavedStateError) return error.reason
    throw error
  }
  return 'none'
}

describe('StateFile', () => {
  it('writes a file that only its owner may read, in a folder of the same kind, and nothing else', async () => {
    expect(await file.write(chunks('one ', 'two'))).toBe(7)
    expect(readFileSync(file.path, 'utf8')).toBe('one two')
    expect([statSync(folder).mode & 0o777, statSync(file.path).mode & 0o777]).toEqual([0o700, 0o600])
    expect(readdirSync(folder)).toEqual(['kprobe.state'])
  })

  it('reads what it wrote, and the time of the last confirmation', async () => {
    await file.write(chunks('text'))
    await file.confirm(1_700_000_000_000)
    const read = await file.read()
    expect(read?.bytes.toString()).toBe('text')
    expect(read?.confirmedWallMs).toBe(1_700_000_000_000)
  })

  it('has a file for each proxy', async () => {
    const other = new StateFile(folder, 'edge')
    await file.write(chunks('unnamed'))
    await other.write(chunks('named'))
    expect(readdirSync(folder).sort()).toEqual(['kprobe-edge.state', 'kprobe.state'])
  })

  it('has nothing to read where there is no folder or no file', async () => {
    expect(await file.read()).toBeUndefined()
    mkdirSync(folder, { mode: 0o700 })
    expect(await file.read()).toBeUndefined()
  })

  it('keeps the file when the next one fails in the middle, and leaves no draft', async () => {
    await file.write(chunks('before'))
    function* failing(): Generator<Buffer> {
      yield Buffer.from('half')
      throw new Error('no space')
    }
    await expect(file.write(failing())).rejects.toThrow('no space')
    expect(readFileSync(file.path, 'utf8')).toBe('before')
    expect(readdirSync(folder)).toEqual(['kprobe.state'])
  })

  it('replaces a draft that a killed process left', async () => {
    mkdirSync(folder, { mode: 0o700 })
    writeFileSync(`${file.path}.new`, 'half of', { mode: 0o666 })
    await file.write(chunks('whole'))
    expect(readFileSync(file.path, 'utf8')).toBe('whole')
    expect(statSync(file.path).mode & 0o777).toBe(0o600)
  })

  it('refuses a folder that others may write, for reading and for writing', async () => {
    await file.write(chunks('text'))
    for (const mode of [0o777, 0o1777, 0o720, 0o702]) {
      chmodSync(folder, mode)
      expect(await reasonOf(file.read())).toBe('permissions')
      expect(await reasonOf(file.write(chunks('more')))).toBe('permissions')
    }
    chmodSync(folder, 0o755)
    expect(await reasonOf(file.read())).toBe('none')
  })

  it('refuses a file that others may write, a link, a folder and a pipe in its place', async () => {
    await file.write(chunks('text'))
    chmodSync(file.path, 0o662)
    expect(await reasonOf(file.read())).toBe('permissions')
    rmSync(file.path)
    symlinkSync('/etc/passwd', file.path)
    expect(await reasonOf(file.read())).toBe('foreign')
    rmSync(file.path)
    mkdirSync(file.path)
    expect(await reasonOf(file.read())).toBe('foreign')
  })

  it('replaces a link instead of what it leads to', async () => {
    mkdirSync(folder, { mode: 0o700 })
    const target = join(parent, 'target')
    writeFileSync(target, 'theirs')
    symlinkSync(target, file.path)
    symlinkSync(target, `${file.path}.new`)
    await file.write(chunks('ours'))
    expect(readFileSync(target, 'utf8')).toBe('theirs')
    expect(readFileSync(file.path, 'utf8')).toBe('ours')
  })

  it('refuses a file that is too large without reading it', async () => {
    await file.write(chunks(''))
    truncateSync(file.path, STATE_BYTES_MAX + 1)
    expect(await reasonOf(file.read())).toBe('too-large')
  })

  it('names a folder that is a file, and one whose parent is missing', async () => {
    writeFileSync(folder, '')
    expect(await reasonOf(file.read())).toBe('permissions')
    const lost = new StateFile(join(parent, 'no', 'such'), '')
    expect(await reasonOf(lost.write(chunks('text')))).toBe('unreadable')
    expect(existsSync(join(parent, 'no'))).toBe(false)
  })
})
