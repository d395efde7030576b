import { type Clock, Slice, slicingOf } from '../../base/clock.ts'
import { familyOf } from '../../base/ip.ts'
import type { ByteView } from '../../netlink/attribute.ts'
import { sendEach } from '../../netlink/batch.ts'
import { type Answers, Connection, type ConnectionOptions } from '../../netlink/connection.ts'
import { NLM_F_ACK } from '../../netlink/constants.ts'
import type { Words } from '../../netlink/conversation.ts'
import { errnoNumber, NetlinkError } from '../../netlink/errors.ts'
import { findFamily } from '../../netlink/genetlink.ts'
import type { Message } from '../../netlink/message.ts'
import { isNetlinkFailure } from '../../netlink/transport.ts'
import {
  decodeDestination,
  decodeInfo,
  decodeServer,
  decodeTimeouts,
  encodeCommand,
  encodeFindServer,
  encodeListDestinations,
  encodeListServers,
  firstStep,
  type Step,
  stepBytesMax,
  writeStep,
} from './messages.ts'
import { followUp, lastFailures, type Refusal, refusalOf } from './refusals.ts'
import {
  destinationKey,
  IPVS_CMD_GET_CONFIG,
  IPVS_CMD_GET_INFO,
  IPVS_CMD_NEW_SERVICE,
  IPVS_CMD_SET_CONFIG,
  IPVS_CMD_SET_SERVICE,
  type IpvsInfo,
  type IpvsOperation,
  type IpvsTimeouts,
  type ListedDestination,
  type ServerKey,
  serverKey,
  type VirtualAddress,
  type VirtualServer,
} from './state.ts'

/** A client for the kernel's IPVS (generic netlink family IPVS), with the operations that kprobe uses. */
export interface IpvsClient {
  /** Reads version and table size. Throws NetlinkError ENOENT where the kernel has no IPVS. */
  info(): IpvsInfo
  /** Tests whether the kernel has virtual servers with IPv6 addresses (CONFIG_IP_VS_IPV6). Reads only. */
  hasIpv6(): boolean
  timeouts(): IpvsTimeouts
  setTimeouts(timeouts: IpvsTimeouts): void
  /** Lists the virtual servers of this network namespace, without those of marks. */
  servers(): Promise<readonly VirtualServer[]>
  /** Lists the real servers of each virtual server in one conversation; a virtual server that is gone has none. */
  destinations(servers: readonly VirtualAddress[]): Promise<readonly (readonly ListedDestination[])[]>
  /**
   * Sends all operations in as few datagrams as the socket takes. The result has the kernel's answers. Rejects only
   * when nothing was done: with NetlinkError, ENOENT where the kernel has no IPVS.
   */
  commit(operations: readonly IpvsOperation[]): Promise<IpvsResult>
  close(): Promise<void>
}

export type IpvsResult = Answers<IpvsFailure>

interface IpvsFailure {
  readonly operation: IpvsOperation
  /** Name of the errno: ENOENT of set-server means that the kernel lacks the scheduler. */
  readonly code: string
  readonly error: Error
}

/** The errors of this many messages take 850 kB of the receive buffer; more messages per datagram save no time. */
const MESSAGES_MAX = 1_000
const GENL_NAME = 'IPVS'

/** An address of the discard prefix (RFC 6666): the kernel answers ESRCH, or EAFNOSUPPORT without IPv6. */
const NOT_THERE: VirtualAddress = { protocol: 'TCP', ip: `\x01${'\0'.repeat(15)}`, port: 9 }
const NOT_FOUND: ReadonlySet<string> = new Set(['ESRCH', 'EAFNOSUPPORT'])

/** Creates a client over a NETLINK_GENERIC socket; the client closes it. */
export function createIpvsClient(options: ConnectionOptions): IpvsClient {
  return new NetlinkIpvsClient(options)
}

class NetlinkIpvsClient implements IpvsClient {
  readonly #connection: Connection
  readonly #clock: Clock
  /** The message type of IPVS; it changes when the kernel's module is reloaded. */
  #family: number | undefined

  constructor(options: ConnectionOptions) {
    this.#connection = new Connection(options)
    this.#clock = options.clock
  }

  info(): IpvsInfo {
    const words = { operation: 'read', object: 'information about IPVS' }
    return this.#ask(words, IPVS_CMD_GET_INFO, decodeInfo)
  }

