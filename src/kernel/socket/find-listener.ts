import { formatIpPort, type Ip, isIpv4Mapped, isUnspecified } from '../../base/ip.ts'
import { zeros } from '../../base/octets.ts'
import { ByteWriter } from '../../netlink/bytes.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NLM_F_REQUEST } from '../../netlink/constants.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { closeMessage, openMessage } from '../../netlink/message.ts'
import { IPPROTO_TCP, IPPROTO_UDP, SOCK_DIAG_BY_FAMILY, TCPF_CLOSE, TCPF_LISTEN } from './constants.ts'
import { readSocketFacts, type SocketFacts, writeSocketQuery } from './schema.ts'

/** Where packets of new connections arrive. */
export interface ListenerQuery {
  readonly ip: Ip
  readonly protocol: 'TCP' | 'UDP'
  readonly port: number
  /** Index of the device that has the address. */
  readonly device: number
}

export interface Listener {
  /** It listens at every address, and not at this one by name. */
  readonly wildcard: boolean
  /** As in /proc/PID/fd. */
  readonly inode: number
}

/**
 * The socket of this network namespace that the kernel would choose for a new connection to the address and port;
 * undefined when there is none, and where the kernel has no inet_diag. Over a connection of NETLINK_SOCK_DIAG, in one
 * round trip. Throws what roundTrip throws.
 */
export function findListener(connection: Connection, query: ListenerQuery): Listener | undefined {
  const found: SocketFacts[] = []
  try {
    connection.roundTrip({
      operation: 'find',
      object: `listener at ${formatIpPort(query.ip, query.port)}/${query.protocol}`,
      build: sequence => encodeQuery(query, sequence),
      onMessage(view, message) {
        if (message.type === SOCK_DIAG_BY_FAMILY) found.push(readSocketFacts(view, message))
      },
    })
  } catch (error) {
    if (error instanceof NetlinkError && error.code === 'ENOENT') return undefined
    throw error
  }
  const [facts] = found
  return facts === undefined ? undefined : { wildcard: isWildcard(facts.ip), inode: facts.inode }
}

function encodeQuery({ ip, protocol, port, device }: ListenerQuery, sequence: number): Uint8Array {
  const own = { ip, port }
  const anybody = { ip: zeros(ip.length), port: 0 }
  const isTcp = protocol === 'TCP'
  const out = new ByteWriter(96)
  const start = openMessage(out, { type: SOCK_DIAG_BY_FAMILY, flags: NLM_F_REQUEST, sequence })
  writeSocketQuery(out, {
    protocol: isTcp ? IPPROTO_TCP : IPPROTO_UDP,
    states: isTcp ? TCPF_LISTEN : TCPF_CLOSE,
    // Of one socket of UDP, the kernel reads the two the other way round (udp_dump_one).
    source: isTcp ? own : anybody,
    destination: isTcp ? anybody : own,
    device,
  })
  closeMessage(out, start)
  return out.written()
}

function isWildcard(ip: Ip): boolean {
  return isUnspecified(ip) || (isIpv4Mapped(ip) && isUnspecified(ip.slice(12)))
}
