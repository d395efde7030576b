import type { Clock } from '../../base/clock.ts'
import { errorOf } from '../../base/failure-text.ts'
import type { ApiFeed } from '../feed.ts'
import type { Call, CallHandler } from './rpc.ts'
import { Transfers } from './transfers.ts'
import { type Sent, Watcher } from './watcher.ts'

/** Streams that are served before the event loop has its turn, which writes: what they need is in the caches until then. */
const STREAMS_PER_TURN = 16

interface SetsOptions {
  readonly feed: ApiFeed
  readonly clock: Clock
  /** The node whose state is served: requests for other nodes are rejected. */
  readonly nodeName: string
  /** An error of ours; what there is goes on being served. */
  readonly failed: (error: Error) => void
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
  readonly #transfers: Transfers
  readonly #following = new AbortController()

  constructor(options: SetsOptions) {
    this.#options = options
    this.#transfers = new Transfers(options)
    void this.#follow(this.#following.signal)
  }

  watch(call: Call): CallHandler {
    const { feed, nodeName } = this.#options
    const watcher: Watcher = new Watcher(call, {
      nodeName,
      feed,
      transfers: this.#transfers,
      sent: this.#sent,
      closed: () => this.#watchers.delete(watcher),
    })
    this.#watchers.add(watcher)
    return watcher
  }

  counts(): SetsCounts {
    const streams = this.#watchers.size
    let waiting = 0
    for (const watcher of this.#watchers) if (watcher.isWaiting) waiting++
    return { streams, waiting, ...this.#sent, heldBytes: this.#transfers.heldBytes }
  }

  close(): void {
    this.#following.abort()
    this.#transfers.end()
  }

  async #follow(signal: AbortSignal): Promise<void> {
    const { feed, clock } = this.#options
    for (let seen = 0; !signal.aborted; ) {
      const state = await feed.newer(seen, signal).catch(() => undefined)
      if (state === undefined) return
      seen = state.number
      this.#move()
      let turn = 0
      for (const watcher of [...this.#watchers]) {
        if (!watcher.isWaiting) continue
        watcher.moved()
        if (++turn % STREAMS_PER_TURN === 0) await clock.breathe()
        if (signal.aborted) return
      }
    }
  }

  /** Whatever happens, the waiting clients get an answer. */
  #move(): void {
    try {
      this.#transfers.moved()
    } catch (thrown) {
      this.#options.failed(errorOf(thrown))
    }
  }
}
