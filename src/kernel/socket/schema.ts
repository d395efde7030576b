import type { Ip } from '../../base/ip.ts'
import { octetsFromBytes, zeros } from '../../base/octets.ts'
import type { ByteView, ByteWriter } from '../../netlink/bytes.ts'
import { malformed } from '../../netlink/errors.ts'
import type { Message } from '../../netlink/message.ts'
import { AF_INET, AF_INET6, INET_DIAG_NOCOOKIE } from './constants.ts'

/** Bytes of an address in struct inet_diag_sockid. */
const ADDRESS_LENGTH = 16
/** Of struct inet_diag_msg. */
const MESSAGE_LENGTH = 72
const SOURCE_OFFSET = 8
const INODE_OFFSET = 68

/** What struct inet_diag_req_v2 and its inet_diag_sockid say here. */
export interface SocketQuery {
  /** IPPROTO_*. */
  readonly protocol: number
  /** TCPF_*. */
  readonly states: number
  readonly source: SocketEnd
  readonly destination: SocketEnd
  /** Index of the device on which packets come in. */
  readonly device: number
}

export interface SocketEnd {
  readonly ip: Ip
  readonly port: number
}

export function writeSocketQuery(out: ByteWriter, query: SocketQuery): void {
  const { source, destination } = query
  out.u8(source.ip.length === 4 ? AF_INET : AF_INET6)
  out.u8(query.protocol)
  out.u16(0)
  out.u32(query.states)
  out.u16be(source.port)
  out.u16be(destination.port)
  out.octets(source.ip + zeros(ADDRESS_LENGTH - source.ip.length))
  out.octets(destination.ip + zeros(ADDRESS_LENGTH - destination.ip.length))
  out.u32(query.device)
  out.u32(INET_DIAG_NOCOOKIE)
  out.u32(INET_DIAG_NOCOOKIE)
}

/** What struct inet_diag_msg tells of a socket. */
export interface SocketFacts {
  /** The address that it is bound to: the unspecified one for all addresses, IPv4-mapped where a socket of IPv6 has one of IPv4. */
  readonly ip: Ip
  readonly inode: number
}

export function readSocketFacts({ data, bytes }: ByteView, { start, end }: Message): SocketFacts {
  if (end - start < MESSAGE_LENGTH) throw malformed('a message without its inet_diag_msg', start)
  const length = data.getUint8(start) === AF_INET ? 4 : ADDRESS_LENGTH
  const source = start + SOURCE_OFFSET
  return {
    ip: octetsFromBytes(bytes.subarray(source, source + length)),
    inode: data.getUint32(start + INODE_OFFSET, true),
  }
}
