import type { Clock } from '../../base/clock.ts'
import type { Connection } from '../../netlink/connection.ts'
import { errnoNumber } from '../../netlink/errno.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { readGeneration } from './generation.ts'

/** How something is read that others may change meanwhile. */
interface Reading<T> {
  readonly connection: Connection
  readonly clock: Clock
  /** Undefined when nothing good can come of this attempt any more. An unsettled one accepts that others commit. */
  readonly read: (unsettled: boolean) => Promise<T | undefined>
  /** For the error: `table ip nat`. */
  readonly object: string
  /** No attempt that is to be settled begins after this time, milliseconds. */
  readonly patienceMs?: number
}

export interface Settled<T> {
  readonly value: T
  /** At which all of it was true; or, when it is unsettled, from which on others may have changed it. */
  readonly generation: number
  /** Others committed during every attempt. */
  readonly unsettled: boolean
}

/** A commit by anyone on the node, to any table, makes a reading start over. */
const ATTEMPTS = 8
const RETRY_DELAY_MS = 5

/**
 * Reads between two looks at the generation, again until nobody committed between them; and once more without that
 * condition when somebody always does. Throws NetlinkError: EAGAIN when not even that could be read.
 */
export async function readSettled<T>(reading: Reading<T>): Promise<Settled<T>> {
  const { connection, clock, read, object, patienceMs = Number.POSITIVE_INFINITY } = reading
  const deadlineMs = clock.nowMs() + patienceMs
  for (let attempt = 1; attempt <= ATTEMPTS && clock.nowMs() < deadlineMs; attempt++) {
    const generation = readGeneration(connection).id
    const value = await read(false)
    if (value !== undefined && readGeneration(connection).id === generation) {
      return { value, generation, unsettled: false }
    }
    await new Promise<void>(resolve => clock.after(RETRY_DELAY_MS * attempt, resolve))
  }
  const generation = readGeneration(connection).id
  const value = await read(true)
  if (value !== undefined) return { value, generation, unsettled: true }
  throw new NetlinkError({
    operation: 'list',
    object,
    errno: errnoNumber('EAGAIN'),
    extendedAck: `the ruleset changed during each of ${ATTEMPTS} attempts`,
  })
}
