import type { Clock } from '../../base/clock.ts'
import type { Ip } from '../../base/ip.ts'
import { PROTOCOL_NUMBERS } from '../../base/ip-packet.ts'
import type { ByteView } from '../../netlink/attribute.ts'
import { sendEach } from '../../netlink/batch.ts'
import { Connection, type Sender } from '../../netlink/connection.ts'
import { NLM_F_DUMP } from '../../netlink/constants.ts'
import { errnoNumber, NetlinkError } from '../../netlink/errors.ts'
import { type Message, nfSpan } from '../../netlink/message.ts'
import { readAttributes, type ValuesOf } from '../../netlink/schema.ts'
import type { Transport } from '../../netlink/transport.ts'
import {
  decodeFlow,
  decodeHead,
  deleteBytesMax,
  encodeDump,
  encodeReplyDump,
  encodeRequest,
  type Flow,
  type FlowFilter,
  familyNumber,
  IPCTNL_MSG_CT_GET,
  IPCTNL_MSG_CT_GET_STATS,
  IPCTNL_MSG_CT_GET_STATS_CPU,
  IPCTNL_MSG_CT_NEW,
  messageType,
  type ReplyFilter,
  STATS_CPU,
  STATS_GLOBAL,
  writeDelete,
} from './flow.ts'

export interface ConntrackClient {
  /**
   * Visits the entries that pass the filter one at a time and keeps none. Returns false when the kernel reports that
   * its table changed during the dump: entries may then be missing, but every visited entry existed. Rejects with
   * NetlinkError or SystemError.
   */
  dump(filter: FlowFilter, visitor: FlowVisitor): Promise<boolean>
  /**
   * Deletes entries, many per datagram. An entry that is gone, or that a newer entry with the same tuple replaced, is
   * no error. Rejects with NetlinkError for any other answer of the kernel, and when nothing was sent.
   */
  delete(flows: readonly Flow[]): Promise<DeleteCount>
  statistics(): Promise<ConntrackStatistics>
  close(): Promise<void>
}

/** A client that also lists entries for people. */
export interface ConntrackReader extends ConntrackClient {
  /** Visits all entries as `dump` does, and leaves their decoding to `take`; the bytes are valid until it returns. */
  dumpAll(take: TakeEntry): Promise<boolean>
  /** Does so for these entries. Linux before 5.15 also visits the others. */
  dumpByReply(filter: ReplyFilter, take: TakeEntry): Promise<boolean>
}

export type TakeEntry = (view: ByteView, message: Message) => void

export interface FlowVisitor {
  /** Returns whether to decode an entry with this original destination. Called for each that passes the filter. */
  readonly isWanted: (destination: Ip, port: number) => boolean
  readonly visit: (flow: Flow) => void
}

interface DeleteCount {
  readonly deleted: number
  readonly gone: number
}

/** The counters of this network namespace; `entriesMax` is the limit of the whole machine. */
export interface ConntrackStatistics {
  readonly entries: number
  /** Undefined where the kernel does not report it (before Linux 5.9). */
  readonly entriesMax: number | undefined
  /** Entries that clashed with another entry when the kernel confirmed them; it dropped their packets. */
  readonly insertFailed: number
  /** Packets dropped because the table was full, or memory short. */
  readonly dropped: number
  /** Entries that the kernel evicted to make room for newer ones. */
  readonly droppedEarly: number
}

interface ConntrackClientOptions {
  /** Opens a socket of NETLINK_NETFILTER; the client has two, so that it can delete while it reads. */
  readonly openTransport: () => Transport
  readonly clock: Clock
}

/** Maximum deletions per datagram: the errors of all of them fit into a receive buffer that cannot be forced. */
const DELETES_A_SEND = 256

/** The kernel begins a dump within the send, and walks all of its table there for a filter that few entries pass. */
const POOLED = { pool: true } as const

export function createConntrackClient(options: ConntrackClientOptions): ConntrackReader {
  return new NetlinkConntrackClient(options)
}

class NetlinkConntrackClient implements ConntrackReader {
  readonly #reading: Socket
  readonly #deleting: Socket
  readonly #clock: Clock

  constructor({ openTransport, clock }: ConntrackClientOptions) {
    this.#clock = clock
    // A dump of a million entries takes seconds on a busy machine.
    const connect = (transport: Transport) => new Connection({ transport, clock, timeoutMs: 60_000 })
    this.#reading = new Socket(() => warmedUp(connect(openTransport())))
    this.#deleting = new Socket(async () => connect(openTransport()))
  }

