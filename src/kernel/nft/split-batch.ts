import { NLM_F_ACK, NLMSG_HDRLEN } from '../../netlink/constants.ts'
import { NFGENMSG_LENGTH } from '../../netlink/message.ts'

/** Batch begin and end without attributes. */
const BORDER_LENGTH = NLMSG_HDRLEN + NFGENMSG_LENGTH
const FLAGS_OFFSET = 6

/**
 * A batch that is longer than the socket takes, as several that are committed one after the other: the same messages
 * with the same sequence numbers in the same order, each part with a begin, an end and an acknowledgement of its own.
 * Only the first part names the generation it was planned against. A message that is too long by itself stays so.
 */
export function splitBatch(bytes: Uint8Array, limitBytes: number): readonly Uint8Array[] {
  if (bytes.length <= limitBytes) return [bytes]
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  const borders = messageStarts(view)
  const first = borders[1] ?? bytes.length
  const last = borders.at(-1) ?? first
  const begin = bytes.subarray(0, first)
  const end = bytes.subarray(last)
  const parts: Uint8Array[] = []
  let from = first
  for (let i = 1; i < borders.length - 1; i++) {
    const next = borders[i + 1] ?? last
    const head = parts.length === 0 ? begin.length : BORDER_LENGTH
    const start = borders[i] ?? from
    if (start > from && head + (next - from) + end.length > limitBytes) {
      parts.push(partOf(bytes, { begin, end, from, to: start, isFirst: parts.length === 0 }))
      from = start
    }
  }
  parts.push(partOf(bytes, { begin, end, from, to: last, isFirst: parts.length === 0 }))
  return parts
}

/** Offsets of all messages. The batch is our own, so that its lengths are right. */
function messageStarts(view: DataView): readonly number[] {
  const starts: number[] = []
  for (let at = 0; at < view.byteLength; at += (view.getUint32(at, true) + 3) & ~3) starts.push(at)
  return starts
}

interface Part {
  readonly begin: Uint8Array
  readonly end: Uint8Array
  readonly from: number
  readonly to: number
  readonly isFirst: boolean
}

function partOf(bytes: Uint8Array, { begin, end, from, to, isFirst }: Part): Uint8Array {
  const head = isFirst ? begin : begin.subarray(0, BORDER_LENGTH)
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
