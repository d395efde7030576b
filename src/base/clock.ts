/** Time, injected: durations come from a monotonic source, never from the wall clock. */
export interface Clock {
  /** Monotonic milliseconds since an arbitrary origin. */
  nowMs(): number
  /** Calls `run` once after `delayMs`; the result cancels it. */
  after(delayMs: number, run: () => void): Cancel
  /** Resolves once the event loop has served what was waiting. */
  breathe(): Promise<void>
}

export type Cancel = () => void

/** The time of this machine. */
export const systemClock: Clock = {
  nowMs: () => performance.now(),
  after(delayMs, run) {
    const timer = setTimeout(run, delayMs)
    return () => clearTimeout(timer)
  },
  breathe: () => new Promise(resolve => setImmediate(resolve)),
}

/** Waits for `work`, but no longer than this; false when it took longer. What `work` throws is passed on. */
export async function within(clock: Clock, limitMs: number, work: Promise<void>): Promise<boolean> {
  let cancel: Cancel | undefined
  const late = new Promise<boolean>(done => {
    cancel = clock.after(limitMs, () => done(false))
  })
  try {
    return await Promise.race([work.then(() => true), late])
  } finally {
    cancel?.()
  }
}

/** Waits for this long, or until the signal aborts. */
export function pause(clock: Clock, ms: number, signal: AbortSignal): Promise<void> {
  return new Promise(resolve => {
    const end = () => {
      cancel()
      signal.removeEventListener('abort', end)
      resolve()
    }
    const cancel = clock.after(ms, end)
    signal.addEventListener('abort', end, { once: true })
    if (signal.aborted) end()
  })
}
