import type { Clock } from '../../base/clock.ts'
import { decodeMessage } from '../../wire/protobuf/decoder.ts'
import type { ApiFeed, FeedStatus } from '../feed.ts'
import { localv1, status as statusMessages } from '../schema.ts'
import type { ApiState } from '../state.ts'
import {
  definitions,
  GrpcHealth,
  type GrpcServer,
  type GrpcServerOptions,
  reflectionMethod,
  startGrpcServer,
} from './grpc-server.ts'
import {
  type Call,
  type CallHandler,
  FAILED_PRECONDITION,
  framed,
  type Methods,
  OK,
  RESOURCE_EXHAUSTED,
  RpcError,
  unary,
} from './rpc.ts'
import { type Reader, type Transfer, Transfers } from './transfers.ts'

export interface ApiServerOptions extends Omit<GrpcServerOptions, 'what' | 'methods'> {
  readonly feed: ApiFeed
  readonly nodeName: string
}

export interface ApiServerCounts extends SetsCounts {
  readonly connections: number
  readonly calls: number
  /** Connections and calls beyond the limits, and requests that are no gRPC; since the start. */
  readonly refused: number
}

export interface ApiServer extends Pick<GrpcServer, 'address' | 'overShare' | 'close'> {
  counts(): ApiServerCounts
}

const { GetRequest, GetResponse } = statusMessages

/**
 * Serves the newest state of a feed over gRPC: `localv1.Sets`, `kprobe.v1.Status`, health and reflection. Rejects with an
 * Error that names the address when kprobe cannot listen there, or when it needs certificates that were not given.
 */
export async function startApiServer(options: ApiServerOptions): Promise<ApiServer> {
  const { clock, feed, nodeName } = options
  const sets = new Sets({ feed, clock, nodeName })
  const { methods, health } = methodsOf(sets, () => ({ ...feed.status(), nodeName, counts: sets.counts() }))
  const server = await startGrpcServer({ ...options, what: 'the API', methods }).catch(thrown => {
    sets.close()
    throw thrown
  })
  const following = serveHealth(health, feed)
  return {
    address: server.address,
    counts: () => ({ ...sets.counts(), ...server.counts }),
    get overShare() {
      return server.overShare
    },
    async close() {
      following.abort()
      await server.close()
      sets.close()
    },
  }
}

function methodsOf(
  sets: Sets,
  status: Parameters<typeof statusMethod>[0],
): { readonly methods: Methods; readonly health: GrpcHealth } {
  const described = definitions()
  const health = new GrpcHealth(described.services)
  const reflection = reflectionMethod(described)
  const methods: Methods = new Map([
    ['/localv1.Sets/Watch', call => sets.watch(call)],
    ['/kprobe.v1.Status/Get', statusMethod(status)],
    ['/grpc.health.v1.Health/Check', health.check],
    ['/grpc.health.v1.Health/Watch', health.watch],
    ['/grpc.reflection.v1.ServerReflection/ServerReflectionInfo', reflection],
    ['/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo', reflection],
  ])
  return { methods, health }
}

/** Everything is served from the first complete list on. */
function serveHealth(health: GrpcHealth, feed: ApiFeed): AbortController {
  const following = new AbortController()
  health.isServing = feed.current !== undefined
  feed.newer(0, following.signal).then(
    () => {
      health.isServing = true
    },
    () => undefined,
  )
  return following
}

function statusMethod(
  status: () => FeedStatus & { readonly nodeName: string; readonly counts: SetsCounts },
): (call: Call) => CallHandler {
  return unary(GetRequest, GetResponse, () => {
    const { nodeName, number, services, endpoints, sinceMs, silentMs, counts, ...its } = status()
    return {
      node_name: nodeName,
      number,
      services,
      endpoints,
      since_ms: sinceMs && Math.round(sinceMs),
      silent_ms: silentMs && Math.round(silentMs),
      source_connected: its.sourceConnected,
      trouble: its.trouble,
      streams: counts.streams,
      waiting: counts.waiting,
    }
  })
}

/** Requests of one stream that wait for their answers: a client sends the next one after a Sync. */
const UNANSWERED_MAX = 16

interface WatcherOptions {
  readonly nodeName: string
  readonly feed: ApiFeed
  readonly transfers: Transfers
  readonly sent: (bytes: number) => void
  readonly closed: () => void
}

/** One stream of `localv1.Sets/Watch`. */
export class Watcher implements CallHandler, Reader {
  readonly #call: Call
  readonly #options: WatcherOptions
  /** The state that the client has: at its last Sync, or the whole state that it gets before one. Held. */
  #position: ApiState | undefined
  #transfer: Transfer | undefined
  #nextBlock = 0
  #unanswered = 0
  #isFull = false
  #mustForget = false
  #hasEnded = false
  #isClosed = false

  constructor(call: Call, options: WatcherOptions) {
    this.#call = call
    this.#options = options
  }

  get isWaiting(): boolean {
    return this.#unanswered > 0 && this.#transfer === undefined
  }

