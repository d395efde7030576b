import type { StatOptions } from 'node:fs'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { systemClock } from '../../../../src/base/clock.ts'
import { problemText } from '../../../../src/source/source.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { eventually, patientMs } from '../../../support/patience.ts'
import { FollowedFiles, parseNamed, pause, yaml } from './followed-files.ts'

/** How the system differs from the one that the tests run on. */
const system = vi.hoisted(() => ({
  /** What open(2) answers instead of a file; as when the node is out of descriptors or its disk is ill. */
  refusal: '',
  attempts: 0,
  /** What stat(2) makes of the time of a file, in nanoseconds. */
  timeOf: (timeNs: bigint) => timeNs,
  /** Hears of the size of everything that is looked at. */
  looked: (_size: bigint): void => undefined,
}))

vi.mock('node:fs/promises', async importOriginal => {
  const real = await importOriginal<typeof import('node:fs/promises')>()
  return {
    ...real,
    open: (...args: Parameters<typeof real.open>) => {
      system.attempts++
      if (system.refusal === '') return real.open(...args)
      const { refusal: code } = system
      return Promise.reject(Object.assign(new Error(`${code}: open`), { code, syscall: 'open', errno: -1 }))
    },
    stat: async (path: string, options: StatOptions & { bigint: true }) => {
      const stats = await real.stat(path, options)
      system.looked(stats.size)
      const times = { mtimeNs: system.timeOf(stats.mtimeNs), ctimeNs: system.timeOf(stats.ctimeNs) }
      return Object.assign(stats, times)
    },
  }
})

let files: FollowedFiles

beforeEach(() => {
  files = new FollowedFiles()
  Object.assign(system, { refusal: '', timeOf: (timeNs: bigint) => timeNs, looked: () => undefined })
})

afterEach(() => files.source?.stop())

const write = (zone: string) => files.write('a.yaml', { a: zone })
const zoneBecomes = (zone: string) =>
  vi.waitFor(() => expect(files.objects.get('a')).toBe(zone), patientMs(1_500))

/** Begins to follow the folder, and calls back at each object that is read. */
function begin(parsed: (object: unknown) => void, clock = systemClock): Promise<void> {
  const parseObject: typeof parseNamed = object => {
    parsed(object)
    return parseNamed(object)
  }
  return files.begin({ parseObject, clock })
}

describe('FileSource, where times of files are coarse', () => {
  /** Linux before 6.13 gives files the time of the last timer tick, of 4 or 10 ms; longer here, to hit one surely. */
  const TICK_MS = 40
  /** A file gets the time of the kernel's last timer tick, up to 10 ms ago, which has to be in the same tick here. */
  const tickBegins = () => pause(TICK_MS - (Date.now() % TICK_MS) + 11)

  beforeEach(() => {
    system.timeOf = timeNs => timeNs - (timeNs % BigInt(TICK_MS * 1_000_000))
  })

  it.each([1, 2, 3])('reads a write in the same tick as the content that was read first (%i)', async () => {
    let rewritten = false
    await tickBegins()
    write('1')
    await begin(() => {
      // After the read has ended and before the tick does.
      if (!rewritten) setTimeout(write, 3, '2')
      rewritten = true
    })
    await zoneBecomes('2')
  })

  it('reads a write in the same tick as the content of a file that never rests', async () => {
    let content = 10
    await files.begin()
    // No pause is as long as the rest that a file is normally given before it is read.
    for (; content < 60; content++) {
      write(`${content}`)
      await pause(12)
    }
    await zoneBecomes('59')
  })

  it('reads a file that has rested without waiting', async () => {
    write('1')
    await pause(200)
    const delays: number[] = []
    let delaysBeforeRead: readonly number[] | undefined
    const after: typeof systemClock.after = (delayMs, run) => {
      delays.push(delayMs)
      return systemClock.after(delayMs, run)
    }
    await begin(
      () => {
        delaysBeforeRead = [...delays]
      },
      { ...systemClock, after },
    )
    await zoneBecomes('1')
    expect(delaysBeforeRead).toEqual([])
  })
})

it('FileSource reads a change once a second look finds it, on a file system whose clock is slow', async () => {
  // Every file seems to have rested for long.
  system.timeOf = timeNs => timeNs - 10_000_000_000n
  let looks = 0
  system.looked = size => {
    if (size === BigInt(yaml({ a: '22' }).length)) looks++
  }
  const looksBefore: number[] = []
  write('1')
  await begin(object => {
    if (Object(object).zone === 22) looksBefore.push(looks)
  })
  await zoneBecomes('1')
  write('22')
  await zoneBecomes('22')
  // The first look finds the change, and the second one that it has come to rest.
  expect(looksBefore[0]).toBeGreaterThanOrEqual(2)
})

describe('FileSource, while the system cannot open files', () => {
  let clock: FakeClock

  beforeEach(() => {
    clock = new FakeClock()
    write('1')
  })

  /** Lets time pass until it is so, but not while files are read: no timer is pending then. */
  function passUntil(isSo: () => boolean): Promise<number> {
    return eventually(async () => {
      if (clock.pending > 0) await clock.advance(100)
      return isSo()
    })
  }

  const said = () => files.problems.map(each => `${each.kind}: ${problemText(each)}`)
  const zones = () =>
    files.batches.flat().flatMap(event => (event.kind === 'Node' ? [event.value?.zone] : []))

  it.each(['EMFILE', 'EIO', 'ESTALE'])(
    'says %s once, tries again at each poll without a change of the file, and says when it can',
    async code => {
      await files.begin({ clock })
      await passUntil(() => zones().length === 1)
      system.refusal = code
      write('2')
      await passUntil(() => files.problems.length === 1)
      const before = system.attempts
      const beganMs = clock.nowMs()
      await passUntil(() => system.attempts >= before + 4)
      const polls = (clock.nowMs() - beganMs) / 250
      expect(system.attempts - before).toBeLessThanOrEqual(polls + 2)
      system.refusal = ''
      await passUntil(() => zones().length === 2)
      expect(zones()).toEqual(['1', '2'])
      expect(said()).toEqual([
        `failed: open: ${code}; the last valid content stays in use (1 object)`,
        'recovered: the file is read again',
      ])
    },
  )

  it('is complete once it could read what it could not at first', async () => {
    system.refusal = 'EMFILE'
    await files.begin({ clock })
    await passUntil(() => files.problems.length > 0)
    expect(said()).toEqual(['failed: open: EMFILE; kprobe waits until it has read every file once'])
    expect(files.synced).toBe(0)
    system.refusal = ''
    await passUntil(() => files.synced > 0)
    expect([files.synced, zones()]).toEqual([1, ['1']])
  })
})
