import { type Cancel, type Clock, Slice, type Slicing } from '../../base/clock.ts'
import { WireError } from '../../base/errors.ts'
import { oneLine } from '../../base/text.ts'
import { isJson } from '../../model/fields.ts'
import { type ApiClient, ApiError, type ApiErrorKind, type ApiResponse, collect } from './api-client.ts'
import { type ApiStatus, createListReader, createWatchReader, readStatus } from './wire/encodings.ts'
import {
  type ApiKind,
  type ApiObject,
  type ListMeta,
  listMetaIn,
  type ReaderOptions,
  type WatchEvent,
  type WatchReader,
} from './wire/tables.ts'

interface ExchangeOptions {
  readonly client: ApiClient
  readonly clock: Clock
  /** Media types of lists and watches, in order of preference. */
  readonly accept: string
  /** ReaderOptions.details of lists and watches. */
  readonly details?: boolean
  /** ReaderOptions.encoded of lists and watches. */
  readonly encoded?: ReaderOptions['encoded']
}

export interface Opening {
  readonly kind: ApiKind
  readonly path: string
  readonly signal: AbortSignal
  /** Other than that of lists and watches. */
  readonly accept?: string
  /** Longest wait for the answer of a watch, milliseconds; half a minute unless given. */
  readonly idleMs?: number
  readonly isDirect?: boolean
}

const IDLE_MS = 30_000
/**
 * The first byte of a list may take as long as the API server itself allows (--request-timeout: 60 s), and the way. A
 * dead connection is noticed sooner: by PING over HTTP/2, by the kernel's keep-alive over HTTP/1.1.
 */
const LIST_IDLE_MS = 75_000
/** Objects have up to 1.5 MiB in the store; JSON is larger. */
const OBJECT_BYTES_MAX = 16 * 1024 * 1024
const STATUS_BYTES_MAX = 64 * 1024
const METADATA_BYTES_MAX = 32 * 1024 * 1024
const METADATA_ACCEPT = 'application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1'
const PIECE_BYTES = 32 * 1024
/** Events of a watch that arrived in so many bytes are passed on together. */
const ARRIVED_BYTES_MAX = 256 * 1024
/** Limit of one body's computation between turns of the event loop, whose sockets take 10 ms by themselves. */
const SLICE_MS = 2

/** Requests and their bodies, read piece by piece with the event loop in between. */
export class Exchange {
  readonly #options: ExchangeOptions
  readonly #slicing: Slicing
  #sliceEndMs = 0

  constructor(options: ExchangeOptions) {
    this.#options = options
    const { clock } = options
    this.#slicing = { sliceMs: SLICE_MS, nowMs: () => clock.nowMs(), breathe: () => clock.breathe() }
  }

