import type { Clock } from '../../base/clock.ts'
import type { ApiFeed } from '../feed.ts'
import { resetFrame } from '../op-item.ts'
import type { ApiState } from '../state.ts'
import { readText } from './protobuf.ts'
import { type Call, type CallHandler, FAILED_PRECONDITION, OK, RESOURCE_EXHAUSTED, RpcError } from './rpc.ts'
import type { Transfer } from './transfer.ts'
import { Transfers } from './transfers.ts'

/** Requests of one stream that wait for their answers: a client sends the next one after a Sync. */
const UNANSWERED_MAX = 16
/** Streams that are served before the event loop has its turn, which writes: what they need is in the caches until then. */
const STREAMS_PER_TURN = 16
const NODE_NAME = 1

export interface SetsOptions {
  readonly feed: ApiFeed
  readonly clock: Clock
  /** Of the node whose view is served: what is asked for another one is refused. */
  readonly nodeName: string
}

export interface SetsCounts {
  /** Streams that are open, and those of them that wait for the next change. */
  readonly streams: number
  readonly waiting: number
  /** Since the start: Set and Delete operations, and Syncs. */
  readonly operations: number
  readonly syncs: number
  readonly bytes: number
  /** Bytes of blocks that are in transfer, or kept for the next client. */
  readonly heldBytes: number
}

/** `localv1.Sets/Watch`: each stream has one position, the state of its last Sync, and there is no queue. */
export class Sets {
  readonly #options: SetsOptions
  readonly #watchers = new Set<Watcher>()
  readonly #sent: Sent = { operations: 0, syncs: 0, bytes: 0 }
  #served: Served
  #following = new AbortController()

  constructor(options: SetsOptions) {
    this.#options = options
    this.#served = this.#serve(options.feed)
  }

  watch(call: Call): CallHandler {
    const { nodeName } = this.#options
    const watcher: Watcher = new Watcher(call, {
      nodeName,
      served: this.#served,
      sent: this.#sent,
      closed: () => this.#watchers.delete(watcher),
    })
    this.#watchers.add(watcher)
    return watcher
  }

  /** Serves another state, which has nothing to do with the one before: clients are told to forget what they have. */
  replace(feed: ApiFeed): void {
    const before = this.#served
    this.#following.abort()
    this.#following = new AbortController()
    this.#served = this.#serve(feed)
    for (const watcher of [...this.#watchers]) watcher.replace(this.#served)
    before.transfers.end()
  }

  counts(): SetsCounts {
    const streams = this.#watchers.size
    let waiting = 0
    for (const watcher of this.#watchers) if (watcher.isWaiting) waiting++
    return { streams, waiting, ...this.#sent, heldBytes: this.#served.transfers.held().bytes }
  }

  close(): void {
    this.#following.abort()
    this.#served.transfers.end()
  }

  #serve(feed: ApiFeed): Served {
    const served = { feed, transfers: new Transfers(feed, this.#options.clock) }
    void this.#follow(served, this.#following.signal)
    return served
  }

  async #follow({ feed, transfers }: Served, signal: AbortSignal): Promise<void> {
    for (let seen = 0; !signal.aborted; ) {
      const state = await feed.newer(seen, signal).catch(() => undefined)
      if (state === undefined) return
      seen = state.number
      transfers.moved()
      let turn = 0
      for (const watcher of [...this.#watchers]) {
        if (!watcher.isWaiting) continue
        watcher.moved()
        if (++turn % STREAMS_PER_TURN === 0) await this.#options.clock.breathe()
        if (signal.aborted) return
      }
    }
  }
}

interface Served {
  readonly feed: ApiFeed
  readonly transfers: Transfers
}

interface Sent {
  operations: number
  syncs: number
  bytes: number
}

interface WatcherOptions {
  readonly nodeName: string
  readonly served: Served
  readonly sent: Sent
  readonly closed: () => void
}

class Watcher implements CallHandler {
  readonly #call: Call
  readonly #options: WatcherOptions
  #served: Served
  /** Of the last Sync: held. */
  #position: ApiState | undefined
  #transfer: Transfer | undefined
  #nextBlock = 0
  #unanswered = 0
  #mustForget = false
  #hasEnded = false
  #isClosed = false

  constructor(call: Call, options: WatcherOptions) {
    this.#call = call
    this.#options = options
    this.#served = options.served
  }

  get isWaiting(): boolean {
    return this.#unanswered > 0 && this.#transfer === undefined
  }

  message(bytes: Buffer): void {
    const { nodeName } = this.#options
    const asked = readText(bytes, NODE_NAME)
    if (asked !== '' && asked !== nodeName)
      throw new RpcError(
        FAILED_PRECONDITION,
        `this server computes what node ${JSON.stringify(nodeName)} needs, and no other: ` +
          `NodeName ${JSON.stringify(asked.slice(0, 253))}`,
      )
    if (this.#unanswered >= UNANSWERED_MAX)
      throw new RpcError(RESOURCE_EXHAUSTED, `${UNANSWERED_MAX} requests wait for answers already`)
    this.#unanswered++
    this.answer()
  }

  ended(): void {
    this.#hasEnded = true
    if (this.#unanswered === 0) this.#call.end(OK)
  }

  drained(): void {
    if (this.#transfer !== undefined) this.#send(this.#transfer)
  }

  closed(): void {
    this.#isClosed = true
    this.#letGo()
    this.#options.closed()
  }

  /** There is another state. */
  moved(): void {
    this.#call.attempt(() => this.answer())
  }

  /** Begins the answer to the oldest request if there is something to tell. */
  answer(): void {
    const { feed, transfers } = this.#served
    const { current } = feed
    if (this.#isClosed || !this.isWaiting || current === undefined || current === this.#position) return
    const { transfer, isReset } = transfers.open(this.#position, current)
    if (transfer.isEmpty && this.#position !== undefined) {
      this.#arrive(transfer)
      return
    }
    this.#transfer = transfer
    this.#nextBlock = 0
    if (isReset || this.#mustForget) this.#write(resetFrame())
    this.#mustForget = false
    this.#send(transfer)
  }

  replace(served: Served): void {
    // Blocks hold whole messages: between two of them a Reset may stand.
    this.#mustForget ||= this.#position !== undefined || this.#transfer !== undefined
    this.#letGo()
    this.#served = served
    this.moved()
  }

  /** As far as the client reads; then again when it has read. */
  #send(transfer: Transfer): void {
    for (;;) {
      const block = transfer.block(this.#nextBlock)
      if (block === undefined) break
      this.#nextBlock++
      this.#options.sent.operations += block.operations
      if (!this.#write(block.frames)) return
    }
    this.#transfer = undefined
    this.#unanswered--
    this.#options.sent.syncs++
    this.#arrive(transfer)
    if (this.#unanswered > 0) this.answer()
    else if (this.#hasEnded) this.#call.end(OK)
  }

  #write(frames: Buffer): boolean {
    this.#options.sent.bytes += frames.length
    return this.#call.write(frames)
  }

  #arrive(transfer: Transfer): void {
    const { feed, transfers } = this.#served
    feed.hold(transfer.to)
    if (this.#position !== undefined) feed.release(this.#position)
    this.#position = transfer.to
    transfers.close(transfer)
  }

  #letGo(): void {
    const { feed, transfers } = this.#served
    if (this.#transfer !== undefined) transfers.close(this.#transfer)
    if (this.#position !== undefined) feed.release(this.#position)
    this.#transfer = undefined
    this.#position = undefined
  }
}
