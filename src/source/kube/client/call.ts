import { ApiError } from '../api-client.ts'

/** A request as it goes out, credentials included: never to be printed. */
export interface Outgoing {
  readonly method: string
  /** The path, with the server's base path. */
  readonly path: string
  /** Names in lower case. */
  readonly headers: Readonly<Record<string, string | string[]>>
  readonly body: string | undefined
  /** Longest silence between two pieces of the response's body, milliseconds; a watch has no such limit. */
  readonly idleMs: number
  readonly longLived: boolean
  /** The limit of a watch where the connection itself notices no dead peer (HTTP/1.1), milliseconds. */
  readonly watchIdleMs: number
}

/** Tests whether a response may be silent for as long as its connection lives: a refused watch has an end. */
export function isWatch({ longLived }: Outgoing, status: number): boolean {
  return longLived && status === 200
}

/** Bounds the head of an answer. */
export const HEAD_BYTES_MAX = 64 * 1024

/**
 * One request on its way, over however many parts it passes through. The first failure stays; whatever waits for the
 * request gets it, and so do the parts that hold a resource to release.
 */
export class Call {
  readonly #words: string
  #failWatchers: ((error: ApiError) => void)[] = []
  #overWatchers: (() => void)[] = []
  #error: ApiError | undefined
  #over = false

  constructor({ method, path }: { readonly method: string; readonly path: string }, server: string) {
    // Without the query, which may be long: the cause stands at the end of the line.
    this.#words = `${method} ${path.split('?')[0] ?? ''} at ${server}`
  }

  /** It has failed or is finished: its caller waits for no answer. */
  get isOver(): boolean {
    return this.#over
  }

  /** `reason` speaks of the cause alone; the request's own words are put before it. */
  fail(reason: ApiError): void {
    if (this.#over) return
    this.#error = new ApiError(reason.kind, `${this.#words}: ${reason.message}`, { cause: reason })
    const watchers = this.#failWatchers
    this.finish()
    for (const watcher of watchers) watcher(this.#error)
  }

  /** The response has arrived or was given up: nothing can fail any more. */
  finish(): void {
    if (this.#over) return
    this.#over = true
    this.#failWatchers = []
    for (const watcher of this.#overWatchers.splice(0)) watcher()
  }

  /** Calls `run` once when the request fails, at once when it has. */
  onFail(run: (error: ApiError) => void): void {
    if (this.#error !== undefined) run(this.#error)
    else if (!this.#over) this.#failWatchers.push(run)
  }

  /** Calls `run` once when the request has failed or is finished. */
  onOver(run: () => void): void {
    this.#overWatchers.push(run)
  }

  /** Gives the result of `work`, unless the request fails first; ApiErrors that `work` throws become its failure. */
  async until<T>(work: Promise<T>): Promise<T> {
    const failed = new Promise<never>((_, reject) => this.onFail(reject))
    try {
      const result = await Promise.race([work, failed])
      if (this.#error === undefined) return result
    } catch (error) {
      if (error instanceof ApiError) this.fail(error)
      else this.finish()
      throw this.#error ?? error
    }
    throw this.#error
  }
}