  /** One page of a list. Throws ApiError, WireError and FailureError. */
  async list(
    opening: Opening,
    take: (item: ApiObject) => void,
  ): Promise<ListMeta & { readonly bytes: number }> {
    const response = await this.#open(opening, false)
    const reader = createListReader(response.contentType, { ...this.#reading(opening), onItem: take })
    let bytes = 0
    for await (const piece of this.#pieces(response)) {
      bytes += piece.length
      reader.push(piece)
    }
    return { ...reader.end(), bytes }
  }

  /** Metadata of the objects of one page of a list. Throws ApiError, WireError and FailureError. */
  async metadata(opening: Opening): Promise<MetadataPage> {
    const response = await this.#open({ ...opening, accept: METADATA_ACCEPT }, false)
    const body = await collect(response, METADATA_BYTES_MAX)
    if (body === undefined) throw new WireError('a page of metadata is too large')
    return metadataPage(body)
  }

  /**
   * Begins a watch: throws until the server has agreed to it. While `together` gives true, events that arrived in several
   * pieces are passed on together.
   */
  async watch(opening: Opening, together = () => false): Promise<WatchStream> {
    const response = await this.#open(opening, true)
    const reader = createWatchReader(response.contentType, this.#reading(opening))
    return this.#events(response, reader, together)
  }

  #reading({ kind }: Opening): ReaderOptions {
    const { details = false, encoded } = this.#options
    return { kind, objectBytesMax: OBJECT_BYTES_MAX, details, encoded }
  }

  async *#events(response: ApiResponse, reader: WatchReader, together: () => boolean): WatchStream {
    const { body } = response
    for await (const first of body) {
      const events: WatchEvent[] = []
      let bytes = 0
      const slice = new Slice(this.#slicing)
      for (
        let piece: Uint8Array | undefined = first;
        piece !== undefined;
        piece = together() && bytes < ARRIVED_BYTES_MAX ? body.arrived?.() : undefined
      ) {
        bytes += piece.length
        for (let at = 0; at < piece.length; at += PIECE_BYTES) {
          for (const event of reader.push(piece.subarray(at, at + PIECE_BYTES))) events.push(event)
          if (slice.isOver) await slice.next()
        }
      }
      yield { events, bytes }
      // A watch waits for changes in any case.
      if (!together()) await this.#breathe()
    }
    reader.end()
  }

  async #open(opening: Opening, longLived: boolean): Promise<ApiResponse> {
    const { path, signal, accept, isDirect = false, idleMs = IDLE_MS } = opening
    const { client } = this.#options
    const response = await client.send({
      method: 'GET',
      path,
      accept: accept ?? this.#options.accept,
      idleMs: longLived ? idleMs : LIST_IDLE_MS,
      longLived,
      isDirect,
      signal,
    })
    if (response.status === 200) return response
    throw new FailureError(
      failureOfStatus(response.status, await this.#statusOf(response), response.retryAfterMs),
    )
  }

  async #statusOf(response: ApiResponse): Promise<ApiStatus | undefined> {
    const body = await collect(response, STATUS_BYTES_MAX)
    return body === undefined ? undefined : readStatus(response.contentType, body)
  }

  async *#pieces({ body }: ApiResponse): AsyncGenerator<Uint8Array, void, undefined> {
    for await (const chunk of body) {
      for (let at = 0; at < chunk.length; at += PIECE_BYTES) {
        yield chunk.subarray(at, at + PIECE_BYTES)
        await this.#breathe()
      }
    }
  }

  async #breathe(): Promise<void> {
    const { clock } = this.#options
    if (clock.nowMs() < this.#sliceEndMs) return
    await clock.breathe()
    this.#sliceEndMs = clock.nowMs() + SLICE_MS
  }
}

/** The events of a watch's body that have arrived, in their order. */
export type WatchStream = AsyncGenerator<
  { readonly events: readonly WatchEvent[]; readonly bytes: number },
  void,
  undefined
>

interface MetadataPage extends ListMeta {
  /** Objects with nothing but their metadata. */
  readonly items: readonly unknown[]
}

function metadataPage(body: Buffer): MetadataPage {
  let page: unknown
  try {
    page = JSON.parse(body.toString())
  } catch (error) {
    throw new WireError('a page of metadata is not JSON', { cause: error })
  }
  const { items, metadata } = isJson(page) ? page : {}
  if (!isJson(metadata) || (items !== null && !Array.isArray(items)))
    throw new WireError('a page of metadata is not a list')
  return { items: items ?? [], ...listMetaIn({ metadata }) }
}

export type FailureKind =
  /** The resource version or the continue token is no longer known. */
  | 'expired'
  /** The resource version belongs to another history: that of another cluster, or of a store that was restored. */
  | 'another-history'
  /** The resource version is not known yet. */
  | 'too-large'
  /** The server does not understand the parameters. */
  | 'invalid'
  | 'unauthorized'
  | 'forbidden'
  | 'absent'
  | 'throttled'
  | 'internal'
  /** Any other 5xx. */
  | 'unavailable'
  /** Any other status. */
  | 'unexpected'
  /** No connection: no request reached the server. */
  | 'unreachable'
  /** No whole answer. */
  | 'connection'
  | 'broken'
  /** The server did not cause it. */
  | 'fault'

