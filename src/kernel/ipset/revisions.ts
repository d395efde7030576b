import type { Family } from '../../base/ip.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { IPSET_ERR_FIND_TYPE } from './constants.ts'
import { decodeAs } from './decode.ts'
import { encodeType } from './messages.ts'
import { TYPE } from './schema.ts'
import { SET_TYPES } from './set-types.ts'
import type { IpsetType } from './state.ts'

/** The revisions of a type that the kernel supports. */
export interface Revisions {
  readonly min: number
  readonly max: number
}

/** Errors of a kernel without ipsets. */
const ABSENT: ReadonlySet<string> = new Set(['EINVAL', 'EOPNOTSUPP', 'ENOENT'])

/** Returns whether an error means that the kernel has no ipsets. */
export function isAbsent(error: unknown): boolean {
  return error instanceof NetlinkError && ABSENT.has(error.code)
}

/** Reads the revisions of a type; undefined where the kernel lacks the type. Throws NetlinkError. */
export function readRevisions(
  connection: Connection,
  { type, family }: { readonly type: IpsetType; readonly family: Family },
): Revisions | undefined {
  let revisions: Revisions | undefined
  try {
    connection.roundTrip({
      operation: 'look up',
      object: `type ${type}`,
      build: sequence => encodeType(type, family, sequence),
      onMessage: (view, message) => {
        const { revision: max = 0, revisionMin: min = 0 } = decodeAs(view, message, TYPE)
        revisions = { min, max }
      },
    })
  } catch (error) {
    const isUnknown = error instanceof NetlinkError && error.errno === IPSET_ERR_FIND_TYPE
    if (!isUnknown && !isAbsent(error)) throw error
  }
  return revisions
}

/** Returns the newest revision that both know; undefined when the kernel has only newer ones than kprobe reads. */
export function sharedRevision(type: IpsetType, { min, max }: Revisions): number | undefined {
  const newest = Math.min(max, SET_TYPES[type].revisionMax)
  return newest < min ? undefined : newest
}
