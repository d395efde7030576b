import type { Clock } from '../base/clock.ts'
import type { ApiFeed } from './feed.ts'
import { differenceLines, inChunks, stateLines } from './lines.ts'
import type { ApiState } from './state.ts'

interface PrintOptions {
  readonly feed: ApiFeed
  readonly clock: Clock
  readonly write: (text: string) => void
  /** Bytes that were written and not read yet. */
  readonly backlogBytes: () => number
  /** `state`: once. `states`: again at each change, an empty line behind each. `differences`: from nothing on. */
  readonly what: 'state' | 'states' | 'differences'
}

/** A reader that has more than this before it is not given more: it gets the newest state once it has read on. */
const BACKLOG_MAX = 1 << 20
const LOOK_MS = 10

/** Prints what the feed has, until aborted, or once. A slow reader misses states, but never a part of one. */
export async function printFeed(options: PrintOptions, signal: AbortSignal): Promise<void> {
  const { feed, what } = options
  let seen: ApiState | undefined
  try {
    do {
      const newer = await feed.newer(seen?.number ?? 0, signal)
      // What is held is the newest, whatever has come since.
      const state = feed.current ?? newer
      feed.hold(state)
      try {
        const lines = what === 'differences' ? differenceLines(seen, state) : stateLines(state)
        await writeAll(options, lines, signal)
        if (what === 'states') options.write('\n')
      } finally {
        if (seen !== undefined) feed.release(seen)
        seen = state
      }
    } while (what !== 'state')
  } catch (error) {
    if (!signal.aborted) throw error
  } finally {
    if (seen !== undefined) feed.release(seen)
  }
}

async function writeAll(
  { clock, write, backlogBytes }: PrintOptions,
  lines: Iterable<string>,
  signal: AbortSignal,
): Promise<void> {
  for (const chunk of inChunks(lines)) {
    write(chunk)
    await clock.breathe()
    while (backlogBytes() > BACKLOG_MAX) {
      signal.throwIfAborted()
      await new Promise<void>(done => clock.after(LOOK_MS, done))
    }
  }
}