export interface Failure {
  readonly kind: FailureKind
  /** One line. */
  readonly text: string
  /** The wait that the server asks for, milliseconds, 0 to 300,000. */
  readonly retryAfterMs: number
}

export class FailureError extends Error {
  override readonly name = 'FailureError'
  readonly failure: Failure

  constructor(failure: Failure) {
    super(failure.text)
    this.failure = failure
  }
}

const RETRY_AFTER_MS_MAX = 300_000
const TEXT_LENGTH_MAX = 300

/** Builds a failure from the code of an answer and the Status in its body, if any; or from a Status in a watch. */
export function failureOfStatus(code: number, status: ApiStatus | undefined, retryAfterMs?: number): Failure {
  const { reason = '', message = '', causes = [], retryAfterSeconds = 0 } = status ?? {}
  const words = reason === '' ? `status ${code}` : `status ${code} ${reason}`
  return {
    kind: isTooLarge(message, causes) ? 'too-large' : kindOf(code, reason),
    text: shortened(message === '' || message === reason ? words : `${words}: ${message}`),
    retryAfterMs: Math.min(RETRY_AFTER_MS_MAX, retryAfterMs ?? Math.max(0, retryAfterSeconds * 1_000)),
  }
}

const UNSENT: readonly ApiErrorKind[] = ['unreachable', 'tls', 'credentials']

export function failureOfError(error: unknown): Failure {
  if (error instanceof FailureError) return error.failure
  const text = shortened(error instanceof Error ? error.message : String(error))
  if (error instanceof ApiError)
    return { kind: UNSENT.includes(error.kind) ? 'unreachable' : 'connection', text, retryAfterMs: 0 }
  if (error instanceof WireError) return { kind: 'broken', text, retryAfterMs: 0 }
  return { kind: 'fault', text, retryAfterMs: 0 }
}

/** The reason of a Status by which a relay refuses a resource version of another history. */
export const ANOTHER_HISTORY = 'AnotherHistory'

/** Servers before 1.19 name no cause. */
function isTooLarge(message: string, causes: readonly string[]): boolean {
  return causes.includes('ResourceVersionTooLarge') || message.includes('Too large resource version')
}

function kindOf(code: number, reason: string): FailureKind {
  if (reason === ANOTHER_HISTORY) return 'another-history'
  if (code === 410 || reason === 'Expired' || reason === 'Gone') return 'expired'
  if (code === 400 || code === 422 || reason === 'Invalid' || reason === 'BadRequest') return 'invalid'
  if (code === 401 || reason === 'Unauthorized') return 'unauthorized'
  if (code === 403 || reason === 'Forbidden') return 'forbidden'
  if (code === 404 || reason === 'NotFound') return 'absent'
  if (code === 429 || reason === 'TooManyRequests') return 'throttled'
  if (code === 500 || reason === 'InternalError') return 'internal'
  return code >= 500 ? 'unavailable' : 'unexpected'
}

function shortened(text: string): string {
  const line = oneLine(text)
  return line.length <= TEXT_LENGTH_MAX ? line : `${line.slice(0, TEXT_LENGTH_MAX - 3)}...`
}

interface PagesOptions<L> {
  /** Undefined for a consistent list, in pages; else the least version, `0` for any. */
  readonly atLeast: string | undefined
  readonly openListing: () => L
  /** One request with these parameters; what it brings goes into the listing. */
  readonly request: (
    query: Readonly<Record<string, string>>,
    listing: L,
  ) => Promise<ListMeta & { readonly bytes: number }>
}

export interface WholeList<L> {
  readonly listing: L
  readonly resourceVersion: string
  readonly bytes: number
}

/** Only consistent lists are paged: others come from the server's cache, which a limit would bypass. */
const PAGE_OBJECTS = '500'
const PAGES_MAX = 10_000

