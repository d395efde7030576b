import type { PacketHead } from '../../base/ip-packet.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NLM_F_REQUEST } from '../../netlink/constants.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { encodeMessage, writeNfGenMsg } from '../../netlink/message.ts'
import { readAttributes, type ValuesOf, writeAttributes } from '../../netlink/schema.ts'
import { messageType, spanOf } from './flow.ts'
import { CONNTRACK, IPCTNL_MSG_CT_GET, NFPROTO_IPV4, NFPROTO_IPV6, type TUPLE } from './schema.ts'

/** A conntrack entry as operators read it. */
export interface Tracked {
  readonly original: PacketHead
  readonly reply: PacketHead
  /** In the words of conntrack(8). */
  readonly status: readonly string[]
  readonly timeoutS: number | undefined
  readonly mark: number
}

/** linux/netfilter/nf_conntrack_common.h, IPS_* in the order of their bits; empty for bits that say nothing to operators. */
const STATUS = [
  'expected',
  'seen-reply',
  'assured',
  'confirmed',
  'src-nat',
  'dst-nat',
  '',
  '',
  '',
  'dying',
] as const

/**
 * Finds the entry of a packet by its addresses and ports before any translation. A protocol without ports is not looked
 * up: undefined, which says nothing about its entry. Synchronous. Throws NetlinkError.
 */
export function findTracked(connection: Connection, head: PacketHead): Tracked | 'none' | undefined {
  if (head.ports === undefined) return undefined
  const isIpv4 = head.source.length === 4
  const family = isIpv4 ? NFPROTO_IPV4 : NFPROTO_IPV6
  let found: Tracked | 'none' | undefined = 'none'
  try {
    connection.roundTrip({
      operation: 'read',
      object: 'conntrack entry',
      build: sequence =>
        encodeMessage({ type: messageType(IPCTNL_MSG_CT_GET), flags: NLM_F_REQUEST, sequence }, out => {
          writeNfGenMsg(out.out, { family, resourceId: 0 })
          writeAttributes(out, CONNTRACK, { original: tupleOf(head) })
        }),
      onMessage(view, message) {
        found = trackedOf(readAttributes(view, CONNTRACK, spanOf(message)))
      },
    })
  } catch (error) {
    if (!(error instanceof NetlinkError) || error.code !== 'ENOENT') throw error
  }
  return found
}

function tupleOf({ source, destination, protocol, ports }: PacketHead): ValuesOf<typeof TUPLE> {
  const ip =
    source.length === 4
      ? { v4Source: source, v4Destination: destination }
      : { v6Source: source, v6Destination: destination }
  return {
    ip,
    proto: { number: protocol, sourcePort: ports?.source, destinationPort: ports?.destination },
  }
}

function trackedOf(values: ValuesOf<typeof CONNTRACK>): Tracked | undefined {
  const original = headOf(values.original)
  const reply = headOf(values.reply)
  if (original === undefined || reply === undefined) return undefined
  const bits = values.status ?? 0
  const status = STATUS.filter((word, bit) => word !== '' && (bits & (1 << bit)) !== 0)
  return { original, reply, status, timeoutS: values.timeoutS, mark: values.mark ?? 0 }
}

function headOf(tuple: ValuesOf<typeof TUPLE> | undefined): PacketHead | undefined {
  const source = tuple?.ip?.v4Source ?? tuple?.ip?.v6Source
  const destination = tuple?.ip?.v4Destination ?? tuple?.ip?.v6Destination
  const { number: protocol, sourcePort, destinationPort } = tuple?.proto ?? {}
  if (source === undefined || destination === undefined || protocol === undefined) return undefined
  const ports =
    sourcePort === undefined || destinationPort === undefined
      ? undefined
      : { source: sourcePort, destination: destinationPort }
  return { protocol, source, destination, ports }
}
