import { type Clock, Slice, type Slicing } from '../../base/clock.ts'
import { WireError } from '../../base/errors.ts'
import { isJson } from '../../model/fields.ts'
import { type ApiClient, type ApiResponse, collect } from './api-client.ts'
import { FailureError, failureOfError, failureOfStatus } from './failure.ts'
import { newTraits } from './server-traits.ts'
import {
  type ApiStatus,
  createListReader,
  createWatchReader,
  readStatus,
  withoutManagedFields,
} from './wire/encodings.ts'
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
  readonly isDirect?: boolean
}

/**
 * A watch is answered before its first event, and a streaming list before its first object. API servers refuse what has
 * waited in their queues for 15 s by themselves; proxies that gather whole answers never answer.
 */
const WATCH_IDLE_MS = 20_000
/**
 * The first byte of a list may take as long as the API server itself allows (--request-timeout: 60 s), and the way. A
 * dead connection is noticed sooner: by PING over HTTP/2, by the kernel's keep-alive over HTTP/1.1.
 */
const LIST_IDLE_MS = 75_000
/** Objects have up to 1.5 MiB in the store; JSON is larger. */
const OBJECT_BYTES_MAX = 16 * 1024 * 1024
const METADATA_ACCEPT = 'application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1'
const PIECE_BYTES = 32 * 1024
/** A watch is held once its reader is busy for longer: each read that this saves costs as much as a change. */
const HOLD_AFTER_MS = 5

/** Requests and their bodies, read piece by piece with the event loop in between. */
export class Exchange {
  /** What is known of the server so far. */
  readonly traits = newTraits()
  readonly #options: ExchangeOptions
  readonly #slicing: Slicing
  readonly #slice: Slice

  constructor(options: ExchangeOptions) {
    this.#options = options
    const { clock } = options
    // The event loop's sockets take 10 ms by themselves between two slices.
    this.#slicing = { sliceMs: 2, nowMs: () => clock.nowMs(), breathe: () => clock.breathe() }
    this.#slice = new Slice(this.#slicing)
  }

  /** One page of a list. Throws ApiError, WireError and FailureError. */
  async list(opening: Opening, take: (item: ApiObject) => void): Promise<Page> {
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
    const body = await collect(response, 2 * OBJECT_BYTES_MAX)
    if (body === undefined) throw new WireError('a page of metadata is too large')
    return metadataPage(body)
  }

  /**
   * Begins a watch: throws until the server has agreed to it. While `isLive` gives true, it brings changes, for which it
   * waits in any case; those that have arrived are passed on together.
   */
  async watch(opening: Opening, isLive = () => false): Promise<WatchStream> {
    const response = await this.#open(opening, true)
    const reader = createWatchReader(response.contentType, this.#reading(opening))
    return this.#events(response, reader, isLive)
  }

  #reading({ kind }: Opening): ReaderOptions {
    const { details = false, encoded } = this.#options
    return { kind, objectBytesMax: OBJECT_BYTES_MAX, details, encoded }
  }

  async *#events({ body }: ApiResponse, reader: WatchReader, isLive: () => boolean): WatchStream {
    const { clock } = this.#options
    let wasHeld = false
    for await (const first of body) {
      const events: WatchEvent[] = []
      let bytes = 0
      const slice = new Slice(this.#slicing)
      const next = () => (isLive() && bytes < 16 * PIECE_BYTES ? body.arrived?.() : undefined)
      for (let piece: Uint8Array | undefined = first; piece !== undefined; piece = next()) {
        bytes += piece.length
        for (let at = 0; at < piece.length; at += PIECE_BYTES) {
          for (const event of reader.push(piece.subarray(at, at + PIECE_BYTES))) events.push(event)
          if (slice.isOver) await slice.next()
        }
      }
      let isHeld = false
      const hold = (): void => {
        isHeld = true
        body.hold?.()
      }
      const beganMs = clock.nowMs()
      // Events that arrive during a hold stay in the kernel. A reader that was busy for long is expected to be so again.
      const cancel = isLive() && !wasHeld ? clock.after(HOLD_AFTER_MS, hold) : undefined
      if (isLive() && wasHeld) hold()
      let resumed: Promise<void> | undefined
      try {
        yield { events, bytes }
      } finally {
        cancel?.()
        if (isHeld) resumed = body.resume?.()
      }
      wasHeld = isHeld && clock.nowMs() - beganMs >= HOLD_AFTER_MS
      await resumed
      if (!isLive() && this.#slice.isOver) await this.#slice.next()
    }
    reader.end()
  }

  async #open(opening: Opening, longLived: boolean): Promise<ApiResponse> {
    const response = await this.#answer(opening, longLived)
    if (response.status === 200) return response
    throw new FailureError(
      failureOfStatus(response.status, await this.#statusOf(response), response.retryAfterMs),
    )
  }

  async #answer(opening: Opening, longLived: boolean): Promise<ApiResponse> {
    const { accept = this.#options.accept } = opening
    if (!this.traits.dropsManagedFields) return await this.#send({ ...opening, accept }, longLived)
    const slim = await this.#send({ ...opening, accept: withoutManagedFields(accept) }, longLived)
    if (slim.status !== 406) return slim
    await this.#statusOf(slim)
    this.traits.dropsManagedFields = false
    return await this.#answer(opening, longLived)
  }

  async #send(
    { path, accept, signal, isDirect = false }: Opening & { readonly accept: string },
    longLived: boolean,
  ): Promise<ApiResponse> {
    const idleMs = longLived ? WATCH_IDLE_MS : LIST_IDLE_MS
    return await this.#options.client.send({
      method: 'GET',
      path,
      accept,
      idleMs,
      longLived,
      isDirect,
      signal,
    })
  }

  async #statusOf(response: ApiResponse): Promise<ApiStatus | undefined> {
    // 64 KiB: a Status has some hundred bytes; what is longer is no Status.
    const body = await collect(response, 64 * 1024)
    return body === undefined ? undefined : readStatus(response.contentType, body)
  }

  async *#pieces({ body }: ApiResponse): AsyncGenerator<Uint8Array, void, undefined> {
    for await (const chunk of body) {
      for (let at = 0; at < chunk.length; at += PIECE_BYTES) {
        yield chunk.subarray(at, at + PIECE_BYTES)
        if (this.#slice.isOver) await this.#slice.next()
      }
    }
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

type Page = ListMeta & { readonly bytes: number }

interface PagesOptions<L> {
  /** Undefined for a consistent list, in pages; else the least version, `0` for any. */
  readonly atLeast: string | undefined
  readonly openListing: () => L
  /** One request with these parameters; what it brings goes into the listing. */
  readonly request: (query: Readonly<Record<string, string>>, listing: L) => Promise<Page>
}

export interface WholeList<L> {
  readonly listing: L
  readonly resourceVersion: string
  readonly bytes: number
}

/** Page size of consistent lists. Others come from the server's cache, which a limit would bypass. */
const PAGE_OBJECTS = '500'
export const PAGES_MAX = 10_000
/** Limit for one page of a list. */
export const LIST_MS_MAX = 300_000

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
): Promise<WholeList<L> | { readonly error: unknown }> {
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
      if (failureOfError(error).kind === 'expired') return { error }
      throw error
    }
    bytes += page.bytes
  }
  return { listing, resourceVersion: start.resourceVersion, bytes }
}