/**
 * A list, page by page. When the later pages have expired before they were read, it is asked for once more in one
 * piece. Throws what `request` throws, and WireError when the pages do not end.
 */
export async function readPages<L>(options: PagesOptions<L>): Promise<WholeList<L>> {
  const { atLeast } = options
  const version = atLeast === undefined ? {} : { resourceVersion: atLeast }
  const whole = await readFrom(options, atLeast === undefined ? { limit: PAGE_OBJECTS } : version)
  if ('listing' in whole) return whole
  const again = await readFrom(options, version)
  if ('listing' in again) return again
  throw again.error
}

async function readFrom<L>(
  { openListing, request }: PagesOptions<L>,
  first: Readonly<Record<string, string>>,
): Promise<WholeList<L> | ExpiredPages> {
  const listing = openListing()
  const start = await request(first, listing)
  // A token stands for the version; the two exclude each other.
  const { resourceVersion: _version, ...rest } = first
  let page = start
  let bytes = start.bytes
  for (let pages = 1; page.continue !== ''; pages++) {
    if (pages === PAGES_MAX) throw new WireError(`a list of more than ${PAGES_MAX} pages`)
    try {
      page = await request({ ...rest, continue: page.continue }, listing)
    } catch (error) {
      if (isExpiry(failureOfError(error))) return { error }
      throw error
    }
    bytes += page.bytes
  }
  return { listing, resourceVersion: start.resourceVersion, bytes }
}

interface ExpiredPages {
  readonly error: unknown
}

function isExpiry({ kind }: Failure): boolean {
  return kind === 'expired'
}

/** One try at something, which can be broken off with the result that it then has, once. */
export class Attempt<R> {
  readonly #clock: Clock
  readonly #controller = new AbortController()
  readonly #timers = new Set<Cancel>()
  readonly beganMs: number
  #result: R | undefined

  constructor(clock: Clock) {
    this.#clock = clock
    this.beganMs = clock.nowMs()
  }

  get signal(): AbortSignal {
    return this.#controller.signal
  }

  get result(): R | undefined {
    return this.#result
  }

  breakOff(result?: R): void {
    if (this.signal.aborted) return
    this.#result = result
    this.#controller.abort()
  }

  /** Calls `run` then, unless the attempt has ended before. */
  after(delayMs: number, run: () => void): Cancel {
    const cancel = this.#clock.after(delayMs, run)
    this.#timers.add(cancel)
    return () => {
      cancel()
      this.#timers.delete(cancel)
    }
  }

  /** Gives back whatever it still holds at the server. */
  end(): void {
    this.#controller.abort()
    for (const cancel of this.#timers) cancel()
    this.#timers.clear()
  }
}

interface WatchBackoffOptions {
  readonly clock: Clock
  readonly random: () => number
}

const FIRST_MS = 800
const FACTOR = 2
const STEP_MS_MAX = 30_000
/** A delay is its step and at most as much again, so that thousands of clients do not come back together. */
const JITTER = 1
const HEALTHY_MS = 120_000

/**
 * Delays between attempts at the API server, as those of client-go's reflector: they double, and begin anew after two
 * minutes without a failure.
 */
export class WatchBackoff {
  readonly #options: WatchBackoffOptions
  #stepMs = FIRST_MS
  /** The time at which the last delay ends. */
  #overAtMs = Number.NEGATIVE_INFINITY

  constructor(options: WatchBackoffOptions) {
    this.#options = options
  }

  /** Milliseconds until the next attempt, now that one has failed; at least `atLeastMs`. */
  nextMs(atLeastMs = 0): number {
    const { clock, random } = this.#options
    if (clock.nowMs() - this.#overAtMs >= HEALTHY_MS) this.#stepMs = FIRST_MS
    const delayMs = Math.max(atLeastMs, this.#stepMs * (1 + JITTER * random()))
    this.#stepMs = Math.min(STEP_MS_MAX, this.#stepMs * FACTOR)
    this.#overAtMs = clock.nowMs() + delayMs
    return delayMs
  }
}
