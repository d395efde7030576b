import { type Clock, pause } from '../base/clock.ts'
import { type Resource, requestPath } from '../source/kube/api-client.ts'
import type { Exchange } from '../source/kube/exchange.ts'

interface PresentOptions {
  readonly clock: Clock
  readonly exchange: Exchange
  readonly resource: Resource
}

/** Minimum time between two requests: what readers claim costs the source no more than that. */
const GATHER_MS = 1_000
const ANSWER_MS_MAX = 8_000

/** Reads the present revision of a collection from the API server, for readers that hold a newer one than the relay. */
export class Present {
  readonly #options: PresentOptions
  readonly #stop = new AbortController()
  #answer: Promise<string> | undefined

  constructor(options: PresentOptions) {
    this.#options = options
  }

  /** The revision of a time after the question; empty if the API server does not answer. */
  ask(): Promise<string> {
    this.#answer ??= this.#read()
    return this.#answer
  }

  stop(): void {
    this.#stop.abort()
  }

  async #read(): Promise<string> {
    const { clock, exchange, resource } = this.#options
    await pause(clock, GATHER_MS, this.#stop.signal)
    // An answer that was begun says nothing to later questions.
    this.#answer = undefined
    const controller = new AbortController()
    const abort = (): void => controller.abort()
    const cancel = clock.after(ANSWER_MS_MAX, abort)
    this.#stop.signal.addEventListener('abort', abort)
    if (this.#stop.signal.aborted) abort()
    try {
      // Without a resourceVersion the list is consistent: no API server may answer from an old cache.
      const path = requestPath(resource, { limit: '1' })
      const opening = { kind: resource.kind, path, signal: controller.signal }
      return (await exchange.list(opening, () => undefined)).resourceVersion
    } catch {
      return ''
    } finally {
      cancel()
      this.#stop.signal.removeEventListener('abort', abort)
    }
  }
}
