import { familyOf } from '../../base/ip.ts'
import type { ByteView } from '../../netlink/attribute.ts'
import { type Message, nfSpan } from '../../netlink/message.ts'
import { readAttributes, type ValuesOf } from '../../netlink/schema.ts'
import { decodeFlow, decodeHead, type Flow, IPS_ASSURED, IPS_SEEN_REPLY, PROGRESS } from './flow.ts'
import type { FlowRecord } from './record.ts'

/** How far a connection has come, and when its last packet passed. */
type Progress = ValuesOf<typeof PROGRESS>

export function progressOf(view: ByteView, message: Message): Progress {
  return readAttributes(view, PROGRESS, nfSpan(message))
}

/** Decodes the entry of a record for its deletion. */
export function flowOf(view: ByteView, message: Message, { protocol, answerer }: FlowRecord): Flow {
  return decodeFlow(view, message, { family: familyOf(answerer), protocol, ...decodeHead(view, message) })
}

/** TCP_CONNTRACK_* in which the last packet shows that the endpoint lives. A FIN or RST may be the client's alone. */
const LIVING: ReadonlySet<number> = new Set([
  2, // SYN_RECV
  3, // ESTABLISHED; with data that is not acknowledged, the kernel sets a shorter timeout
  5, // CLOSE_WAIT
  6, // LAST_ACK
  7, // TIME_WAIT
])

/** Tests whether an entry shows an answer. Of UDP only a fresh one does: the client of a stream may go on without an answer. */
export function showsAnswer({ status = 0, protocolInfo }: Progress): boolean {
  if ((status & IPS_SEEN_REPLY) === 0) return false
  const tcp = protocolInfo?.tcp
  return tcp === undefined ? (status & IPS_ASSURED) === 0 : LIVING.has(tcp.state ?? 0)
}
