import { readFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'

/**
 * The one home of waiting in tests. A limit is for what hangs: ten times what an idle machine takes. A machine that is
 * slow, or busy with other things, gets as many times more as it is slower, measured anew while a test waits.
 */

/** What an idle machine does within a second or two. */
export const LIMIT_MS = 30_000
/** The first step of `eventually`; later ones are a tenth of the time so far, up to the longest. */
const STEP_MS = 10
const STEP_MAX_MS = 500
/** Distance between two measurements; each takes some milliseconds. */
const MEASURE_EVERY_MS = 500
/** The fixed computation, and what it takes where limits were measured. */
const ROUNDS = 1_000_000
const ROUNDS_MS = 2
/** A limit begins anew with progress, so many times: what goes round and round hangs as well. */
const RENEWALS_MAX = 10

/** How many times slower this machine is than the one that limits were measured on, idle; at least 1. */
export interface Machine {
  nowMs(): number
  slowness(): number
}

interface PatienceOptions {
  readonly machine?: Machine
  /** What differs from before whenever something goes on; the limit begins anew then. */
  readonly progress?: () => unknown
}

/** Time that is left for something to happen. */
export class Patience {
  readonly #limitMs: number
  readonly #machine: Machine
  readonly #progress: () => unknown
  readonly #beganMs: number
  #lookedMs: number
  #spentMs = 0
  #last: unknown
  #renewals = 0

  constructor(
    limitMs = LIMIT_MS,
    { machine = thisMachine, progress = () => undefined }: PatienceOptions = {},
  ) {
    this.#limitMs = limitMs
    this.#machine = machine
    this.#progress = progress
    this.#last = progress()
    this.#beganMs = machine.nowMs()
    this.#lookedMs = this.#beganMs
  }

  /** Charges the time since the last look. */
  get isOver(): boolean {
    const nowMs = this.#machine.nowMs()
    this.#spentMs += (nowMs - this.#lookedMs) / this.#machine.slowness()
    this.#lookedMs = nowMs
    const now = this.#progress()
    if (now !== this.#last && this.#renewals < RENEWALS_MAX) {
      this.#last = now
      this.#renewals++
      this.#spentMs = 0
    }
    return this.#spentMs > this.#limitMs
  }

  /** Milliseconds so far. */
  get tookMs(): number {
    return this.#machine.nowMs() - this.#beganMs
  }

  /** For the message of what did not happen. */
  toString(): string {
    return `not within ${this.#limitMs} ms of an idle machine (${Math.round(this.tookMs)} ms here)`
  }
}

interface EventuallyOptions extends PatienceOptions {
  readonly limitMs?: number
  /** The first step; a look may be dear, so steps grow with the time. */
  readonly stepMs?: number
  /** What is the matter, for the message when it does not become so; or throws when waiting is in vain. */
  readonly describe?: () => string
}

/** Waits until it is so; gives the milliseconds that took. A number is the limit, a text is what should become so. */
export async function eventually(
  isSo: () => boolean | Promise<boolean>,
  options: number | string | EventuallyOptions = {},
): Promise<number> {
  const { limitMs, stepMs = STEP_MS, describe, ...rest } = optionsOf(options)
  const patience = new Patience(limitMs, rest)
  while (!(await isSo())) {
    if (patience.isOver)
      throw new Error([`${patience}`, ...(describe === undefined ? [] : [describe()])].join(': '))
    const nextMs = Math.max(stepMs, Math.min(patience.tookMs / 10, STEP_MAX_MS))
    await new Promise(resolve => setTimeout(resolve, nextMs))
  }
  return patience.tookMs
}

/** What `promise` gives, as soon as it does; fails as `eventually` does when that takes too long. */
export async function within<T>(
  promise: Promise<T>,
  options: number | string | EventuallyOptions,
): Promise<T> {
  let isSettled = false
  const settled = promise.finally(() => {
    isSettled = true
  })
  const over = eventually(() => isSettled, options)
  return await Promise.race([settled, over.then(() => settled)])
}

function optionsOf(options: number | string | EventuallyOptions): EventuallyOptions {
  if (typeof options === 'number') return { limitMs: options }
  return typeof options === 'string' ? { describe: () => options } : options
}

/** A limit in milliseconds of this machine as it is now, for what takes a number and cannot be asked again. */
export function patientMs(limitMs = LIMIT_MS): number {
  return Math.round(limitMs * thisMachine.slowness())
}

/** Measures again when the last measurement is old; `crowd` gives the threads that want to run, for each processor. */
export class MeasuredMachine implements Machine {
  readonly #nowMs: () => number
  readonly #compute: () => void
  readonly #crowd: () => number
  #measuredMs = Number.NEGATIVE_INFINITY
  #slowness = 1

  constructor(nowMs: () => number, compute: () => void, crowd: () => number) {
    this.#nowMs = nowMs
    this.#compute = compute
    this.#crowd = crowd
  }

  nowMs(): number {
    return this.#nowMs()
  }

  slowness(): number {
    const beganMs = this.#nowMs()
    if (beganMs - this.#measuredMs < MEASURE_EVERY_MS) return this.#slowness
    // The first time is not measured: the code is translated then.
    if (this.#measuredMs === Number.NEGATIVE_INFINITY) this.#compute()
    const startMs = this.#nowMs()
    this.#compute()
    this.#measuredMs = this.#nowMs()
    this.#slowness = Math.max(1, (this.#measuredMs - startMs) / ROUNDS_MS, this.#crowd())
    return this.#slowness
  }
}

const thisMachine: Machine = new MeasuredMachine(() => performance.now(), computeRounds, runnablePerProcessor)

function computeRounds(): void {
  let x = 1
  for (let i = 0; i < ROUNDS; i++) x = (Math.imul(x, 1_664_525) + 1_013_904_223 + i) | 0
  if (!Number.isInteger(x)) throw new Error(`${x} is no integer`)
}

/** Threads of the whole machine that want to run, for each processor. */
function runnablePerProcessor(): number {
  const runnable = /(\d+)\/\d+/.exec(readFileSync('/proc/loadavg', 'utf8'))?.[1]
  return Number(runnable ?? 1) / availableParallelism()
}
