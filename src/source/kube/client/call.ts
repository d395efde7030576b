import type { Cancel } from '../../../base/clock.ts'
import { ApiError } from '../api-client.ts'

const PATH_CHARS_MAX = 200

/**
 * One request on its way, over however many parts it passes through. The first failure stays; whatever waits for the
 * request gets it, and so do the parts that hold a resource to release.
 */
export class Call {
  readonly #words: string
  readonly #failWatchers = new Set<(error: ApiError) => void>()
  readonly #overWatchers = new Set<() => void>()
  #error: ApiError | undefined
  #over = false

  constructor(request: { readonly method: string; readonly path: string }, server: string) {
    // The cause stands at the end of the line: a long query would push it out.
    this.#words = `${request.method} ${shortened(request.path.split('?')[0] ?? '')} at ${server}`
  }

  /** `reason` speaks of the cause alone; the request's own words are put before it. */
  fail(reason: ApiError): void {
    if (this.#over) return
    const error = this.#worded(reason)
    this.#error = error
    const watchers = [...this.#failWatchers]
    this.finish()
    for (const watcher of watchers) watcher(error)
  }

  /** The response has arrived or was given up: nothing can fail any more. */
  finish(): void {
    if (this.#over) return
    this.#over = true
    this.#failWatchers.clear()
    const watchers = [...this.#overWatchers]
    this.#overWatchers.clear()
    for (const watcher of watchers) watcher()
  }

  /** Calls `run` once when the request fails, at once when it has. */
  onFail(run: (error: ApiError) => void): Cancel {
    if (this.#error !== undefined) run(this.#error)
    else if (!this.#over) this.#failWatchers.add(run)
    return () => this.#failWatchers.delete(run)
  }

  /** Calls `run` once when the request has failed or is finished, at once when it is. */
  onOver(run: () => void): void {
    if (this.#over) run()
    else this.#overWatchers.add(run)
  }

  /** Gives the result of `work`, unless the request fails first; ApiErrors that `work` throws become its failure. */
  async until<T>(work: Promise<T>): Promise<T> {
    let unwatch: Cancel | undefined
    const failed = new Promise<never>((_, reject) => {
      unwatch = this.onFail(reject)
    })
    try {
      const result = await Promise.race([work, failed])
      if (this.#error === undefined) return result
    } catch (error) {
      if (this.#error === undefined && error instanceof ApiError) {
        this.fail(error)
        throw this.#error ?? this.#worded(error)
      }
      this.finish()
      throw this.#error ?? error
    } finally {
      unwatch?.()
    }
    throw this.#error
  }

  #worded(reason: ApiError): ApiError {
    return new ApiError(reason.kind, `${this.#words}: ${reason.message}`, { cause: reason })
  }
}

function shortened(path: string): string {
  return path.length > PATH_CHARS_MAX ? `${path.slice(0, PATH_CHARS_MAX)}…` : path
}
