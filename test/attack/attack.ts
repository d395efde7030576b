import { writeSync } from 'node:fs'
import type { TaskMeta } from 'vitest'

/*
 * `npm test` runs each attack in its short form, with seed 1; `npm run attack` runs the long form with a seed of choice.
 */

declare module 'vitest' {
  interface TaskMeta {
    /** What an attack tried: names and counts, for the report of `npm run attack`. */
    tried?: Readonly<Record<string, number>>
  }
}

export const IS_LONG = process.env.KPROBE_ATTACK === 'long'
export const SEED = Number(process.env.KPROBE_SEED ?? '1')

/** A count that depends on how long the attack may take. */
export function many(short: number, long: number): number {
  return IS_LONG ? long : short
}

/** Counts by name, which the runner prints. */
export class Tally {
  readonly #counts: Record<string, number> = {}

  constructor({ meta }: { readonly meta: TaskMeta }) {
    meta.tried = this.#counts
  }

  add(name: string, count = 1): void {
    this.#counts[name] = (this.#counts[name] ?? 0) + count
  }

  most(name: string, value: number): void {
    this.#counts[name] = Math.max(this.#counts[name] ?? 0, value)
  }
}

/** Fails with what fell in the message: the runner prints no more than that. */
export function expectHeld(complaints: readonly string[]): void {
  if (complaints.length > 0) throw new Error(complaints.join('\n'))
}

const PROGRESS_EVERY_MS = 10_000

/** Says on standard error how far a long attack is. */
export function progressOf(name: string, total: number): (done: number) => void {
  let saidMs = performance.now()
  return done => {
    if (!IS_LONG || performance.now() - saidMs < PROGRESS_EVERY_MS) return
    saidMs = performance.now()
    writeSync(2, `${name}: ${done} of ${total}\n`)
  }
}
