import type { Cancel, Clock } from '../../base/clock.ts'
import { watchGroups } from '../../netlink/batch.ts'
import { NFNLGRP_NFTABLES } from '../../netlink/constants.ts'
import { isNetlinkFailure, type Repetition, type Transport } from '../../netlink/transport.ts'
import { generationAttribute, generationRequest } from './dump.ts'

interface GenerationWatchOptions {
  /** A socket of its own. The watch closes it. */
  readonly transport: Transport
  readonly clock: Clock
  /** The port id of the socket that our own commits come from. */
  readonly own: number
  /** Interval of the reads, milliseconds. */
  readonly everyMs: number
  /** The generation may not be the expected one. */
  readonly changed: () => void
}

/**
 * The reads end this long after the last foreign commit. The kernel then announces each element of the next one, which
 * takes that commit up to four times as long: the program that makes it pays this once in so long at most.
 */
const CALM_AFTER_MS = 10_000
/** A notification that was lost is made up for this late. */
const CALM_CHECK_MS = 60_000
/** Announcements fit into a page or two. */
const DATAGRAM_BYTES = 16 * 1024
const MESSAGES_PER_TURN = 1_024

/**
 * Notices new generations. The generation is read again and again without JavaScript; after a calm, the watch subscribes
 * to the kernel's announcements instead, until one of a foreign commit comes: a calm node causes no wakes.
 */
export class GenerationWatch {
  readonly #options: GenerationWatchOptions
  #repetition: Repetition | undefined
  #unsubscribe: (() => void) | undefined
  #cancel: Cancel | undefined

  /** Undefined for a transport that cannot repeat a request, which is closed then. */
  static open(options: GenerationWatchOptions): GenerationWatch | undefined {
    const watch = new GenerationWatch(options)
    if (watch.#repetition !== undefined) return watch
    watch.stop()
    return undefined
  }

  private constructor(options: GenerationWatchOptions) {
    this.#options = options
    this.#read()
  }

  /** Any other generation is news from now on. The kernel puts the attribute right behind what the request has, too. */
  expect(generation: number): void {
    this.#repetition?.expect(generationAttribute(generation))
  }

  stop(): void {
    this.#cancel?.()
    this.#repetition?.stop()
    this.#unsubscribe?.()
    void this.#options.transport.close()
  }

  #read(): void {
    const { transport, everyMs } = this.#options
    this.#repetition = transport.repeat?.(generationRequest(), everyMs, () => this.#moved())
    this.#again(CALM_AFTER_MS)
  }

  #moved(): void {
    this.#again(CALM_AFTER_MS)
    this.#options.changed()
  }

  #again(ms: number): void {
    this.#cancel?.()
    this.#cancel = this.#options.clock.after(ms, () => this.#calm())
  }

  /** Subscribes, unless it did before. A check makes up for what happened until then. */
  #calm(): void {
    try {
      this.#unsubscribe ??= this.#subscribed()
      this.#again(CALM_CHECK_MS)
    } catch (error) {
      if (!isNetlinkFailure(error)) throw error
      this.#read()
    }
    this.#options.changed()
  }

  #subscribed(): () => void {
    const { transport, own } = this.#options
    let isForeign = false
    // The kernel announces nothing before this, so that the reads find only their answers.
    this.#repetition?.stop()
    this.#repetition = undefined
    return watchGroups({
      transport,
      groups: [NFNLGRP_NFTABLES],
      datagramBytes: DATAGRAM_BYTES,
      messagesPerTurn: MESSAGES_PER_TURN,
      take: (_, { portId }) => {
        isForeign ||= portId !== own
      },
      lost: () => {
        isForeign = true
      },
      turned: () => {
        if (isForeign) this.#leave()
      },
    })
  }

  #leave(): void {
    this.#unsubscribe?.()
    this.#unsubscribe = undefined
    this.#read()
    this.#moved()
  }
}
