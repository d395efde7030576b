import type { Family } from '../../base/ip.ts'
import type { ByteView } from '../../netlink/attribute.ts'
import { type FollowUp, type Refused, type Sent, sendEach } from '../../netlink/batch.ts'
import type { Connection, Sender } from '../../netlink/connection.ts'
import { NLM_F_CAPPED, NLMSG_HDRLEN } from '../../netlink/constants.ts'
import { errnoNumber, NetlinkError } from '../../netlink/errors.ts'
import { type Message, NFGENMSG_LENGTH } from '../../netlink/message.ts'
import { readAttributes } from '../../netlink/schema.ts'
import {
  bytesMax,
  decodeAs,
  type EntryOperation,
  encodeType,
  entriesIn,
  entryPieces,
  type Piece,
  whyNotEntry,
  writePiece,
} from './messages.ts'
import {
  describeIpsetOperation,
  IPSET_ERR_FIND_TYPE,
  type Ipset,
  type IpsetFailure,
  type IpsetOperation,
  type IpsetType,
  ipsetError,
  REFUSED,
  SET_NAME_BYTES_MAX,
  SET_TYPES,
  TYPE,
} from './state.ts'

/** The errors of a datagram repeat its messages, and must fit into a receive buffer that cannot be forced. */
const DATAGRAM_BYTES_MAX = 64 * 1024
const DATAGRAM_MESSAGES_MAX = 128
const EPERM = errnoNumber('EPERM')

/**
 * Sends pieces. The kernel stops processing a message at the first entry that it rejects. kprobe then sends the
 * entries after it again, in smaller messages and before anything else: one entry does not affect another, and a full
 * set takes at most a few messages per entry. Throws NetlinkError for a piece that cannot be encoded.
 */
export function sendPieces(sender: Sender, pieces: readonly Piece[]): Promise<Sent<Piece>> {
  const lines = new Map<number, number>()
  return sendEach(sender, pieces, {
    object: 'ipsets',
    write: writePiece,
    bytesMax,
    messagesMax: DATAGRAM_MESSAGES_MAX,
    datagramBytesMax: DATAGRAM_BYTES_MAX,
    // Fewer entries take a fraction of a millisecond, unless the kernel grows the set meanwhile.
    isLong: some => some.some(isSlow) || some.reduce((sum, piece) => sum + entriesIn(piece), 0) > 256,
    onError: (view, message) => lines.set(message.sequence, refusedLine(view, message)),
    followUp: refused => followUp(refused, lines),
  })
}

/** The kernel waits until no packet uses the set (synchronize_rcu). */
function isSlow(piece: Piece): boolean {
  return piece.kind === 'set' && (piece.operation.verb === 'swap' || piece.operation.verb === 'destroy')
}

/**
 * Reads the line of the rejected entry. ipset answers a message of several entries with a copy whose
 * IPSET_ATTR_LINENO names it (call_ad in net/netfilter/ipset/ip_set_core.c), even if the socket requested no copies
 * (NLM_F_CAPPED). Returns 0 when the error is about the whole message, or the copy cannot be read.
 */
function refusedLine(view: ByteView, message: Message): number {
  if ((message.flags & NLM_F_CAPPED) !== 0) return 0
  const start = message.start + 4 + NLMSG_HDRLEN + NFGENMSG_LENGTH
  try {
    return start > message.end ? 0 : (readAttributes(view, REFUSED, { start, end: message.end }).line ?? 0)
  } catch (error) {
    if (error instanceof NetlinkError) return 0
    throw error
  }
}

/** A message that is sent again has this many times fewer entries. */
const SHRINK = 8

/** Computes what to send again. `lines` maps a sequence number to the rejected entry, counted from 1. */
function followUp(refusals: readonly Refused<Piece>[], lines: ReadonlyMap<number, number>): FollowUp<Piece> {
  const refused: Refused<Piece>[] = []
  const again: Piece[] = []
  for (const refusal of refusals) {
    const [culprit, rest] = culpritOf(refusal, lines.get(refusal.sequence ?? 0) ?? 0)
    if (culprit !== undefined) refused.push({ ...refusal, tag: culprit })
    again.push(...rest)
  }
  return { refused, again }
}

/** Returns the part of a piece that the kernel rejected, and the parts to send again. */
function culpritOf(
  { tag: piece, errno }: Refused<Piece>,
  line: number,
): readonly [Piece | undefined, readonly Piece[]] {
  const count = entriesIn(piece)
  // Without the set, or the right to change it, the kernel rejects every entry.
  if (piece.kind === 'set' || count <= 1 || errno === ENOENT || errno === EPERM) return [piece, []]
  const most = Math.max(1, Math.floor(count / SHRINK))
  if (line < 1 || line > count) return [undefined, entryPieces(piece, most)]
  const at = piece.from + line - 1
  return [{ ...piece, from: at, to: at + 1 }, entryPieces({ ...piece, from: at + 1 }, most)]
}

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

interface Prepared {
  readonly pieces: readonly Piece[]
  /** Failures of operations and entries that cannot be sent. */
  readonly failures: readonly IpsetFailure[]
}

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
  const tooLong = namesIn(operation).find(name => Buffer.byteLength(name) > SET_NAME_BYTES_MAX || name === '')
  if (tooLong !== undefined) {
    const why = `the name of a set has 1 to ${SET_NAME_BYTES_MAX} bytes, unlike ${JSON.stringify(tooLong)}`
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
