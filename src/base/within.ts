import type { Cancel, Clock } from './clock.ts'

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
