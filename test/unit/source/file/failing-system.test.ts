import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { SourceEvent } from '../../../../src/model/snapshot.ts'
import { FileSource } from '../../../../src/source/file/file-source.ts'
import { problemText, type SourceProblem } from '../../../../src/source/source.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { temporaryFolder } from '../../../support/folder.ts'
import { eventually } from '../../../support/patience.ts'

/** What the system answers to open(2) instead of a file; as when the node is out of descriptors or its disk is ill. */
const system = vi.hoisted(() => ({ refusal: '', attempts: 0 }))

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
  }
})

let clock: FakeClock
let folder: string
let source: FileSource
let zones: string[]
let problems: SourceProblem[]
let synced: number

beforeEach(() => {
  clock = new FakeClock()
  folder = temporaryFolder()
  system.refusal = ''
  zones = []
  problems = []
  synced = 0
})

afterEach(async () => {
  await source.stop()
})

const path = () => join(folder, 'a.yaml')
const write = (zone: string) => writeFileSync(path(), `kind: Pod\nzone: ${zone}\n`)

function parseZone(object: unknown): SourceEvent {
  const zone = String(Object(object).zone)
  return {
    kind: 'Node',
    key: 'a',
    value: { name: 'a', zone, ips: [], podCidrs: [], uid: '', eligible: true, refusals: [] },
  }
}

async function begin(): Promise<void> {
  source = new FileSource({ path: folder, parseObject: parseZone, clock })
  await source.start({
    events: async batch => {
      for (const event of batch) if (event.kind === 'Node') zones.push(event.value?.zone ?? '')
    },
    synced: () => synced++,
    refusals: () => undefined,
    problem: problem => problems.push(problem),
  })
}

/** Lets time pass until it is so, but not while files are read: no timer is pending then. */
function passUntil(isSo: () => boolean): Promise<number> {
  return eventually(async () => {
    if (clock.pending > 0) await clock.advance(100)
    return isSo()
  })
}

const said = () => problems.map(each => `${each.kind}: ${problemText(each)}`)

describe('FileSource, while the system cannot open files', () => {
  it.each(['EMFILE', 'EIO', 'ESTALE'])(
    'says %s once, tries again at each poll without a change of the file, and says when it can',
    async code => {
      write('1')
      await begin()
      await passUntil(() => zones.length === 1)
      system.refusal = code
      write('2')
      await passUntil(() => problems.length === 1)
      const before = system.attempts
      const beganMs = clock.nowMs()
      await passUntil(() => system.attempts >= before + 4)
      const polls = (clock.nowMs() - beganMs) / 250
      expect(system.attempts - before).toBeLessThanOrEqual(polls + 2)
      system.refusal = ''
      await passUntil(() => zones.length === 2)
      expect(zones).toEqual(['1', '2'])
      expect(said()).toEqual([
        `failed: open: ${code}; the last valid content stays in use (1 object)`,
        'recovered: the file is read again',
      ])
    },
  )

  it('is complete once it could read what it could not at first', async () => {
    write('1')
    system.refusal = 'EMFILE'
    await begin()
    await passUntil(() => problems.length > 0)
    expect(said()).toEqual(['failed: open: EMFILE; kprobe waits until it has read every file once'])
    expect(synced).toBe(0)
    system.refusal = ''
    await passUntil(() => synced > 0)
    expect(synced).toBe(1)
    expect(zones).toEqual(['1'])
  })
})
