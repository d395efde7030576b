import { readdirSync, readlinkSync } from 'node:fs'
import { type Ip, isIpv4Mapped, isUnspecified } from '../../base/ip.ts'
import { octetsFromBytes } from '../../base/octets.ts'
import type { ByteView, ByteWriter } from '../../netlink/attribute.ts'
import { u8 } from '../../netlink/codecs.ts'
import type { Connection } from '../../netlink/connection.ts'
import { AF_INET, AF_INET6, NLM_F_DUMP, NLM_F_REQUEST } from '../../netlink/constants.ts'
import { malformed, NetlinkError } from '../../netlink/errors.ts'
import { encodeMessage, type Message } from '../../netlink/message.ts'
import { attributeSet, readAttributes } from '../../netlink/schema.ts'
import { IPPROTO_TCP, IPPROTO_UDP } from '../nft/constants.ts'

/** linux/sock_diag.h, linux/inet_diag.h and linux/tcp.h, under the headers' own names. */

export const SOCK_DIAG_BY_FAMILY = 20
export const INET_DIAG_SKV6ONLY = 11
export const INET_DIAG_NOCOOKIE = 0xffff_ffff

/** Bits by state: TCP_LISTEN, and TCP_CLOSE, which sockets of UDP have while they are not connected. */
export const TCPF_LISTEN = 1 << 10
export const TCPF_CLOSE = 1 << 7

/** The query in struct inet_diag_req_v2. */
interface SocketQuery {
  readonly family: number
  readonly protocol: number
  readonly states: number
}

/** Length of struct inet_diag_sockid, with its ports, addresses and device. */
const ADDRESSING_LENGTH = 40

/** Writes struct inet_diag_req_v2 for sockets of any address. */
function writeSocketQuery(out: ByteWriter, { family, protocol, states }: SocketQuery): void {
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
interface SocketFacts {
  /** The address that the socket is bound to; unspecified for all addresses. */
  readonly ip: Ip
  readonly port: number
  /** Index of the device that the socket is bound to; 0 for all. */
  readonly device: number
  readonly uid: number
  /** As in /proc/PID/fd. */
  readonly inode: number
  readonly v6Only: boolean
}

function readSocketFacts(view: ByteView, { start, end }: Message): SocketFacts {
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

/** A socket that accepts new connections, or datagrams from any sender. */
export interface Listener extends SocketFacts {
  readonly protocol: 'TCP' | 'UDP'
}

const QUERIES: readonly (readonly [Listener['protocol'], SocketQuery])[] = [AF_INET, AF_INET6].flatMap(
  family => [
    ['TCP', { family, protocol: IPPROTO_TCP, states: TCPF_LISTEN }] as const,
    ['UDP', { family, protocol: IPPROTO_UDP, states: TCPF_CLOSE }] as const,
  ],
)

/**
 * Lists the listeners of this network namespace synchronously, over a NETLINK_SOCK_DIAG connection: a millisecond for
 * hundreds. Empty where the kernel has no inet_diag, which `absent` learns. Throws what dumpNow throws, and when the list
 * changed during the read.
 */
export function listListeners(connection: Connection, absent?: () => void): readonly Listener[] {
  const found: Listener[] = []
  for (const [protocol, query] of QUERIES) {
    try {
      const isWhole = connection.dumpNow({
        operation: 'list',
        object: `listeners of ${protocol}`,
        build: sequence => encodeQuery(query, sequence),
        onMessage(view, message) {
          if (message.type === SOCK_DIAG_BY_FAMILY)
            found.push({ protocol, ...readSocketFacts(view, message) })
        },
      })
      if (!isWhole) throw new Error(`the listeners of ${protocol} changed while they were listed`)
    } catch (error) {
      if (!(error instanceof NetlinkError && error.code === 'ENOENT')) throw error
      absent?.()
    }
  }
  return found
}

function encodeQuery(query: SocketQuery, sequence: number): Uint8Array {
  const head = { type: SOCK_DIAG_BY_FAMILY, flags: NLM_F_REQUEST | NLM_F_DUMP, sequence }
  return encodeMessage(head, ({ out }) => writeSocketQuery(out, query))
}

/** Returns how packets to an address of a device reach the listener, if at all. */
export function reach(
  listener: SocketFacts,
  { ip, index }: { readonly ip: Ip; readonly index: number },
): 'address' | 'wildcard' | undefined {
  if (listener.device !== 0 && listener.device !== index) return undefined
  const bound = isIpv4Mapped(listener.ip) ? listener.ip.slice(12) : listener.ip
  if (bound === ip) return 'address'
  if (!isUnspecified(bound)) return undefined
  return bound.length === ip.length || (ip.length === 4 && !listener.v6Only) ? 'wildcard' : undefined
}

/** Returns the inodes of this process's open sockets, synchronously. Throws where /proc cannot be read. */
export function ownSockets(): ReadonlySet<number> {
  return socketsOfProcess('self')
}

/** Returns the inodes of a process's open sockets. */
export function socketsOfProcess(process: number | 'self'): ReadonlySet<number> {
  const folder = `/proc/${process}/fd`
  const inodes = new Set<number>()
  for (const name of readdirSync(folder)) {
    const inode = /^socket:\[(\d+)\]$/.exec(targetOf(`${folder}/${name}`))?.[1]
    if (inode !== undefined) inodes.add(Number(inode))
  }
  return inodes
}

/** Returns an empty string for a descriptor that was closed meanwhile, such as that of the directory itself. */
function targetOf(path: string): string {
  try {
    return readlinkSync(path)
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return ''
    throw error
  }
}
