import { type FollowUp, type Refused, type Sender, type Sent, sendEach } from '../../netlink/batch.ts'
import type { ByteView } from '../../netlink/bytes.ts'
import { NLM_F_CAPPED, NLMSG_HDRLEN } from '../../netlink/constants.ts'
import { errnoNumber } from '../../netlink/errno.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { type Message, NFGENMSG_LENGTH } from '../../netlink/message.ts'
import { readAttributes } from '../../netlink/schema.ts'
import { bytesMax, entriesIn, entryPieces, type Piece, writePiece } from './piece.ts'
import { REFUSED } from './schema.ts'

/** The errors of a datagram, which repeat its messages, must fit into a receive buffer that cannot be forced. */
const DATAGRAM_BYTES_MAX = 64 * 1024
const DATAGRAM_MESSAGES_MAX = 128
/** So many entries take a fraction of a millisecond, unless a set has to be made larger meanwhile. */
const SYNC_ENTRIES_MAX = 256
const EPERM = errnoNumber('EPERM')
const ENOENT = errnoNumber('ENOENT')

/**
 * Sends pieces. The kernel leaves a message at the first entry that it refuses: what is behind that one is sent again in
 * smaller messages, before anything else, so that no entry suffers from another, and a set that is full takes a few
 * messages an entry at most. Throws NetlinkError for what cannot be encoded.
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

/** The kernel waits until no packet uses the set any more (synchronize_rcu). */
function isSlow(piece: Piece): boolean {
  return piece.kind === 'set' && (piece.operation.verb === 'swap' || piece.operation.verb === 'destroy')
}

/**
 * ipset answers a message of several entries with a copy in which IPSET_ATTR_LINENO is that of the culprit (call_ad in
 * net/netfilter/ipset/ip_set_core.c), even where nobody wants copies (NLM_F_CAPPED). 0 when the error is about the
 * whole message, or the copy cannot be read.
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

/** What is sent again after a refusal goes in messages of so many times fewer entries. */
const SHRINK = 8

/** `lines` says by sequence number which entry of a message the kernel refused, counted from 1. */
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

/** What of a piece the kernel refused, and what of it must be sent again. */
function culpritOf(
  { tag: piece, errno }: Refused<Piece>,
  line: number,
): readonly [Piece | undefined, readonly Piece[]] {
  const count = entriesIn(piece)
  // Without the set, or the right to change it, every entry is refused.
  if (piece.kind === 'set' || count <= 1 || errno === ENOENT || errno === EPERM) return [piece, []]
  const most = Math.max(1, Math.floor(count / SHRINK))
  if (line < 1 || line > count) return [undefined, entryPieces(piece, most)]
  const at = piece.from + line - 1
  return [{ ...piece, from: at, to: at + 1 }, entryPieces({ ...piece, from: at + 1 }, most)]
}
