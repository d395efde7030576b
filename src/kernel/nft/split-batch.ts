import { NLA_HDRLEN, NLM_F_ACK, NLMSG_HDRLEN } from '../../netlink/constants.ts'
import { NFGENMSG_LENGTH } from '../../netlink/message.ts'
import { nextGeneration } from './generation.ts'

/** Batch begin and end without attributes. */
const BORDER_LENGTH = NLMSG_HDRLEN + NFGENMSG_LENGTH
/** NFNL_BATCH_GENID, their only attribute, big endian. */
const GENERATION_OFFSET = BORDER_LENGTH + NLA_HDRLEN
const FLAGS_OFFSET = 6

/**
 * Splits a batch that is longer than the socket's limit into several that are committed one after the other. The
 * messages keep their sequence numbers and order; each part has its own begin, end and acknowledgement. The first
 * part names the generation of the batch. A later part names the generation that the part before it leads to, if it
 * has a message for which `isBound` (by its index in the batch) returns true. A single message that is too long stays
 * whole.
 */
export function splitBatch(
  bytes: Uint8Array,
  limitBytes: number,
  isBound: (message: number) => boolean,
): readonly Uint8Array[] {
  if (bytes.length <= limitBytes) return [bytes]
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  const borders = messageStarts(view)
  const first = borders[1] ?? bytes.length
  const last = borders.at(-1) ?? first
  const begin = bytes.subarray(0, first)
  const end = bytes.subarray(last)
  const parts: Uint8Array[] = []
  let from = first
  let bound = false
  const close = (to: number): void => {
    const isNamed = parts.length === 0 || bound
    const head = isNamed ? beginOf(begin, parts.length) : begin.subarray(0, BORDER_LENGTH)
    parts.push(partOf(bytes, { head, end, from, to }))
    from = to
    bound = false
  }
  for (let i = 1; i < borders.length - 1; i++) {
    const next = borders[i + 1] ?? last
    const start = borders[i] ?? from
    if (start > from && begin.length + (next - from) + end.length > limitBytes) close(start)
    bound ||= isBound(i)
  }
  close(last)
  return parts
}

/**
 * Returns a batch's begin. If the original names a generation, this one names the generation after `commits` commits
 * of ours.
 */
function beginOf(begin: Uint8Array, commits: number): Uint8Array {
  const named = begin.slice()
  if (named.length < GENERATION_OFFSET + 4) return named
  const view = new DataView(named.buffer)
  let generation = view.getUint32(GENERATION_OFFSET)
  for (let i = 0; i < commits; i++) generation = nextGeneration(generation)
  view.setUint32(GENERATION_OFFSET, generation)
  return named
}

/** Returns the offsets of all messages. Lengths are not checked, because the batch is our own. */
function messageStarts(view: DataView): readonly number[] {
  const starts: number[] = []
  for (let at = 0; at < view.byteLength; at += (view.getUint32(at, true) + 3) & ~3) starts.push(at)
  return starts
}

interface Part {
  readonly head: Uint8Array
  readonly end: Uint8Array
  readonly from: number
  readonly to: number
}

function partOf(bytes: Uint8Array, { head, end, from, to }: Part): Uint8Array {
  const part = new Uint8Array(head.length + (to - from) + end.length)
  part.set(head)
  part.set(bytes.subarray(from, to), head.length)
  part.set(end, head.length + to - from)
  const view = new DataView(part.buffer)
  view.setUint32(0, head.length, true)
  const starts = messageStarts(view)
  const lastMessage = starts.at(-2) ?? 0
  const flags = view.getUint16(lastMessage + FLAGS_OFFSET, true)
  view.setUint16(lastMessage + FLAGS_OFFSET, flags | NLM_F_ACK, true)
  return part
}
