import type { Family, Ip } from '../../base/ip.ts'
import type { Batch } from '../../netlink/batch.ts'
import { NLM_F_DUMP, NLM_F_REQUEST } from '../../netlink/constants.ts'
import { encodeMessage, writeNfGenMsg } from '../../netlink/message.ts'
import { type ValuesOf, writeAttributes } from '../../netlink/schema.ts'
import {
  IPCTNL_MSG_CT_DELETE,
  IPCTNL_MSG_CT_GET,
  IPPROTO_TCP,
  IPPROTO_UDP,
  NFNL_SUBSYS_CTNETLINK,
  NFPROTO_UNSPEC,
} from './constants.ts'
import { type Flow, type FlowProtocol, familyNumber } from './flow.ts'
import { CONNTRACK, REST, type TUPLE } from './schema.ts'

/** Selects the entries of a dump: one family and protocol, and this original destination and port where given. */
export interface FlowFilter {
  readonly family: Family
  readonly protocol: FlowProtocol
  readonly destination?: Ip
  readonly destinationPort?: number
}

/** CTA_FILTER_F_* of net/netfilter/nf_internals.h, which no userspace header exports. */
const CTA_FILTER_F_CTA_IP_DST = 1 << 1
const CTA_FILTER_F_CTA_PROTO_NUM = 1 << 3
const CTA_FILTER_F_CTA_PROTO_DST_PORT = 1 << 5

export function protocolNumber(protocol: FlowProtocol): number {
  return protocol === 'TCP' ? IPPROTO_TCP : IPPROTO_UDP
}

export function messageType(type: number): number {
  return (NFNL_SUBSYS_CTNETLINK << 8) | type
}

/** Encodes a request without attributes, as for statistics. */
export function encodeRequest(type: number, flags: number, sequence: number): Uint8Array {
  const head = { type: messageType(type), flags: NLM_F_REQUEST | flags, sequence }
  return encodeMessage(head, ({ out }) => writeNfGenMsg(out, { family: NFPROTO_UNSPEC, resourceId: 0 }))
}

/**
 * Encodes IPCTNL_MSG_CT_GET with CTA_FILTER (Linux 5.8). Older kernels compare only the family and also list the
 * other entries. The filter has no IPv6 addresses: the kernel then lists the flows whose address differs (measured on
 * 6.18).
 */
export function encodeDump(filter: FlowFilter, sequence: number): Uint8Array {
  const { family, protocol, destinationPort } = filter
  const destination = family === 'IPv4' ? filter.destination : undefined
  let flags = CTA_FILTER_F_CTA_PROTO_NUM
  if (destination !== undefined) flags |= CTA_FILTER_F_CTA_IP_DST
  if (destinationPort !== undefined) flags |= CTA_FILTER_F_CTA_PROTO_DST_PORT
  const original: ValuesOf<typeof TUPLE> = {
    ip: destination === undefined ? undefined : { v4Destination: destination },
    proto: { number: protocolNumber(protocol), destinationPort },
  }
  const head = { type: messageType(IPCTNL_MSG_CT_GET), flags: NLM_F_REQUEST | NLM_F_DUMP, sequence }
  return encodeMessage(head, out => {
    writeNfGenMsg(out.out, { family: familyNumber(family), resourceId: 0 })
    writeAttributes(out, CONNTRACK, { original, filter: { originalFlags: flags } })
  })
}

/** Maximum bytes of a deletion, without its tuple. */
const DELETE_BYTES_MAX = 48

export function deleteBytesMax({ tuple }: Flow): number {
  return DELETE_BYTES_MAX + tuple.length
}

/**
 * Appends IPCTNL_MSG_CT_DELETE. The tuple is always present: without one the kernel deletes every entry. With the id,
 * the kernel answers ENOENT if a later flow has the same tuple.
 */
export function writeDelete(batch: Batch<Flow>, flow: Flow): void {
  batch.open(messageType(IPCTNL_MSG_CT_DELETE))
  writeNfGenMsg(batch.out.out, { family: familyNumber(flow.family), resourceId: 0 })
  writeAttributes(batch.out, REST, { tuple: flow.tuple, id: flow.id, zone: flow.zone })
  batch.close(flow)
}
