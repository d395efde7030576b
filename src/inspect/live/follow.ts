import { pause, systemClock } from '../../base/clock.ts'
import { aborted, type Io } from '../../cli/io.ts'

interface FollowOptions {
  /** 0: until the command is to end. */
  readonly durationMs: number
  /** Aborted when nothing more will be printed. */
  readonly done?: AbortSignal
  readonly timers: readonly (readonly [everyMs: number, run: () => void])[]
}

/** Waits until the time is up, nothing more will be printed, or the command is to end. Runs the timers meanwhile. */
export async function followFor(
  { signal, outLost }: Io,
  { durationMs, done, timers }: FollowOptions,
): Promise<void> {
  const stop = AbortSignal.any([signal, outLost, ...(done === undefined ? [] : [done])])
  const cancels = timers.map(([everyMs, run]) => repeated(everyMs, run))
  await (durationMs > 0 ? pause(systemClock, durationMs, stop) : aborted(stop))
  for (const cancel of cancels) cancel()
}

function repeated(ms: number, run: () => void): () => void {
  let cancel = systemClock.after(ms, function again() {
    run()
    cancel = systemClock.after(ms, again)
  })
  return () => cancel()
}
