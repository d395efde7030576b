import type { Cancel, Clock } from '../../base/clock.ts'
import { watchGroups } from '../../netlink/batch.ts'
import { NFNLGRP_NFTABLES } from '../../netlink/constants.ts'
import type { Message } from '../../netlink/message.ts'
import { isNetlinkFailure, type Repetition, type Transport } from '../../netlink/transport.ts'
import { generationAttribute, generationRequest } from './dump.ts'

interface GenerationWatchOptions {
  /** A socket of its own. The watch closes it. */
  readonly transport: Transport
  readonly clock: Clock
  readonly own: number
  readonly everyMs: number
  readonly changed: () => void
}

/**
 * The reads end this long after the last foreign commit. The kernel then announces each element of the next one, which
 * takes that commit up to four times as long: the program that makes it pays this once in so long at most.
 */
const CALM_AFTER_MS = 10_000
/** A notification that was lost is made up for this late. */
const CALM_CHECK_MS = 60_000
const RECEIVING = { groups: [NFNLGRP_NFTABLES], datagramBytes: 16 * 1024, messagesPerTurn: 1_024 } as const

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
    if (options.transport.repeat !== undefined) return new GenerationWatch(options)
    void options.transport.close()
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
    const { transport, everyMs, changed } = this.#options
    this.#again(CALM_AFTER_MS)
    this.#repetition = transport.repeat?.(generationRequest(), everyMs, () => {
      this.#again(CALM_AFTER_MS)
      changed()
    })
  }

  #again(ms: number): void {
    this.#cancel?.()
    this.#cancel = this.#options.clock.after(ms, () => this.#calm())
  }

  /** Subscribes, unless it did before. A check makes up for what happened until then. */
  #calm(): void {
    this.#again(CALM_CHECK_MS)
    this.#unsubscribe ??= this.#subscribed()
    this.#options.changed()
  }

  #subscribed(): (() => void) | undefined {
    const { transport, own } = this.#options
    let isForeign = false
    // The kernel announces nothing before this, so that the reads find only their answers.
    this.#repetition?.stop()
    this.#repetition = undefined
    try {
      const heard = (_: unknown, message?: Message) => (isForeign ||= message?.portId !== own)
      const turned = () => isForeign && this.#leave()
      return watchGroups({ ...RECEIVING, transport, take: heard, lost: heard, turned })
    } catch (error) {
      if (!isNetlinkFailure(error)) throw error
      this.#read()
      return undefined
    }
  }

  #leave(): void {
    this.#unsubscribe?.()
    this.#unsubscribe = undefined
    this.#read()
    this.#options.changed()
  }
}
