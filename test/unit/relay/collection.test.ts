import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { describe, expect, it } from 'vitest'
import { Collection } from '../../../src/relay/collection.ts'
import { RelayState } from '../../../src/relay/state.ts'
import { FakeClock } from '../../support/fake-clock.ts'

function collectionAt(...revisions: readonly string[]): Collection {
  const collection = new Collection({
    typeUrl: 'type',
    clock: new FakeClock(),
    spacingMs: () => 0,
    identifier: () => 'cluster',
  })
  for (const revision of revisions) {
    collection.put(`of-${revision}`, { version: revision, resource: Buffer.from(revision) })
    collection.seal(revision)
  }
  return collection
}

describe('Collection: the position of a revision', () => {
  it('is none for a revision of the time before a restore, also once the new history is past it', () => {
    const collection = collectionAt('90', '100', '50')
    expect(collection.positionOf('80')).toBe('another')
    for (const revision of ['70', '85', '101', '110']) {
      collection.put('some', { version: revision, resource: Buffer.from(revision) })
      collection.seal(revision)
    }
    expect(collection.positionOf('80')).toBe('another')
    expect(collection.positionOf('100')).toBe('another')
    expect(collection.positionOf('50')).toBeTypeOf('number')
    expect(collection.positionOf('101')).toBe(collection.history.head - 1)
  })

  it('is none in the history of another cluster, whichever revisions it has', () => {
    const collection = collectionAt('90', '100')
    collection.seal('300', 'another-history')
    expect(collection.positionOf('95')).toBe('gone')
    expect(collection.positionOf('300')).toBe(collection.history.head)
  })
})

describe('Collection: its history', () => {
  it('holds responses alone: objects that were replaced are gone', async () => {
    setFlagsFromString('--expose-gc')
    const gc: () => void = runInNewContext('gc')
    const collection = collectionAt('1')
    const replaced: WeakRef<Buffer>[] = []
    const put = (revision: string): void => {
      const resource = Buffer.alloc(4_096, revision)
      replaced.push(new WeakRef(resource))
      collection.put('a/b', { version: revision, resource })
      collection.seal(revision)
    }
    for (const revision of ['2', '3', '4']) put(revision)
    // A job keeps what it has made weak references to.
    await new Promise(resolve => setImmediate(resolve))
    gc()
    expect(replaced.map(each => each.deref() !== undefined)).toEqual([false, false, true])
    expect(collection.history.at(collection.history.head - 3)?.frames[0]?.compressed.length).toBeLessThan(
      4_096,
    )
  })
})

describe('RelayState: rounds', () => {
  /** Distances between rounds where something changes each millisecond, and a round keeps the process busy for so long. */
  async function rounds(costMs: number): Promise<readonly number[]> {
    const clock = new FakeClock()
    let backlogMs = 0
    const state = new RelayState({ clock, proxyName: '' })
    const { Service: collection } = state.collections
    const began: number[] = []
    let head = 0
    for (let revision = 1; clock.nowMs() < 1_000; revision++) {
      collection.put('a/b', { version: `${revision}`, resource: Buffer.from('object') })
      collection.seal(`${revision}`)
      if (collection.history.head !== head) {
        head = collection.history.head
        began.push(clock.nowMs())
        backlogMs += costMs
      }
      await clock.advance(1)
      const workedMs = Math.min(1, backlogMs)
      clock.spentMs += workedMs
      backlogMs -= workedMs
    }
    return began.slice(1).map((atMs, index) => atMs - (began[index] ?? 0))
  }

  it.each([
    { what: 'next to nothing', costMs: 0, apartMs: 5 },
    { what: 'less than half of a processor', costMs: 30, apartMs: 65 },
    { what: 'more than half of a processor', costMs: 100, apartMs: 140 },
    { what: 'nearly all of a processor', costMs: 150, apartMs: 153 },
    { what: 'more than a processor has', costMs: 250, apartMs: 180 },
  ])('that cost $what are $apartMs ms apart', async ({ costMs, apartMs }) => {
    const apart = (await rounds(costMs)).slice(2)
    expect(apart.length).toBeGreaterThan(2)
    for (const ms of apart) expect(Math.abs(ms - apartMs)).toBeLessThanOrEqual(1)
  })
})
