import { type Clock, Slice, slicingOf } from '../../base/clock.ts'
import type { ByteView } from '../../netlink/attribute.ts'
import { sendEach } from '../../netlink/batch.ts'
import { type Answers, Connection, type ConnectionOptions } from '../../netlink/connection.ts'
import { NLM_F_ACK } from '../../netlink/constants.ts'
import type { Words } from '../../netlink/conversation.ts'
import { errnoNumber, NetlinkError } from '../../netlink/errors.ts'
import { findFamily } from '../../netlink/genetlink.ts'
import type { Message } from '../../netlink/message.ts'
import {
  decodeDestination,
  decodeInfo,
  decodeServer,
  decodeTimeouts,
  encodeCommand,
  encodeFindServer,
  encodeListDestinations,
  encodeListServers,
  operationBytesMax,
  writeOperation,
} from './messages.ts'
import { failureOf, type IpvsFailure, isGone } from './refusals.ts'
import {
  destinationKey,
  IPVS_CMD_GET_CONFIG,
  IPVS_CMD_GET_INFO,
  IPVS_CMD_SET_CONFIG,
  type IpvsInfo,
  type IpvsOperation,
  type IpvsTimeouts,
  type ListedDestination,
  type ServerKey,
  serverKey,
  type VirtualAddress,
  type VirtualServer,
} from './state.ts'

export type IpvsResult = Answers<IpvsFailure>

/** The errors of this many messages take 850 kB of the receive buffer; more messages per datagram save no time. */
const MESSAGES_MAX = 1_000
const GENL_NAME = 'IPVS'

/** An address of the discard prefix (RFC 6666): the kernel answers ESRCH, or EAFNOSUPPORT without IPv6. */
const NOT_THERE: VirtualAddress = { protocol: 'TCP', ip: `\x01${'\0'.repeat(15)}`, port: 9 }
const NOT_FOUND: ReadonlySet<string> = new Set(['ESRCH', 'EAFNOSUPPORT'])

/**
 * A client for the kernel's IPVS (generic netlink family IPVS), with the operations that kprobe uses. Each conversation
 * looks up the number of the family, which changes when the module is reloaded.
 */
export class IpvsClient {
  readonly #connection: Connection
  readonly #clock: Clock

  /** Over a NETLINK_GENERIC socket, which the client closes. */
  constructor(options: ConnectionOptions) {
    this.#connection = new Connection(options)
    this.#clock = options.clock
  }

  /** Reads version and table size. Throws NetlinkError ENOENT where the kernel has no IPVS. */
  info(): IpvsInfo {
    const words = { operation: 'read', object: 'information about IPVS' }
    return this.#ask(words, IPVS_CMD_GET_INFO, decodeInfo)
  }

