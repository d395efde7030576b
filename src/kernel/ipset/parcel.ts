import { AttributeWriter } from '../../netlink/attribute.ts'
import { ByteWriter } from '../../netlink/bytes.ts'
import { NLA_F_NET_BYTEORDER, NLM_F_ACK } from '../../netlink/constants.ts'
import { addFlags, closeMessage } from '../../netlink/message.ts'
import * as ipset from './constants.ts'
import { ENTRY_BYTES_MAX, writeEntry } from './entry-writer.ts'
import { IPSET_PROTOCOL_MIN, openIpsetMessage, type SetOperation, writeSetOperation } from './messages.ts'
import type { IpsetOperation } from './operation.ts'

export type EntryOperation = Extract<IpsetOperation, { readonly verb: 'add-entries' | 'delete-entries' }>

/** What one message is about: a set, or entries `from` (inclusive) to `to` (exclusive) of an operation. */
export type Piece =
  | { readonly kind: 'set'; readonly operation: SetOperation; readonly revision: number }
  | {
      readonly kind: 'entries'
      /** As it was asked for; `valid` is what of it can be sent. */
      readonly operation: EntryOperation
      readonly valid: EntryOperation
      readonly from: number
      readonly to: number
    }
export type EntryPiece = Extract<Piece, { readonly kind: 'entries' }>

/** One datagram. */
export interface Parcel {
  readonly bytes: Uint8Array
  readonly firstSequence: number
  readonly pieces: readonly Piece[]
  readonly entries: number
}

/** IPSET_ATTR_ADT could hold three times as many; more make nothing faster, and an error repeats the whole message. */
export const ENTRIES_PER_MESSAGE = 500
/** The errors of a datagram, which repeat its messages, must fit into a receive buffer that cannot be forced. */
const PARCEL_BYTES_MAX = 64 * 1024
export const MESSAGES_PER_PARCEL = 128
const MESSAGE_OVERHEAD_BYTES = 128

/** The pieces of an operation on entries, each for a message of `most` entries. */
export function entryPieces(
  piece: Omit<EntryPiece, 'kind'>,
  most: number = ENTRIES_PER_MESSAGE,
): readonly EntryPiece[] {
  const pieces: EntryPiece[] = []
  for (let from = piece.from; from < piece.to; from += most)
    pieces.push({ ...piece, kind: 'entries', from, to: Math.min(from + most, piece.to) })
  return pieces
}

/**
 * As many of the pieces, in their order, as one datagram takes; one at least. Only the last message asks for an
 * acknowledgement. Throws NetlinkError for a name that does not fit.
 */
export function encodeParcel(
  pieces: readonly Piece[],
  { firstSequence, limitBytes }: { readonly firstSequence: number; readonly limitBytes: number },
): Parcel {
  const most = Math.min(limitBytes, PARCEL_BYTES_MAX)
  const taken = pieces.slice(0, piecesWithin(pieces, most))
  const out = new AttributeWriter(new ByteWriter(Math.min(most, sumOf(taken, bytesMax)) + ENTRY_BYTES_MAX))
  let last = 0
  for (let i = 0; i < taken.length; i++) {
    const piece = taken[i]
    if (piece === undefined) break
    last = out.out.length
    writePiece(out, piece, firstSequence + i)
  }
  addFlags(out.out, last, NLM_F_ACK)
  return { bytes: out.out.written(), firstSequence, pieces: taken, entries: sumOf(taken, entriesIn) }
}

function piecesWithin(pieces: readonly Piece[], limitBytes: number): number {
  let bytes = 0
  for (let i = 0; i < pieces.length && i < MESSAGES_PER_PARCEL; i++) {
    const piece = pieces[i]
    if (piece === undefined) break
    bytes += bytesMax(piece)
    if (bytes > limitBytes && i > 0) return i
  }
  return Math.min(pieces.length, MESSAGES_PER_PARCEL)
}

function sumOf(pieces: readonly Piece[], value: (piece: Piece) => number): number {
  return pieces.reduce((sum, piece) => sum + value(piece), 0)
}

export function entriesIn(piece: Piece): number {
  return piece.kind === 'entries' ? piece.to - piece.from : 0
}

/** Bytes of an entry of IPv4; of IPv6 ENTRY_BYTES_MAX at most. */
const V4_ENTRY_BYTES_MAX = 64

function bytesMax(piece: Piece): number {
  if (piece.kind === 'set') return MESSAGE_OVERHEAD_BYTES
  const each = piece.operation.set.family === 'IPv4' ? V4_ENTRY_BYTES_MAX : ENTRY_BYTES_MAX
  return MESSAGE_OVERHEAD_BYTES + entriesIn(piece) * each
}

function writePiece(out: AttributeWriter, piece: Piece, sequence: number): void {
  if (piece.kind === 'set') writeSetOperation(out, piece.operation, { revision: piece.revision, sequence })
  else writeEntries(out, piece, sequence)
}

function writeEntries(out: AttributeWriter, { valid, from, to }: EntryPiece, sequence: number): void {
  const command = valid.verb === 'add-entries' ? ipset.IPSET_CMD_ADD : ipset.IPSET_CMD_DEL
  // Without NLM_F_EXCL: what is there, or gone, already is no error.
  const start = openIpsetMessage(out.out, { command, flags: 0, sequence })
  out.open(ipset.IPSET_ATTR_PROTOCOL)
  out.out.u8(IPSET_PROTOCOL_MIN)
  out.close()
  out.string(ipset.IPSET_ATTR_SETNAME, valid.set.name)
  // The kernel puts the line of the entry that it refuses here, in the copy that it answers with.
  out.u32be(ipset.IPSET_ATTR_LINENO | NLA_F_NET_BYTEORDER, 0)
  out.openNest(ipset.IPSET_ATTR_ADT)
  for (let i = from; i < to; i++) {
    const entry = valid.entries[i]
    if (entry !== undefined) writeEntry(out.out, valid.set, entry, i - from + 1)
  }
  out.close()
  closeMessage(out.out, start)
}
