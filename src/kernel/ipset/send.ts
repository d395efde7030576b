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
  SET_TYPES,
  TYPE,
} from './state.ts'

/** The errors of a datagram repeat its messages, and must fit into a receive buffer that cannot be forced. */
const DATAGRAM_BYTES_MAX = 64 * 1024
const DATAGRAM_MESSAGES_MAX = 128
const EPERM = errnoNumber('EPERM')

/**
 * Sends pieces. The kernel stops processing a message at the first entry that it rejects. kprobe then sends the
 * entries after it again, before anything else: one entry does not affect another. Throws NetlinkError for a piece that
 * cannot be encoded.
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

/** Computes what to send again. `lines` maps a sequence number to the rejected entry, counted from 1. */
function followUp(refusals: readonly Refused<Piece>[], lines: ReadonlyMap<number, number>): FollowUp<Piece> {
  const refused: Refused<Piece>[] = []
  const again: Piece[] = []
  for (const refusal of refusals) {
    const [culprit, rest] = culpritOf(refusal, lines.get(refusal.sequence ?? 0) ?? 0)
    refused.push({ ...refusal, tag: culprit })
    again.push(...rest)
  }
  return { refused, again }
}

/** Returns the part of a piece that the kernel rejected, and the rest, which is sent again. */
function culpritOf({ tag: piece, errno }: Refused<Piece>, line: number): readonly [Piece, readonly Piece[]] {
  // Without the set, or the right to change it, the kernel rejects every entry.
  const isWhole = line < 1 || line > entriesIn(piece) || errno === ENOENT || errno === EPERM
  if (piece.kind === 'set' || isWhole) return [piece, []]
  const at = piece.from + line - 1
  return [{ ...piece, from: at, to: at + 1 }, at + 1 < piece.to ? [{ ...piece, from: at + 1 }] : []]
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
  /** The failure of a set of a type that kernel and kprobe do not share. */
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
  if (isOnEntries(operation)) return { pieces: entryPieces(operation), failures: [] }
  if (operation.verb !== 'create') return { pieces: [{ kind: 'set', operation, revision: 0 }], failures: [] }
  const { set } = operation
  const revisions = revisionsOf(set)
  const revision = revisions && sharedRevision(set.type, revisions)
  if (revision !== undefined) return { pieces: [{ kind: 'set', operation, revision }], failures: [] }
  const known = `0 to ${SET_TYPES[set.type].revisionMax}`
  const why =
    revisions && `the kernel has revisions ${revisions.min} to ${revisions.max}, kprobe knows ${known}`
  const failure = failureOf(operation, [], { errno: IPSET_ERR_FIND_TYPE, extendedAck: why })
  return { pieces: [], failures: [failure] }
}

const ENOENT = errnoNumber('ENOENT')

/** Translates the kernel's error into a failure; undefined when the object is gone, as the operation wanted. */
export function failureFrom({ tag: piece, errno, extendedAck }: Refused<Piece>): IpsetFailure | undefined {
  const { verb } = piece.operation
  if (errno === ENOENT && (verb === 'destroy' || verb === 'delete-entries')) return undefined
  const entries = piece.kind === 'set' ? [] : entriesOf(piece)
  return failureOf(piece.operation, entries, { errno, extendedAck })
}

function entriesOf({ operation, from, to }: Extract<Piece, { readonly kind: 'entries' }>) {
  const { entries, groups } = operation
  return entries.slice(from, to).map((entry, i) => ({ entry, group: groups[from + i] ?? '' }))
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