  dump(filter: FlowFilter, visitor: FlowVisitor): Promise<boolean> {
    const accept = acceptor(filter, visitor)
    return this.#reading.use(connection =>
      connection.dump(
        {
          operation: 'list',
          object: `${filter.protocol} flows of ${filter.family}`,
          build: sequence => encodeDump(filter, sequence),
          onMessage: accept,
        },
        POOLED,
      ),
    )
  }

  dumpAll(take: TakeEntry): Promise<boolean> {
    return this.#list(sequence => encodeRequest(IPCTNL_MSG_CT_GET, NLM_F_DUMP, sequence), take)
  }

  dumpByReply(filter: ReplyFilter, take: TakeEntry): Promise<boolean> {
    return this.#list(sequence => encodeReplyDump(filter, sequence), take)
  }

  #list(build: (sequence: number) => Uint8Array, take: TakeEntry): Promise<boolean> {
    const newType = messageType(IPCTNL_MSG_CT_NEW)
    return this.#reading.use(connection =>
      connection.dump(
        {
          operation: 'list',
          object: 'flows',
          build,
          onMessage: (view, message) => {
            if (message.type === newType) take(view, message)
          },
        },
        POOLED,
      ),
    )
  }

  async delete(flows: readonly Flow[]): Promise<DeleteCount> {
    if (flows.length === 0) return { deleted: 0, gone: 0 }
    const clock = this.#clock
    const gone = await this.#deleting.use(connection => sendDeletes({ connection, clock }, flows))
    return { deleted: flows.length - gone, gone }
  }

  statistics(): Promise<ConntrackStatistics> {
    return this.#deleting.use(readStatistics)
  }

  async close(): Promise<void> {
    await Promise.all([this.#reading.close(), this.#deleting.close()])
  }
}

/** A connection that opens on demand and reopens after a failure. */
class Socket {
  readonly #connect: () => Promise<Connection>
  #connecting: Promise<Connection> | undefined

  constructor(connect: () => Promise<Connection>) {
    this.#connect = connect
  }

  async use<T>(work: (connection: Connection) => Promise<T>): Promise<T> {
    this.#connecting ??= this.#connect()
    const connecting = this.#connecting
    try {
      return await work(await connecting)
    } catch (error) {
      if (this.#connecting === connecting) await this.close()
      throw error
    }
  }

  async close(): Promise<void> {
    const connecting = this.#connecting
    this.#connecting = undefined
    const [connected] = await Promise.allSettled([connecting])
    if (connected.status === 'fulfilled') await connected.value?.close()
  }
}

/**
 * Receives something into a large buffer first: the kernel then sends dumps in datagrams of 32 KiB instead of 4
 * (netlink_dump in net/netlink/af_netlink.c). This includes the first datagram, some 150 entries that the thread pool
 * has already fetched.
 */
async function warmedUp(connection: Connection): Promise<Connection> {
  try {
    await dumpStatistics(connection, () => undefined)
    return connection
  } catch (error) {
    await connection.close()
    throw error
  }
}

/** Visits the entries that match the filter, also where the kernel did not compare all of it. */
function acceptor(filter: FlowFilter, { isWanted, visit }: FlowVisitor) {
  const { family, protocol, destination, destinationPort } = filter
  const [wantedFamily, wantedProtocol] = [familyNumber(family), PROTOCOL_NUMBERS[protocol]]
  const newType = messageType(IPCTNL_MSG_CT_NEW)
  return (view: ByteView, message: Message): void => {
    if (message.type !== newType) return
    const head = decodeHead(view, message)
    if (head.protocolNumber !== wantedProtocol || head.familyNumber !== wantedFamily) return
    if (destination !== undefined && head.destination !== destination) return
    if (destinationPort !== undefined && head.destinationPort !== destinationPort) return
    if (isWanted(head.destination, head.destinationPort))
      visit(decodeFlow(view, message, { family, protocol, ...head }))
  }
}

/** Returns the number of entries that were already gone. */
async function sendDeletes(sender: Sender, flows: readonly Flow[]): Promise<number> {
  const object = 'flows'
  const { refused, loss } = await sendEach(sender, flows, {
    object,
    write: writeDelete,
    bytesMax: deleteBytesMax,
    messagesMax: DELETES_A_SEND,
  })
  const failure = refused.find(({ errno }) => errno !== ENOENT)
  if (failure !== undefined) throw new NetlinkError({ operation: 'delete', object, ...failure })
  if (loss !== undefined) throw loss
  return refused.length
}

const ENOENT = errnoNumber('ENOENT')

async function readStatistics(connection: Connection): Promise<ConntrackStatistics> {
  let [entries, entriesMax]: [number, number | undefined] = [0, undefined]
  let [insertFailed, dropped, droppedEarly] = [0, 0, 0]
  connection.roundTrip({
    ...STATISTICS,
    build: sequence => encodeRequest(IPCTNL_MSG_CT_GET_STATS, 0, sequence),
    onMessage: (view, message) => {
      const read = readAttributes(view, STATS_GLOBAL, nfSpan(message))
      entries = read.entries ?? 0
      entriesMax = read.entriesMax
    },
  })
  await dumpStatistics(connection, read => {
    insertFailed += read.insertFailed ?? 0
    dropped += read.drop ?? 0
    droppedEarly += read.earlyDrop ?? 0
  })
  return { entries, entriesMax, insertFailed, dropped, droppedEarly }
}

async function dumpStatistics(
  connection: Connection,
  take: (ofProcessor: ValuesOf<typeof STATS_CPU>) => void,
): Promise<void> {
  await connection.dump({
    ...STATISTICS,
    build: sequence => encodeRequest(IPCTNL_MSG_CT_GET_STATS_CPU, NLM_F_DUMP, sequence),
    onMessage: (view, message) => take(readAttributes(view, STATS_CPU, nfSpan(message))),
  })
}

const STATISTICS = { operation: 'read', object: 'statistics of conntrack' } as const