  hasIpv6(): boolean {
    try {
      this.#withFamily(family =>
        this.#connection.roundTrip({
          operation: 'find',
          object: `virtual server ${serverKey(NOT_THERE)}`,
          build: sequence => encodeFindServer(family, sequence, NOT_THERE),
          onMessage: () => undefined,
        }),
      )
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
    this.#withFamily(family =>
      this.#connection.roundTrip({
        operation: 'set',
        object: `timeouts of IPVS to ${tcpS}, ${tcpFinS} and ${udpS} seconds`,
        build: sequence => {
          const head = { family, flags: NLM_F_ACK, sequence }
          return encodeCommand(IPVS_CMD_SET_CONFIG, head, { tcpS, tcpFinS, udpS })
        },
        onMessage: () => undefined,
      }),
    )
  }

  servers(): Promise<readonly VirtualServer[]> {
    return this.#withFamilyLater(family => listServers(this.#connection, family))
  }

  destinations(servers: readonly VirtualAddress[]): Promise<readonly (readonly ListedDestination[])[]> {
    return this.#withFamilyLater(async family => {
      const lists: (readonly ListedDestination[])[] = []
      const slice = new Slice(slicingOf(this.#clock))
      for (const server of servers) {
        lists.push(await listDestinations(this.#connection, family, server))
        if (slice.isOver) await slice.next()
      }
      return lists
    })
  }

  async commit(operations: readonly IpvsOperation[]): Promise<IpvsResult> {
    if (operations.length === 0) return { unknown: undefined, failures: [], bytes: 0, messages: 0 }
    const first = await this.#sendFirst(operations.map(firstStep))
    const { again, failures } = followUp(first.refusals)
    if (first.loss !== undefined || again.length === 0) return resultOf(operations, [first], failures)
    const second = await this.#send(again)
    return resultOf(operations, [first, second], [...failures, ...lastFailures(second.refusals)])
  }

  close(): Promise<void> {
    return this.#connection.close()
  }

  /** The kernel also answers ENOENT to a message type that no longer belongs to a family. */
  async #sendFirst(steps: readonly Step[]): Promise<SentSteps> {
    const sent = await this.#send(steps)
    const mayBeStale = sent.loss === undefined && sent.refusals.some(({ code }) => code === 'ENOENT')
    if (!mayBeStale) return sent
    try {
      if (!this.#isStale()) return sent
    } catch (error) {
      if (isMissing(error) || !isNetlinkFailure(error)) throw error
      return { ...sent, loss: error }
    }
    return await this.#send(steps)
  }

  async #send(steps: readonly Step[]): Promise<SentSteps> {
    const link = { connection: this.#connection, clock: this.#clock }
    const family = this.#familyNow()
    const { refused, ...sent } = await sendEach(link, steps, {
      object: 'virtual servers and real servers',
      write: (batch, step) => writeStep(batch, step, family),
      bytesMax: stepBytesMax,
      messagesMax: MESSAGES_MAX,
      // Fewer changes of real servers take a fraction of a millisecond.
      isLong: some => some.length > 64 || some.some(isSlow),
    })
    return { ...sent, refusals: refused.map(refusalOf) }
  }

  #familyNow(): number {
    this.#family ??= findIpvs(this.#connection)
    return this.#family
  }

  /** Reads the message type of IPVS again; returns whether it differs from the one that was used. */
  #isStale(): boolean {
    const used = this.#family
    this.#family = undefined
    return this.#familyNow() !== used
  }

  #withFamily<T>(run: (family: number) => T): T {
    try {
      return run(this.#familyNow())
    } catch (error) {
      if (!isMissing(error) || this.#family === undefined || !this.#isStale()) throw error
      return run(this.#familyNow())
    }
  }

  async #withFamilyLater<T>(run: (family: number) => Promise<T>): Promise<T> {
    try {
      return await run(this.#familyNow())
    } catch (error) {
      if (!isMissing(error) || this.#family === undefined || !this.#isStale()) throw error
      return await run(this.#familyNow())
    }
  }

  #ask<T>(words: Words, command: number, decode: (view: ByteView, message: Message) => T | undefined): T {
    return this.#withFamily(family => {
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
    })
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

const FIND = { operation: 'find', object: `generic netlink family ${GENL_NAME}` } as const

function isMissing(error: unknown): error is NetlinkError {
  return error instanceof NetlinkError && error.code === 'ENOENT'
}

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
      if (message.type !== family) return
      const listed = decodeDestination(view, message, familyOf(server.ip))
      if (listed !== undefined) found.set(destinationKey(listed.destination), listed)
    },
  })
  return [...found.values()]
}

/** Returns the failures in the order of the operations. */
function resultOf(
  operations: readonly IpvsOperation[],
  rounds: readonly SentSteps[],
  failures: readonly Refusal[],
): IpvsResult {
  const byOperation = new Map(failures.map(failure => [failure.step.operation, failure]))
  const ordered: IpvsFailure[] = []
  if (failures.length > 0)
    for (const operation of operations) {
      const failure = byOperation.get(operation)
      if (failure !== undefined) ordered.push({ operation, code: failure.code, error: failure.error })
    }
  return {
    unknown: rounds.find(({ loss }) => loss !== undefined)?.loss,
    failures: ordered,
    bytes: rounds.reduce((sum, { bytes }) => sum + bytes, 0),
    messages: rounds.reduce((sum, { messages }) => sum + messages, 0),
  }
}

interface SentSteps {
  readonly refusals: readonly Refusal[]
  /** Set when answers were lost; later steps were not sent. */
  readonly loss: Error | undefined
  readonly bytes: number
  readonly messages: number
}

/** The kernel may load a module, and it replaces a scheduler only when no packet uses the old one (synchronize_rcu). */
function isSlow({ command }: Step): boolean {
  return command === IPVS_CMD_SET_SERVICE || command === IPVS_CMD_NEW_SERVICE
}
