import { type StatOptions, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it, vi } from 'vitest'
import { systemClock } from '../../../../src/base/clock.ts'
import { FileSource } from '../../../../src/source/file/file-source.ts'
import { temporaryFolder } from '../../../support/folder.ts'
import { patientMs } from '../../../support/patience.ts'

/** A file system of another machine, whose clock is slow: every file seems to have rested for long. */
const SLOW_NS = 10_000_000_000n
/** Looks that found the second content, by its length. */
const looks = vi.hoisted(() => ({ atSecond: 0 }))

vi.mock('node:fs/promises', async importOriginal => {
  const real = await importOriginal<typeof import('node:fs/promises')>()
  return {
    ...real,
    stat: async (path: string, options: StatOptions & { bigint: true }) => {
      const stats = await real.stat(path, options)
      if (path.endsWith('a.yaml') && stats.size === 9n) looks.atSecond++
      return Object.assign(stats, { mtimeNs: stats.mtimeNs - SLOW_NS, ctimeNs: stats.ctimeNs - SLOW_NS })
    },
  }
})

it('a change is read once a second look finds it, whatever the times of the file say', async () => {
  const path = join(temporaryFolder(), 'a.yaml')
  writeFileSync(path, 'zone: 1\n')
  const looksBefore: number[] = []
  const parseObject = (object: unknown) => {
    if (Object(object).zone === 22) looksBefore.push(looks.atSecond)
    return undefined
  }
  const source = new FileSource({ path, parseObject, clock: systemClock })
  const synced = vi.fn()
  await source.start({
    events: async () => undefined,
    synced,
    refusals: () => undefined,
    problem: () => undefined,
  })
  await vi.waitFor(() => expect(synced).toHaveBeenCalled(), patientMs(1_500))
  writeFileSync(path, 'zone: 22\n')
  await vi.waitFor(() => expect(looksBefore).toHaveLength(1), patientMs(1_500))
  await source.stop()
  // Each look at a path that is a file calls stat() twice, and the change may fall between the two.
  expect(looksBefore[0]).toBeGreaterThanOrEqual(3)
})
