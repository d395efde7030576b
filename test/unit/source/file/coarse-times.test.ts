import { type StatOptions, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { systemClock } from '../../../../src/base/clock.ts'
import type { SourceEvent } from '../../../../src/model/snapshot.ts'
import { FileSource } from '../../../../src/source/file/file-source.ts'
import { temporaryFolder } from '../../../support/folder.ts'
import { patientMs } from '../../../support/patience.ts'

/** Linux before 6.13 gives files the time of the last timer tick, of 4 or 10 ms; longer here, to hit one surely. */
const TICK_MS = 40

vi.mock('node:fs/promises', async importOriginal => {
  const real = await importOriginal<typeof import('node:fs/promises')>()
  const coarse = (timeNs: bigint) => timeNs - (timeNs % BigInt(TICK_MS * 1_000_000))
  return {
    ...real,
    stat: async (path: string, options: StatOptions & { bigint: true }) => {
      const stats = await real.stat(path, options)
      return Object.assign(stats, { mtimeNs: coarse(stats.mtimeNs), ctimeNs: coarse(stats.ctimeNs) })
    },
  }
})

let folder: string
let source: FileSource | undefined
let zone: string

beforeEach(() => {
  folder = temporaryFolder()
  zone = ''
})

afterEach(async () => {
  await source?.stop()
})

const write = (content: number) => writeFileSync(join(folder, 'a.yaml'), `zone: ${content}\n`)
const rest = (ms: number) => new Promise(resolve => setTimeout(resolve, ms))
/** A file gets the time of the kernel's last timer tick, up to 10 ms ago, which has to be in the same tick here. */
const tickBegins = () => rest(TICK_MS - (Date.now() % TICK_MS) + 11)

async function begin(parsed: () => void, clock = systemClock): Promise<void> {
  const parseObject = (object: unknown): SourceEvent => {
    parsed()
    const value = {
      name: 'a',
      zone: String(Object(object).zone),
      ips: [],
      podCidrs: [],
      uid: '',
      eligible: true,
      refusals: [],
    }
    return { kind: 'Node', key: 'a', value }
  }
  source = new FileSource({ path: folder, parseObject, clock })
  await source.start({
    events: async batch => {
      for (const event of batch) if (event.kind === 'Node') zone = event.value?.zone ?? ''
    },
    synced: () => undefined,
    refusals: () => undefined,
    problem: () => undefined,
  })
}

it.each([1, 2, 3])(
  'a write in the same tick as the content that was read first is not missed (%i)',
  async () => {
    let rewritten = false
    await tickBegins()
    write(1)
    await begin(() => {
      // After the read has ended and before the tick does.
      if (!rewritten) setTimeout(write, 3, 2)
      rewritten = true
    })
    await vi.waitFor(() => expect(zone).toBe('2'), patientMs(1_500))
  },
)

it('nor is one in the same tick as the content of a file that never rests', async () => {
  let content = 10
  await begin(() => undefined)
  // No pause is as long as the rest that a file is normally given before it is read.
  for (; content < 60; content++) {
    write(content)
    await rest(12)
  }
  await vi.waitFor(() => expect(zone).toBe('59'), patientMs(1_500))
})

it('a file that has rested is read without waiting', async () => {
  write(1)
  await rest(200)
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
  await vi.waitFor(() => expect(zone).toBe('1'), patientMs(1_500))
  expect(delaysBeforeRead).toEqual([])
})