  /** Tests whether the kernel has virtual servers with IPv6 addresses (CONFIG_IP_VS_IPV6). Reads only. */
  hasIpv6(): boolean {
    const family = findIpvs(this.#connection)
    try {
      this.#connection.roundTrip({
        operation: 'find',
        object: `virtual server ${serverKey(NOT_THERE)}`,
        build: sequence => encodeFindServer(family, sequence, NOT_THERE),
        onMessage: () => undefined,
      })
    } catch (error) {
      if (!(error instanceof NetlinkError) || !NOT_FOUND.has(error.code)) throw error
      return error.code !== 'EAFNOSUPPORT'
    }
    return true
  }

  timeouts(): IpvsTimeouts {
    return this.#ask({ operation: 'read', object: 'timeouts of IPVS' }, IPVS_CMD_GET_CONFIG, decodeTimeouts)
  }

  setTimeouts({ tcpS, tcpFinS, udpS }: IpvsTimeouts): void {
    const family = findIpvs(this.#connection)
    this.#connection.roundTrip({
      operation: 'set',
      object: `timeouts of IPVS to ${tcpS}, ${tcpFinS} and ${udpS} seconds`,
      build: sequence => {
        const head = { family, flags: NLM_F_ACK, sequence }
        return encodeCommand(IPVS_CMD_SET_CONFIG, head, { tcpS, tcpFinS, udpS })
      },
      onMessage: () => undefined,
    })
  }

  /** Lists the virtual servers of this network namespace, without those of marks; none where the kernel has no IPVS. */
  async servers(): Promise<readonly VirtualServer[]> {
    try {
      return await listServers(this.#connection, findIpvs(this.#connection))
    } catch (error) {
      if (!isMissing(error)) throw error
      return []
    }
  }

  /** Lists the real servers of each virtual server; a virtual server that is gone has none. */
  async destinations(servers: readonly VirtualAddress[]): Promise<readonly (readonly ListedDestination[])[]> {
    if (servers.length === 0) return []
    const family = findIpvs(this.#connection)
    const lists: (readonly ListedDestination[])[] = []
    const slice = new Slice(slicingOf(this.#clock))
    for (const server of servers) {
      lists.push(await listDestinations(this.#connection, family, server))
      if (slice.isOver) await slice.next()
    }
    return lists
  }

  /**
   * Sends all operations in as few datagrams as the socket takes. The result has the kernel's answers: deleting what is
   * gone is no failure. Rejects only when nothing was done: with NetlinkError, ENOENT where the kernel has no IPVS.
   */
  async commit(operations: readonly IpvsOperation[]): Promise<IpvsResult> {
    if (operations.length === 0) return { unknown: undefined, failures: [], bytes: 0, messages: 0 }
    const link = { connection: this.#connection, clock: this.#clock }
    const family = findIpvs(this.#connection)
    const { refused, loss, bytes, messages } = await sendEach(link, operations, {
      object: 'virtual servers and real servers',
      write: (batch, operation) => writeOperation(batch, operation, family),
      bytesMax: operationBytesMax,
      messagesMax: MESSAGES_MAX,
      // Fewer changes of real servers take a fraction of a millisecond.
      isLong: some => some.length > 64 || some.some(isSlow),
    })
    const failures = refused.map(failureOf).filter(failure => !isGone(failure))
    return { unknown: loss, failures, bytes, messages }
  }

  close(): Promise<void> {
    return this.#connection.close()
  }

  #ask<T>(words: Words, command: number, decode: (view: ByteView, message: Message) => T | undefined): T {
    const family = findIpvs(this.#connection)
    let answer: T | undefined
    this.#connection.roundTrip({
      ...words,
      build: sequence => encodeCommand(command, { family, flags: 0, sequence }),
      onMessage: (view, message) => {
        if (message.type === family) answer = decode(view, message)
      },
    })
    if (answer !== undefined) return answer
    const extendedAck = 'the kernel answered another request'
    throw new NetlinkError({ ...words, errno: errnoNumber('EBADMSG'), extendedAck })
  }
}

function findIpvs(connection: Connection): number {
  try {
    return findFamily(connection, GENL_NAME)
  } catch (cause) {
    if (!isMissing(cause)) throw cause
    const extendedAck = 'the kernel has no IPVS (module ip_vs)'
    throw new NetlinkError({ ...FIND, errno: errnoNumber('ENOENT'), extendedAck, cause })
  }
}

function isMissing(error: unknown): boolean {
  return error instanceof NetlinkError && error.code === 'ENOENT'
}

const FIND = { operation: 'find', object: `generic netlink family ${GENL_NAME}` } as const

/**
 * Lists virtual servers. The kernel counts the servers that it listed and continues from there: when servers come or
 * go between two parts of the answer, it repeats some and omits others, without an indication.
 */
async function listServers(connection: Connection, family: number): Promise<readonly VirtualServer[]> {
  const servers = new Map<ServerKey, VirtualServer>()
  await connection.dump({
    operation: 'list',
    object: 'virtual servers',
    build: sequence => encodeListServers(family, sequence),
    onMessage: (view, message) => {
      const server = message.type === family ? decodeServer(view, message) : undefined
      if (server !== undefined) servers.set(serverKey(server), server)
    },
  })
  return [...servers.values()]
}

/** A socket has one dump at a time (EBUSY), so these run one after the other. */
async function listDestinations(
  connection: Connection,
  family: number,
  server: VirtualAddress,
): Promise<readonly ListedDestination[]> {
  const found = new Map<string, ListedDestination>()
  await connection.dump({
    operation: 'list',
    object: `real servers of ${serverKey(server)}`,
    build: sequence => encodeListDestinations(family, sequence, server),
    onMessage: (view, message) => {
      const listed = message.type === family ? decodeDestination(view, message) : undefined
      if (listed !== undefined) found.set(destinationKey(listed.destination), listed)
    },
  })
  return [...found.values()]
}

/** The kernel may load a module, and it replaces a scheduler only when no packet uses the old one (synchronize_rcu). */
function isSlow({ verb }: IpvsOperation): boolean {
  return verb === 'set-server'
}
