import type { Clock } from '../../base/clock.ts'
import type { Connection } from '../../netlink/connection.ts'
import { errnoNumber } from '../../netlink/errno.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { generationReader } from './generation.ts'

/** A read of state that other programs may change meanwhile. */
interface Reading<T> {
  readonly connection: Connection
  readonly clock: Clock
  /** Returns undefined when the attempt cannot succeed any more. An unsettled one accepts commits of other programs. */
  readonly read: (unsettled: boolean) => Promise<T | undefined>
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
  for (let attempt = 1; attempt <= ATTEMPTS && clock.nowMs() < deadlineMs; attempt++) {
    const generation = readGeneration()
    const value = await read(false)
    if (value !== undefined && readGeneration() === generation) {
      return { value, generation, unsettled: false }
    }
    await new Promise<void>(resolve => clock.after(RETRY_DELAY_MS * attempt, resolve))
  }
  const generation = readGeneration()
  const value = await read(true)
  if (value !== undefined) return { value, generation, unsettled: true }
  throw new NetlinkError({
    operation: 'list',
    object,
    errno: errnoNumber('EAGAIN'),
    extendedAck: `the ruleset changed during each of ${ATTEMPTS} attempts`,
  })
}
