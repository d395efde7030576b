import type { Clock } from '../../base/clock.ts'
import type { Connection } from '../../netlink/connection.ts'
import { errnoNumber } from '../../netlink/errno.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import type { Fields } from '../../netlink/schema.ts'
import { type Dump, dumpRequest, type OnMessage } from './dump.ts'
import { generationReader } from './generation.ts'

/** A read of state that other programs may change meanwhile. */
interface Reading<T> {
  readonly connection: Connection
  readonly clock: Clock
  readonly read: (attempt: Attempt) => Promise<T>
  /** For the error: `table ip nat`. */
  readonly object: string
  /** Time after which no attempt begins that must be settled, milliseconds. */
  readonly patienceMs?: number
}

export interface Settled<T> {
  readonly value: T
  /**
   * The generation of the whole value; for an unsettled value, the one from which other programs may have changed it.
   */
  readonly generation: number
  /** Other programs committed during every attempt. */
  readonly unsettled: boolean
}

/** A commit by any program on the node, to any table, restarts a read. */
const ATTEMPTS = 8
const RETRY_DELAY_MS = 5

/**
 * Reads between two reads of the generation, and retries until no other program commits in between. If other programs
 * commit during every attempt, it reads once more without that condition. Throws NetlinkError: EAGAIN when even that
 * fails.
 */
export async function readSettled<T>(reading: Reading<T>): Promise<Settled<T>> {
  const { connection, clock, read, object, patienceMs = Number.POSITIVE_INFINITY } = reading
  const readGeneration = generationReader(connection)
  const deadlineMs = clock.nowMs() + patienceMs
  for (let tries = 1; tries <= ATTEMPTS && clock.nowMs() < deadlineMs; tries++) {
    const generation = readGeneration()
    const attempt = new Attempt(connection, false)
    const value = await read(attempt)
    if (!attempt.isOver && readGeneration() === generation) return { value, generation, unsettled: false }
    await new Promise<void>(resolve => clock.after(RETRY_DELAY_MS * tries, resolve))
  }
  const generation = readGeneration()
  const attempt = new Attempt(connection, true)
  const value = await read(attempt)
  if (!attempt.isOver) return { value, generation, unsettled: true }
  throw new NetlinkError({
    operation: 'list',
    object,
    errno: errnoNumber('EAGAIN'),
    extendedAck: `the ruleset changed during each of ${ATTEMPTS} attempts`,
  })
}

/** A dump of all tables or chains takes a fraction of the time of a whole listing. */
const SHORT_DUMP_ATTEMPTS = 16

/**
 * One attempt at reading. An unsettled one accepts commits of other programs meanwhile. Dumps of one table's rules,
 * sets and elements do not depend on other tables. Dumps of all tables or all chains may skip ours when another table
 * is removed, so `steadily` repeats them until they are consistent.
 */
export class Attempt {
  readonly connection: Connection
  readonly unsettled: boolean
  #isOver = false
  /** The kernel reported a change during a dump. */
  #torn = false

  constructor(connection: Connection, unsettled: boolean) {
    this.connection = connection
    this.unsettled = unsettled
  }

  /** The attempt cannot succeed any more, and its value does not count. */
  get isOver(): boolean {
    return this.#isOver
  }

  async dump<F extends Fields>(dump: Dump<F>, onMessage: OnMessage): Promise<void> {
    try {
      this.note(await this.connection.dump(dumpRequest(dump, onMessage)))
    } catch (error) {
      // The listed object has been removed since.
      if (!(error instanceof NetlinkError) || error.code !== 'ENOENT') throw error
      this.#isOver = true
    }
  }

  /** Notes whether a dump was consistent. */
  note(consistent: boolean): void {
    if (consistent) return
    this.#torn = true
    if (!this.unsettled) this.#isOver = true
  }

  /** Runs dumps across all tables; an unsettled attempt repeats them until they are consistent. */
  async steadily<T>(read: () => Promise<T>): Promise<T> {
    for (let tries = 1; ; tries++) {
      this.#torn = false
      const value = await read()
      if (!this.#torn || this.#isOver) return value
      if (tries === SHORT_DUMP_ATTEMPTS) this.#isOver = true
    }
  }
}
