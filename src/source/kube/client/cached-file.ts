import { open } from 'node:fs/promises'
import type { Clock } from '../../../base/clock.ts'
import { ApiError } from '../api-client.ts'
import type { Material } from './kubeconfig.ts'

/** Kubeconfigs, tokens and certificates are a few KiB; whatever is larger is something else. */
const BYTES_MAX = 1024 * 1024

/** The text of a file of at most 1 MiB. Throws ApiError 'credentials' that names `what` and the path. */
export async function readSmallFile(path: string, what: string): Promise<string> {
  try {
    const file = await open(path)
    try {
      return await readUpTo(file, path, what)
    } finally {
      await file.close()
    }
  } catch (error) {
    if (error instanceof ApiError) throw error
    throw new ApiError('credentials', `cannot read ${what} ${path}: ${codeOf(error)}`, { cause: error })
  }
}

async function readUpTo(file: Awaited<ReturnType<typeof open>>, path: string, what: string): Promise<string> {
  const buffer = new Uint8Array(BYTES_MAX + 1)
  let length = 0
  while (length < buffer.length) {
    const { bytesRead } = await file.read(buffer, length)
    if (bytesRead === 0) break
    length += bytesRead
  }
  if (length > BYTES_MAX) throw new ApiError('credentials', `${what} ${path} is larger than 1 MiB`)
  return new TextDecoder().decode(buffer.subarray(0, length))
}

/** The code of a system error, or its message. */
export function codeOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  return 'code' in error && typeof error.code === 'string' ? error.code : error.message
}

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
