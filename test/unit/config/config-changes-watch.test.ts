import { mkdir, rename, rm, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { FollowedText } from '../../../src/base/followed-text.ts'
import { CONFIG_BYTES_MAX, readFollowed } from '../../../src/config/config-document.ts'
import type { ConfigError } from '../../../src/config/flag.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { temporaryFolder } from '../../support/folder.ts'
import { eventually } from '../../support/patience.ts'

let folder: string
let clock: FakeClock
let watch: FollowedText<readonly ConfigError[]> | undefined
/** What the watch told, a word a call. */
let told: string[]

beforeEach(() => {
  folder = temporaryFolder()
  clock = new FakeClock()
  told = []
})

afterEach(() => watch?.stop())

/** Follows a file that said `text`; texts that begin with "bad" are refused. */
function follow(path: string, text = 'one'): void {
  watch = new FollowedText<readonly ConfigError[]>({
    clock,
    pollMs: 500,
    text,
    read: () => readFollowed(path),
    use(now) {
      if (now.startsWith('bad')) return [{ path, message: now }]
      told.push(`changed ${now}`)
      return undefined
    },
    failed: errors => void told.push(`failed ${errors.map(({ message }) => message).join()}`),
    recovered: () => void told.push('recovered'),
    unchanged: () => void told.push('unchanged'),
  })
}

/** Follows a file that has this text, and gives its path. */
async function followed(text: string): Promise<string> {
  const path = join(folder, 'c.yaml')
  await writeFile(path, text)
  follow(path)
  return path
}

/** Lets fake time pass, and the file system answer in between: it needs real time, of which there is a bound. */
async function pass(ms: number): Promise<void> {
  for (let left = ms; left > 0; left -= 100) {
    await clock.advance(Math.min(100, left))
    await eventually(() => clock.pending > 0)
    expect(clock.pending).toBe(1)
  }
}

it('reports a rewritten file, once', async () => {
  const path = await followed('one')
  await pass(2_000)
  expect(told).toEqual([])
  await writeFile(path, 'two')
  await pass(2_000)
  expect(told).toEqual(['changed two'])
})

it('follows the links of a ConfigMap when kubelet swaps them', async () => {
  await mkdir(join(folder, '..1'))
  await writeFile(join(folder, '..1', 'config.conf'), 'one')
  await symlink('..1', join(folder, '..data'))
  await symlink('..data/config.conf', join(folder, 'config.conf'))
  follow(join(folder, 'config.conf'))
  await pass(500)
  await mkdir(join(folder, '..2'))
  await writeFile(join(folder, '..2', 'config.conf'), 'two')
  await symlink('..2', join(folder, '..data_tmp'))
  await rename(join(folder, '..data_tmp'), join(folder, '..data'))
  await rm(join(folder, '..1'), { recursive: true })
  await pass(1_000)
  expect(told).toEqual(['changed two'])
})

it('waits until a file rests', async () => {
  const path = await followed('one')
  await pass(400)
  for (const text of ['bad half', 'bad three quarters', 'two']) {
    await writeFile(path, text)
    await pass(100)
  }
  await pass(500)
  expect(told).toEqual(['changed two'])
})

it('keeps the configuration in use when the file is invalid, and reports that once', async () => {
  const path = await followed('bad news')
  await pass(3_000)
  expect(told).toEqual(['failed bad news'])
  await writeFile(path, 'bad still')
  await pass(1_000)
  await writeFile(path, 'one')
  await pass(1_000)
  expect(told).toEqual(['failed bad news', 'failed bad still', 'recovered'])
})

it('reports what an invalid file was corrected to', async () => {
  const path = await followed('bad news')
  await pass(1_000)
  await writeFile(path, 'two')
  await pass(1_000)
  expect(told).toEqual(['failed bad news', 'changed two'])
})

it('keeps the configuration in use when the file is gone, and reports its return', async () => {
  const path = join(folder, 'c.yaml')
  follow(path)
  await pass(3_000)
  expect(told).toEqual(['failed cannot be read (ENOENT)'])
  await writeFile(path, 'one')
  await pass(1_000)
  expect(told.at(-1)).toBe('recovered')
})

it('refuses a folder, and a file that is too large', async () => {
  follow(folder)
  await pass(1_000)
  await watch?.stop()
  const path = join(folder, 'c.yaml')
  await writeFile(path, 'x'.repeat(CONFIG_BYTES_MAX + 1))
  follow(path)
  await pass(1_000)
  expect(told).toEqual([
    'failed is not a regular file: changes cannot be followed',
    `failed is larger than ${CONFIG_BYTES_MAX} bytes`,
  ])
})

it('looks at once when it is asked to', async () => {
  const path = await followed('one')
  await pass(100)
  await writeFile(path, 'two')
  watch?.hurry()
  await pass(200)
  expect(told).toEqual(['changed two'])
})

it('waits for a writer although it is asked to hurry', async () => {
  const path = await followed('one')
  await writeFile(path, 'half')
  await pass(500)
  watch?.hurry()
  await clock.advance(50)
  await writeFile(path, 'whole')
  await pass(300)
  expect(told).toEqual(['changed whole'])
})
