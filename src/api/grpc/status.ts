import type { FeedStatus } from '../feed.ts'
import { numberField, textField } from './protobuf.ts'
import { type Call, type CallHandler, unary } from './rpc.ts'
import type { SetsCounts } from './sets.ts'

interface ServerStatus extends FeedStatus {
  readonly nodeName: string
  readonly counts: SetsCounts
}

/** `kprobe.v1.Status/Get`: GetRequest has no fields; see the table of descriptors for those of GetResponse. */
export function statusMethod(status: () => ServerStatus): (call: Call) => CallHandler {
  return unary(() => encodeStatus(status()))
}

function encodeStatus(its: ServerStatus): Buffer {
  return Buffer.concat([
    textField(1, its.nodeName),
    numberField(2, its.number),
    numberField(3, its.services),
    numberField(4, its.endpoints),
    ...(its.sinceMs === undefined ? [] : [numberField(5, Math.round(its.sinceMs))]),
    ...(its.silentMs === undefined ? [] : [numberField(6, Math.round(its.silentMs))]),
    numberField(7, its.sourceConnected ? 1 : 0),
    textField(8, its.trouble ?? ''),
    numberField(9, its.counts.streams),
    numberField(10, its.counts.waiting),
  ])
}
