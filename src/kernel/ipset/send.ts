import { type FollowUp, type Refused, type Sender, type Sent, sendEach } from '../../netlink/batch.ts'
import type { ByteView } from '../../netlink/bytes.ts'
import { NLM_F_CAPPED, NLMSG_HDRLEN } from '../../netlink/constants.ts'
import { errnoNumber } from '../../netlink/errno.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { type Message, NFGENMSG_LENGTH } from '../../netlink/message.ts'
import { readAttributes } from '../../netlink/schema.ts'
import { bytesMax, entriesIn, entryPieces, type Piece, writePiece } from './piece.ts'
import { REFUSED } from './schema.ts'

/** The errors of a datagram repeat its messages, and must fit into a receive buffer that cannot be forced. */
const DATAGRAM_BYTES_MAX = 64 * 1024
const DATAGRAM_MESSAGES_MAX = 128
/** This many entries take a fraction of a millisecond, unless the kernel grows the set meanwhile. */
const SYNC_ENTRIES_MAX = 256
const EPERM = errnoNumber('EPERM')
const ENOENT = errnoNumber('ENOENT')

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
    isLong: some =>
      some.some(isSlow) || some.reduce((sum, piece) => sum + entriesIn(piece), 0) > SYNC_ENTRIES_MAX,
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