  message(bytes: Buffer): void {
    const { nodeName } = this.#options
    const { NodeName: asked = '' } = decodeMessage(localv1.WatchReq, bytes)
    // Names of nodes are in lower case; those of hosts, which a client may send, need not be.
    if (asked !== '' && asked.toLowerCase() !== nodeName)
      throw new RpcError(
        FAILED_PRECONDITION,
        `this server computes only the state of node ${JSON.stringify(nodeName)}: ` +
          `NodeName ${JSON.stringify(asked.slice(0, 253))}`,
      )
    if (this.#unanswered >= UNANSWERED_MAX)
      throw new RpcError(RESOURCE_EXHAUSTED, `${UNANSWERED_MAX} requests already wait for answers`)
    this.#unanswered++
    this.#answer()
  }

  ended(): void {
    this.#hasEnded = true
    if (this.#unanswered === 0) this.#call.end(OK)
  }

  drained(): void {
    this.#isFull = false
    if (this.#transfer === undefined) this.#answer()
    else {
      this.#options.transfers.progressed(this.#transfer)
      this.#send(this.#transfer)
    }
  }

  closed(): void {
    this.#isClosed = true
    this.#letGo()
    this.#options.closed()
  }

  moved(): void {
    this.#call.attempt(() => this.#answer())
  }

  /** Blocks hold whole messages: between two of them a Reset may stand. */
  evicted(): void {
    this.#mustForget = true
    this.#letGo()
  }

  /** Begins the answer to the oldest request if there is a change, and the client has read the last answer. */
  #answer(): void {
    const { feed, transfers } = this.#options
    const { current } = feed
    if (this.#isClosed || this.#isFull || !this.isWaiting) return
    if (current === undefined || current === this.#position) return
    const transfer = transfers.open(this.#position, current, this)
    if (transfer.isEmpty && this.#position !== undefined) {
      this.#arrive(transfer)
      return
    }
    if (this.#mustForget) this.#write(framed(localv1.OpItem, { Reset: {} }))
    this.#mustForget = false
    this.#begin(transfer)
  }

  #begin(transfer: Transfer): void {
    this.#transfer = transfer
    this.#nextBlock = 0
    this.#send(transfer)
  }

  /** Sends as far as the client reads, and continues when it has read. */
  #send(transfer: Transfer): void {
    for (;;) {
      const block = transfer.block(this.#nextBlock)
      if (block === undefined) break
      this.#nextBlock++
      if (!this.#write(block)) return
    }
    this.#transfer = undefined
    this.#arrive(transfer)
    if (transfer.isWhole) this.#goOn()
    else this.#answered()
  }

  /** Continues after a whole state with the changes since then, or only the Sync. */
  #goOn(): void {
    const { feed, transfers } = this.#options
    const { current } = feed
    if (current !== undefined) this.#begin(transfers.open(this.#position, current, this))
  }

  #answered(): void {
    this.#unanswered--
    if (this.#unanswered > 0) this.#answer()
    else if (this.#hasEnded) this.#call.end(OK)
  }

  #write(frames: Buffer): boolean {
    this.#options.sent(frames.length)
    this.#isFull = !this.#call.write(frames)
    return !this.#isFull
  }

  #arrive(transfer: Transfer): void {
    const { feed, transfers } = this.#options
    feed.hold(transfer.to)
    if (this.#position !== undefined) feed.release(this.#position)
    this.#position = transfer.to
    transfers.close(transfer, this)
  }

  #letGo(): void {
    const { feed, transfers } = this.#options
    if (this.#transfer !== undefined) transfers.close(this.#transfer, this)
    if (this.#position !== undefined) feed.release(this.#position)
    this.#transfer = undefined
    this.#position = undefined
  }
}

/** Streams that are served before the event loop has its turn, which writes: what they need is in the caches until then. */
const STREAMS_PER_TURN = 16

interface SetsOptions {
  readonly feed: ApiFeed
  readonly clock: Clock
  readonly nodeName: string
}

interface SetsCounts {
  /** Streams that are open, and those of them that wait for the next change. */
  readonly streams: number
  readonly waiting: number
  readonly bytes: number
}

/** `localv1.Sets/Watch`: each stream has one position, the state of its last Sync, and there is no queue. */
export class Sets {
  readonly #options: SetsOptions
  readonly #watchers = new Set<Watcher>()
  #bytes = 0
  readonly #transfers: Transfers
  readonly #following = new AbortController()

  constructor(options: SetsOptions) {
    this.#options = options
    this.#transfers = new Transfers(options.feed)
    void this.#follow(this.#following.signal)
  }

  watch(call: Call): CallHandler {
    const { feed, nodeName } = this.#options
    const watcher: Watcher = new Watcher(call, {
      nodeName,
      feed,
      transfers: this.#transfers,
      sent: bytes => {
        this.#bytes += bytes
      },
      closed: () => this.#watchers.delete(watcher),
    })
    this.#watchers.add(watcher)
    return watcher
  }

  counts(): SetsCounts {
    const streams = this.#watchers.size
    let waiting = 0
    for (const watcher of this.#watchers) if (watcher.isWaiting) waiting++
    return { streams, waiting, bytes: this.#bytes }
  }

  close(): void {
    this.#following.abort()
    this.#transfers.moved()
  }

  async #follow(signal: AbortSignal): Promise<void> {
    const { feed, clock } = this.#options
    for (let seen = 0; !signal.aborted; ) {
      const state = await feed.newer(seen, signal).catch(() => undefined)
      if (state === undefined) return
      seen = state.number
      this.#transfers.moved()
      let turn = 0
      for (const watcher of [...this.#watchers]) {
        if (!watcher.isWaiting) continue
        watcher.moved()
        if (++turn % STREAMS_PER_TURN === 0) await clock.breathe()
        if (signal.aborted) return
      }
    }
  }
}
