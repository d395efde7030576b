import { describe, expect, it } from 'vitest'
import { SYNC_REST_MS_MAX, SYNC_SHARE } from '../../src/base/clock.ts'
import { FakePlane } from '../support/fake-plane.ts'
import { bench } from '../support/reconciler-bench.ts'

interface Storm {
  /** Processor time of a pass, and of reading one change; both take as long. */
  readonly passMs: number
  readonly changeMs: number
  /** Milliseconds between two changes. */
  readonly everyMs: number
}

const STORM_MS = 20_000
const CALM_MS = 1_000

/** Changes come at a fixed rate; their source reads those that have come once the reconciler lets it. */
async function play({ passMs, changeMs, everyMs }: Storm) {
  const plane = new FakePlane()
  const { clock, offer, reconciler } = bench(plane)
  const sleep = (ms: number) => new Promise<void>(resolve => clock.after(ms, resolve))
  const commits: number[] = []
  const waits: number[] = []
  let [waiting, read]: [number[], number[]] = [[], []]
  const { commit } = plane
  plane.commit = async (...args) => {
    const taken = read
    read = []
    commits.push(clock.nowMs())
    for (const atMs of taken) waits.push(clock.nowMs() - atMs)
    clock.spentMs += passMs
    await sleep(passMs)
    return await commit.apply(plane, args)
  }
  const source = async () => {
    for (;;) {
      const batch = waiting
      waiting = []
      clock.spentMs += batch.length * changeMs
      if (batch.length > 0) await sleep(batch.length * changeMs)
      read.push(...batch)
      if (batch.length > 0) offer({ a: String(clock.nowMs()) })
      await (batch.length > 0 ? reconciler.paced() : sleep(1))
    }
  }
  await clock.advance(CALM_MS)
  void source()
  let [first, beganMs]: [number | undefined, number] = [undefined, clock.nowMs()]
  for (const endMs = beganMs + STORM_MS; clock.nowMs() < endMs; ) {
    waiting.push(clock.nowMs())
    await clock.advance(everyMs)
    first ??= commits.length > 0 ? waits[0] : undefined
  }
  const settledMs = beganMs + STORM_MS / 2
  const spentMs = clock.spentMs
  beganMs = clock.nowMs() - beganMs
  await clock.advance(SYNC_REST_MS_MAX + passMs + 100)
  const apart = commits
    .slice(1)
    .map((atMs, index) => ({ atMs, ms: atMs - (commits[index] ?? 0) }))
    .filter(({ atMs }) => atMs > settledMs && atMs < settledMs + STORM_MS / 2)
    .map(({ ms }) => ms)
  return { first, waits, apart, share: spentMs / beganMs, lost: waiting.length + read.length }
}

const STORMS: readonly Storm[] = [0.1, 0.5, 1, 2, 5, 20, 100, 500].flatMap(passMs =>
  [
    { everyMs: 100, changeMs: 0.1 },
    { everyMs: 10, changeMs: 0.1 },
    { everyMs: 1, changeMs: 0.01 },
  ].map(rate => ({ passMs, ...rate })),
)

describe('the pace of passes in a storm', () => {
  it.each(STORMS)('$passMs ms a pass, a change every $everyMs ms', async storm => {
    const { passMs, changeMs, everyMs } = storm
    const { first, waits, apart, share, lost } = await play(storm)
    // Reading takes its time, in which more changes come; a millisecond is the grain of timers.
    const readMs = (changeMs * (SYNC_REST_MS_MAX + passMs)) / (everyMs - changeMs) + 1
    expect(first).toBeLessThan(3)
    expect(lost).toBe(0)
    // A change that comes as a pass begins waits for its end and for the rest.
    expect(Math.max(...waits)).toBeLessThanOrEqual(SYNC_REST_MS_MAX + passMs + 2 * readMs)
    // No oscillation: every distance is that of the others, to one change and the grain of timers.
    expect(Math.max(...apart) - Math.min(...apart)).toBeLessThanOrEqual(everyMs + 2)
    const isBound = Math.max(...apart) >= SYNC_REST_MS_MAX
    expect(share < SYNC_SHARE * 1.02 || isBound).toBe(true)
  })
})
