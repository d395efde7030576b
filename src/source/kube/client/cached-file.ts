import type { Clock } from '../../../base/clock.ts'
import { ApiError } from '../api-client.ts'
import type { Material } from './kubeconfig.ts'
import { readSmallFile } from './small-file.ts'

/** As client-go: projected tokens are replaced when they have a fifth of their time left, which is minutes. */
const KEPT_MS = 60_000

export interface CachedFileOptions {
  readonly material: Material
  /** `token`, `client certificate`: for messages. */
  readonly what: string
  readonly where: string
  readonly clock: Clock
  readonly warn: (text: string) => void
  /** Throws ApiError when the text cannot be what it should be. */
  readonly check: (text: string, path: string) => string
}

/**
 * A value that may stand in a file and change there: read again when it is older than 60 s. When that fails the value
 * before it stays in use, with one warning until it can be read again.
 */
export class CachedFile {
  readonly #options: CachedFileOptions
  #value: string | undefined
  #readMs = 0
  #stale = false
  #warned = false

  constructor(options: CachedFileOptions) {
    this.#options = options
  }

  /** The next read goes to the file. */
  expire(): void {
    this.#stale = true
  }

  /** Throws ApiError 'credentials' when there has never been a value. */
  async read(): Promise<string> {
    const { material, clock, where, check } = this.#options
    if (material.kind === 'text') return check(material.text, where)
    if (this.#value !== undefined && !this.#stale && clock.nowMs() - this.#readMs < KEPT_MS)
      return this.#value
    try {
      this.#value = check(await readSmallFile(material.path, this.#options.what), material.path)
      this.#warned = false
    } catch (error) {
      if (this.#value === undefined) throw withPlace(error, where)
      this.#warn(error)
    }
    this.#readMs = clock.nowMs()
    this.#stale = false
    return this.#value
  }

  #warn(error: unknown): void {
    if (this.#warned) return
    this.#warned = true
    const why = error instanceof Error ? error.message : String(error)
    this.#options.warn(`${this.#options.where}: ${why}; the last values stay in use`)
  }
}

function withPlace(error: unknown, where: string): unknown {
  if (!(error instanceof ApiError)) return error
  return new ApiError(error.kind, `${where}: ${error.message}`, { cause: error })
}
