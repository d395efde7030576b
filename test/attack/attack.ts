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
/** Time that `npm run attack` leaves for the tests of one file; undefined for as long as they take. */
const TIME_MS = process.env.KPROBE_ATTACK_MS === undefined ? undefined : Number(process.env.KPROBE_ATTACK_MS)

/**
 * Counts the rounds of an attack from 0, and ends early when its part of the time is over: the file has `parts` of these
 * attacks, one behind the other. Says on standard error how far a long one is, and what it left out.
 */
export function* rounds(name: string, total: number, parts = 1): Generator<number> {
  const beganMs = performance.now()
  const endMs = TIME_MS === undefined ? Number.POSITIVE_INFINITY : beganMs + TIME_MS / parts
  let saidMs = beganMs
  for (let round = 0; round < total; round++) {
    const nowMs = performance.now()
    if (nowMs >= endMs && round > 0) {
      writeSync(2, `${name}: the time is over after ${round} of ${total}\n`)
      return
    }
    if (IS_LONG && nowMs - saidMs >= PROGRESS_EVERY_MS) {
      saidMs = nowMs
      writeSync(2, `${name}: ${round} of ${total}\n`)
    }
    yield round
  }
}
