import { familyOf } from '../../base/ip.ts'
import type { ByteView } from '../../netlink/attribute.ts'
import { type Message, nfSpan } from '../../netlink/message.ts'
import { readAttributes, type ValuesOf } from '../../netlink/schema.ts'
import { decodeFlow, decodeHead, type Flow, PROGRESS } from './flow.ts'
import type { FlowRecord } from './record.ts'

/** How far a connection has come, and when its last packet passed. */
export type Progress = ValuesOf<typeof PROGRESS>

export function progressOf(view: ByteView, message: Message): Progress {
  return readAttributes(view, PROGRESS, nfSpan(message))
}

/** Decodes the entry of a record for its deletion. */
export function flowOf(view: ByteView, message: Message, { protocol, answerer }: FlowRecord): Flow {
  return decodeFlow(view, message, { family: familyOf(answerer), protocol, ...decodeHead(view, message) })
}
