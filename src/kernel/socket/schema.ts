import type { Ip } from '../../base/ip.ts'
import { octetsFromBytes } from '../../base/octets.ts'
import type { ByteView, ByteWriter } from '../../netlink/bytes.ts'
import { u8 } from '../../netlink/codec.ts'
import { malformed } from '../../netlink/errors.ts'
import type { Message } from '../../netlink/message.ts'
import { attributeSet, readAttributes } from '../../netlink/schema.ts'
import { AF_INET, INET_DIAG_NOCOOKIE, INET_DIAG_SKV6ONLY } from './constants.ts'

/** The query that struct inet_diag_req_v2 carries. */
export interface SocketQuery {
  /** AF_*. */
  readonly family: number
  /** IPPROTO_*. */
  readonly protocol: number
  /** TCPF_*. */
  readonly states: number
}

/** Length of struct inet_diag_sockid, with its ports, addresses and device. */
const ADDRESSING_LENGTH = 40

/** Writes struct inet_diag_req_v2 for sockets of any address. */
export function writeSocketQuery(out: ByteWriter, { family, protocol, states }: SocketQuery): void {
  out.u8(family)
  out.u8(protocol)
  out.u16(0)
  out.u32(states)
  for (let at = 0; at < ADDRESSING_LENGTH; at += 4) out.u32(0)
  out.u32(INET_DIAG_NOCOOKIE)
  out.u32(INET_DIAG_NOCOOKIE)
}

const SOCKET = attributeSet({
  /** Set for an IPv6 socket that accepts no IPv4. */
  v6Only: [INET_DIAG_SKV6ONLY, u8],
})

/** Length of struct inet_diag_msg, and the offsets of its fields. */
const MESSAGE_LENGTH = 72
const PORT_OFFSET = 4
const SOURCE_OFFSET = 8
const DEVICE_OFFSET = 40
const UID_OFFSET = 64
const INODE_OFFSET = 68

/** The fields of struct inet_diag_msg and its attributes. */
export interface SocketFacts {
  /** The address that the socket is bound to; unspecified for all addresses. */
  readonly ip: Ip
  readonly port: number
  /** Index of the device that the socket is bound to; 0 for all. */
  readonly device: number
  /** User id of the owner. */
  readonly uid: number
  /** As in /proc/PID/fd. */
  readonly inode: number
  readonly v6Only: boolean
}

export function readSocketFacts(view: ByteView, { start, end }: Message): SocketFacts {
  if (end - start < MESSAGE_LENGTH) throw malformed('a message without its inet_diag_msg', start)
  const { data, bytes } = view
  const source = start + SOURCE_OFFSET
  const length = data.getUint8(start) === AF_INET ? 4 : 16
  return {
    ip: octetsFromBytes(bytes.subarray(source, source + length)),
    port: data.getUint16(start + PORT_OFFSET),
    device: data.getUint32(start + DEVICE_OFFSET, true),
    uid: data.getUint32(start + UID_OFFSET, true),
    inode: data.getUint32(start + INODE_OFFSET, true),
    v6Only: readAttributes(view, SOCKET, { start: start + MESSAGE_LENGTH, end }).v6Only === 1,
  }
}
