import { describe, expect, it } from 'vitest'
import { ApiFeed, type FeedSource } from '../../../src/api/feed.ts'
import type { ApiState } from '../../../src/api/state.ts'
import { PersistentMap } from '../../../src/base/collections.ts'

const EMPTY: ApiState = { number: 1, services: PersistentMap.empty(), endpoints: PersistentMap.empty() }
const numbered = (number: number): ApiState => ({ ...EMPTY, number })

function feedAt(
  nowMs: () => number = () => 0,
  source: () => FeedSource | undefined = () => undefined,
): ApiFeed {
  return new ApiFeed({ clock: { nowMs }, source })
}

describe('ApiFeed', () => {
  it('has no state at first, and then only the newest', async () => {
    const feed = feedAt()
    const { signal } = new AbortController()
    expect(feed.current).toBeUndefined()
    const first = feed.newer(0, signal)
    feed.offer(numbered(1))
    feed.offer(numbered(2))
    expect((await first).number).toBe(1)
    expect((await feed.newer(1, signal)).number).toBe(2)
    const third = feed.newer(2, signal)
    feed.offer(numbered(3))
    expect((await third).number).toBe(3)
  })

  it('delivers a state once, and rejects older ones', async () => {
    const feed = feedAt()
    const state = numbered(5)
    feed.offer(state)
    let told = false
    const stop = new AbortController()
    const waiting = feed.newer(5, stop.signal).then(
      () => {
        told = true
      },
      () => undefined,
    )
    feed.offer(state)
    stop.abort()
    await waiting
    expect(told).toBe(false)
    expect(() => feed.offer(numbered(4))).toThrow('in their order')
  })

  it('lets go of those who stop waiting', async () => {
    const feed = feedAt()
    const stop = new AbortController()
    const waiting = feed.newer(0, stop.signal)
    stop.abort(new Error('enough'))
    await expect(waiting).rejects.toThrow('enough')
    await expect(feed.newer(0, stop.signal)).rejects.toThrow('enough')
    feed.offer(numbered(1))
  })

  it('remembers states for as long as they are held', () => {
    const feed = feedAt()
    const [one, two, three] = [numbered(1), numbered(2), numbered(3)]
    feed.offer(one)
    feed.hold(one)
    feed.hold(one)
    feed.offer(two)
    feed.offer(three)
    expect(feed.kept).toBe(2)
    feed.release(one)
    expect(feed.kept).toBe(2)
    feed.release(one)
    expect(feed.kept).toBe(1)
    expect(() => feed.release(one)).toThrow('as often')
    expect(() => feed.hold(two)).toThrow('held while')
  })

  it('says how old the state is, and whether its source is well', () => {
    let nowMs = 1_000
    let source: FeedSource | undefined
    const feed = feedAt(
      () => nowMs,
      () => source,
    )
    expect(feed.status()).toEqual({
      number: 0,
      services: 0,
      endpoints: 0,
      sinceMs: undefined,
      silentMs: undefined,
      sourceConnected: false,
      trouble: undefined,
    })
    source = { missing: ['services'], heardMs: undefined, trouble: undefined }
    expect(feed.status().sourceConnected).toBe(false)
    source = { missing: [], heardMs: 900, trouble: undefined }
    feed.offer(numbered(7))
    nowMs = 1_250
    expect(feed.status()).toMatchObject({ number: 7, sinceMs: 250, silentMs: 350, sourceConnected: true })
    source = { ...source, trouble: 'connection refused' }
    expect(feed.status()).toMatchObject({
      sourceConnected: false,
      trouble: 'connection refused',
      sinceMs: 250,
    })
  })
})
