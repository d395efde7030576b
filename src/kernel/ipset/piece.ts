import type { Batch } from '../../netlink/batch.ts'
import { writeAttributes } from '../../netlink/schema.ts'
import * as ipset from './constants.ts'
import { ENTRY_BYTES_MAX, entryWriter } from './entry-writer.ts'
import { IPSET_PROTOCOL_MIN, openIpsetMessage, type SetOperation, writeSetOperation } from './messages.ts'
import type { IpsetOperation } from './operation.ts'
import { ENTRIES } from './schema.ts'

export type EntryOperation = Extract<IpsetOperation, { readonly verb: 'add-entries' | 'delete-entries' }>

/** The content of one message: a set, or entries `from` (inclusive) to `to` (exclusive) of an operation. */
export type Piece =
  | { readonly kind: 'set'; readonly operation: SetOperation; readonly revision: number }
  | {
      readonly kind: 'entries'
      /** The operation as the caller gave it; `valid` has only the entries that can be sent. */
      readonly operation: EntryOperation
      readonly valid: EntryOperation
      readonly from: number
      readonly to: number
    }
type EntryPiece = Extract<Piece, { readonly kind: 'entries' }>

/** IPSET_ATTR_ADT could hold three times as many. More are no faster, and an error repeats the whole message. */
const ENTRIES_PER_MESSAGE = 500
const MESSAGE_OVERHEAD_BYTES = 128

/** Splits an operation on entries into pieces, each for a message of `most` entries. */
export function entryPieces(
  piece: Omit<EntryPiece, 'kind'>,
  most: number = ENTRIES_PER_MESSAGE,
): readonly EntryPiece[] {
  const pieces: EntryPiece[] = []
  for (let from = piece.from; from < piece.to; from += most)
    pieces.push({ ...piece, kind: 'entries', from, to: Math.min(from + most, piece.to) })
  return pieces
}

export function entriesIn(piece: Piece): number {
  return piece.kind === 'entries' ? piece.to - piece.from : 0
}

/** Maximum bytes of an IPv4 entry; an IPv6 entry has at most ENTRY_BYTES_MAX. */
const V4_ENTRY_BYTES_MAX = 64

/** Returns the maximum length of the message of a piece. */
export function bytesMax(piece: Piece): number {
  if (piece.kind === 'set') return MESSAGE_OVERHEAD_BYTES
  const each = piece.operation.set.family === 'IPv4' ? V4_ENTRY_BYTES_MAX : ENTRY_BYTES_MAX
  return MESSAGE_OVERHEAD_BYTES + entriesIn(piece) * each
}

/** Appends the message of a piece. Throws NetlinkError for a name that does not fit. */
export function writePiece(batch: Batch<Piece>, piece: Piece): void {
  if (piece.kind === 'entries') writeEntries(batch, piece)
  else writeSetOperation(batch, piece.operation, piece.revision)
  batch.close(piece)
}

function writeEntries(batch: Batch<Piece>, { valid, from, to }: EntryPiece): void {
  const { out } = batch
  // Without NLM_F_EXCL: an entry that exists, or is gone, already is no error.
  openIpsetMessage(batch, valid.verb === 'add-entries' ? ipset.IPSET_CMD_ADD : ipset.IPSET_CMD_DEL)
  // The kernel writes the line of the rejected entry here, in the copy that its answer contains.
  writeAttributes(out, ENTRIES, { protocol: IPSET_PROTOCOL_MIN, name: valid.set.name, line: 0 })
  const write = entryWriter(valid.set)
  out.openNest(ipset.IPSET_ATTR_ADT)
  for (let i = from; i < to; i++) {
    const entry = valid.entries[i]
    if (entry !== undefined) write(out, { entry, line: i - from + 1 })
  }
  out.close()
}
