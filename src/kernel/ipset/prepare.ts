import type { Refused } from '../../netlink/batch.ts'
import { errnoNumber } from '../../netlink/errno.ts'
import type { NetlinkError } from '../../netlink/errors.ts'
import { IPSET_ERR_FIND_TYPE } from './constants.ts'
import { whyNotEntry } from './entry-writer.ts'
import { ipsetError } from './errors.ts'
import { describeIpsetOperation, type IpsetFailure } from './failure.ts'
import type { IpsetOperation } from './operation.ts'
import { type EntryOperation, entryPieces, type Piece } from './piece.ts'
import { type Revisions, sharedRevision } from './revisions.ts'
import { SET_TYPES } from './set-types.ts'
import type { Ipset } from './state.ts'

interface Prepared {
  readonly pieces: readonly Piece[]
  /** Failures of operations and entries that cannot be sent. */
  readonly failures: readonly IpsetFailure[]
}

/** IPSET_MAXNAMELEN without the NUL. */
const NAME_BYTES_MAX = 31

/**
 * Groups consecutive operations that may share datagrams: those on sets, those that add and those that delete. When
 * the kernel rejects an entry, kprobe resends the rest of its run; the runs keep that ahead of the
 * next run.
 */
export function runsOf(operations: readonly IpsetOperation[]): readonly (readonly IpsetOperation[])[] {
  const runs: IpsetOperation[][] = []
  let kind: string | undefined
  for (const operation of operations) {
    const next = isOnEntries(operation) ? operation.verb : 'sets'
    if (next === kind) runs.at(-1)?.push(operation)
    else runs.push([operation])
    kind = next
  }
  return runs
}

function isOnEntries(operation: IpsetOperation): operation is EntryOperation {
  return operation.verb === 'add-entries' || operation.verb === 'delete-entries'
}

/** Prepares the messages of an operation. `revisionsOf` reads the kernel's revisions and may throw. */
export function prepare(
  operation: IpsetOperation,
  revisionsOf: (set: Ipset) => Revisions | undefined,
): Prepared {
  const tooLong = namesIn(operation).find(name => Buffer.byteLength(name) > NAME_BYTES_MAX || name === '')
  if (tooLong !== undefined) {
    const why = `the name of a set has 1 to ${NAME_BYTES_MAX} bytes, unlike ${JSON.stringify(tooLong)}`
    return nothing(operation, { errno: errnoNumber('EINVAL'), why })
  }
  if (isOnEntries(operation)) return prepareEntries(operation)
  if (operation.verb !== 'create') return { pieces: [{ kind: 'set', operation, revision: 0 }], failures: [] }
  const { set } = operation
  const revisions = revisionsOf(set)
  const revision = revisions && sharedRevision(set.type, revisions)
  if (revision !== undefined) return { pieces: [{ kind: 'set', operation, revision }], failures: [] }
  const known = `0 to ${SET_TYPES[set.type].revisionMax}`
  const why =
    revisions && `the kernel has revisions ${revisions.min} to ${revisions.max}, kprobe knows ${known}`
  return nothing(operation, { errno: IPSET_ERR_FIND_TYPE, why })
}

function namesIn(operation: IpsetOperation): readonly string[] {
  switch (operation.verb) {
    case 'swap':
      return [operation.name, operation.with]
    case 'destroy':
      return [operation.name]
    default:
      return [operation.set.name]
  }
}

/** Skips entries that cannot be in the set, and reports each as a failure. */
function prepareEntries(operation: EntryOperation): Prepared {
  const { set, entries, groups } = operation
  const failures: IpsetFailure[] = []
  const faulty = new Set<number>()
  for (let i = 0; i < entries.length; i++) {
    const entry = entries[i]
    const why = entry && whyNotEntry(set, entry)
    if (entry === undefined || why === undefined) continue
    faulty.add(i)
    const culprit = [{ entry, group: groups[i] ?? '' }]
    failures.push(failureOf(operation, culprit, { errno: errnoNumber('EINVAL'), extendedAck: why }))
  }
  const isGood = (_: unknown, i: number): boolean => !faulty.has(i)
  const valid =
    faulty.size === 0
      ? operation
      : { ...operation, entries: entries.filter(isGood), groups: groups.filter(isGood) }
  return { pieces: entryPieces({ operation, valid, from: 0, to: valid.entries.length }), failures }
}

function nothing(
  operation: IpsetOperation,
  { errno, why }: { readonly errno: number; readonly why: string | undefined },
): Prepared {
  return { pieces: [], failures: [failureOf(operation, ownedBy(operation), { errno, extendedAck: why })] }
}

function ownedBy(operation: IpsetOperation): IpsetFailure['entries'] {
  if (!isOnEntries(operation)) return []
  return operation.entries.map((entry, i) => ({ entry, group: operation.groups[i] ?? '' }))
}

const ENOENT = errnoNumber('ENOENT')

/** Translates the kernel's error into a failure; undefined when the object is gone, as the operation wanted. */
export function failureFrom({ tag: piece, errno, extendedAck }: Refused<Piece>): IpsetFailure | undefined {
  const { verb } = piece.operation
  if (errno === ENOENT && (verb === 'destroy' || verb === 'delete-entries')) return undefined
  const entries =
    piece.kind === 'set'
      ? []
      : ownedBy({
          ...piece.valid,
          entries: piece.valid.entries.slice(piece.from, piece.to),
          groups: piece.valid.groups.slice(piece.from, piece.to),
        })
  return failureOf(piece.operation, entries, { errno, extendedAck })
}

export function failureOf(
  operation: IpsetOperation,
  entries: IpsetFailure['entries'],
  { errno, extendedAck }: Pick<Refused<Piece>, 'errno' | 'extendedAck'>,
): IpsetFailure {
  const type = 'set' in operation ? operation.set.type : undefined
  const why = extendedAck ?? (errno === ENOENT ? 'there is no such set' : undefined)
  const words = describeIpsetOperation(operation, entries)
  const error: NetlinkError = ipsetError({ ...words, errno, extendedAck: why }, type)
  return { operation, entries, code: error.code, error }
}
