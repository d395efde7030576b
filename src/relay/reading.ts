import { DATA_LOSS, framed, NOT_FOUND, OUT_OF_RANGE, UNAVAILABLE } from '../api/grpc/rpc.ts'
import type { Cancel, Clock } from '../base/clock.ts'
import { errorOf } from '../base/errors.ts'
import { type ApiBody, ApiError, type ApiResponse } from '../source/kube/api-client.ts'
import { ANOTHER_HISTORY } from '../source/kube/failure.ts'
import { decodeMessage } from '../wire/protobuf/decoder.ts'
import type { MessageOf } from '../wire/protobuf/table.ts'
import {
  additions,
  bodyOf,
  bookmark,
  changes,
  END_OF_LIST,
  LIST_TYPE,
  response,
  statusResponse,
  WATCH_TYPE,
  wholeList,
} from './bodies.ts'
import type { RelayCall, RelayLink } from './connection.ts'
import { discovery } from './schema.ts'
import { STALE_MS } from './state.ts'
import { DELTA_METHOD, METADATA, WILDCARD } from './types.ts'
import type { Wanted } from './wanted.ts'

interface ReadingOptions {
  readonly wanted: Wanted
  readonly link: RelayLink
  readonly clock: Clock
  readonly random: () => number
  readonly nodeName: string
  readonly metadata: Readonly<Record<string, string>>
  readonly signal: AbortSignal
  /** Bytes of a list or a difference that are held; 512 MiB by default. */
  readonly gatheredBytesMax?: number
  /** The cluster of a relay that has answered. */
  readonly cluster: (identifier: string) => void
  /** The reader holds this revision now. */
  readonly advanced: (revision: string) => void
  /** The reader's state is of another history than that of the relay. */
  readonly isElsewhere: () => void
  /** The call has ended; undefined when the client wanted it to. */
  readonly ended: (why: RelayRefusal | undefined) => void
}

type Response = MessageOf<typeof discovery.DeltaDiscoveryResponse>
type Resource = MessageOf<typeof discovery.Resource>

/** A relay refused in a way that another one may not. */
export class RelayRefusal extends Error {
  /** It is there, and does not know of a revision that the node has. */
  readonly isBehind: boolean
  /** The relay would serve a node that requests less. */
  readonly isStale: boolean

  constructor(message: string) {
    super(message)
    this.isBehind = message.startsWith('the relay is behind')
    this.isStale = message.startsWith('the relay is stale')
  }
}

/** Pieces that wait for the reader before the relay is asked to wait. */
const PIECES_MAX = 8

interface Piece {
  readonly bytes: Buffer
  /** Acknowledges the piece once the reader has taken it. */
  readonly nonce: string
}

/** One list or watch, read from a relay: a call of its own, and a body as the API server gives it. */
export class Reading implements ApiBody {
  readonly #options: ReadingOptions
  readonly #call: RelayCall
  readonly #pieces: Piece[] = []
  readonly #resources: Resource[] = []
  readonly #removed: string[] = []
  #revision: string
  #isInitial: boolean
  #gatheredBytes = 0
  #taken = ''
  #failure: string | undefined
  #isOver = false
  #wake: () => void = () => undefined
  #opened: (response: ApiResponse) => void = () => undefined
  #refused: (error: Error) => void = () => undefined
  #cancelSilence: Cancel
  #cancelEnd: Cancel | undefined
  readonly #aborted = (): void => this.#fail(new ApiError('aborted', 'aborted'), undefined)

  constructor(options: ReadingOptions) {
    this.#options = options
    const { link, wanted, clock, signal } = options
    this.#revision = wanted.revision
    this.#isInitial = wanted.what !== 'watch'
    this.#call = link.call(DELTA_METHOD, {
      message: bytes => this.#message(bytes),
      ended: (code, text) => this.#ended(code, text),
    })
    // The relay may query the API server before it answers.
    this.#cancelSilence = clock.after(15_000, () => this.#ended(UNAVAILABLE, 'no answer in time'))
    signal.addEventListener('abort', this.#aborted, { once: true })
  }

  get isWatch(): boolean {
    return this.#options.wanted.what !== 'list'
  }

  /** Path of the collection at the API server. */
  get path(): string {
    return this.#options.wanted.type.path
  }

  /** Resolves with the answer, which may be a refusal in the words of the API server; rejects with RelayRefusal or ApiError. */
  open(): Promise<ApiResponse> {
    const { wanted, nodeName, metadata } = this.#options
    const fields = Object.entries(metadata).map(([key, value]) => ({ key, value: { string_value: value } }))
    const request = framed(discovery.DeltaDiscoveryRequest, {
      node: { id: nodeName, metadata: { fields } },
      type_url: wanted.type.typeUrl,
      resource_names_subscribe: [wanted.name ?? WILDCARD],
    })
    return new Promise((resolve, reject) => {
      this.#opened = resolve
      this.#refused = reject
      if (this.#options.signal.aborted) this.#aborted()
      else this.#call.send(request)
    })
  }

  get isFull(): boolean {
    return this.#call.isFull === true
  }

  /** A request of its own without a nonce, which a relay that knows of no reports takes as a change of nothing. */
  report(text: string, id = this.#options.nodeName): void {
    if (this.#isOver) return
    const { wanted } = this.#options
    const fields = [{ key: METADATA.report, value: { string_value: text } }]
    const { typeUrl: type_url } = wanted.type
    this.#call.send(framed(discovery.DeltaDiscoveryRequest, { node: { id, metadata: { fields } }, type_url }))
  }

  /** Ends in good order: the reader continues elsewhere. */
  end(): void {
    if (this.#isOver) return
    this.#over(undefined)
    // A reader that still waits for the answer waits for nothing.
    this.#refused(new ApiError('aborted', 'aborted'))
    this.#wake()
  }

  arrived(): Uint8Array | undefined {
    return this.#take()
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, undefined> {
    try {
      for (;;) {
        const piece = this.#take()
        if (piece !== undefined) yield piece
        else if (this.#failure !== undefined) throw new ApiError('lost', this.#failure)
        else if (this.#isOver) return
        else
          await new Promise<void>(resolve => {
            this.#wake = resolve
          })
      }
    } finally {
      this.end()
    }
  }

  /** The reader is through with the piece before. */
  #take(): Uint8Array | undefined {
    if (this.#taken !== '') this.#acknowledge(this.#taken)
    this.#taken = ''
    const piece = this.#pieces.shift()
    if (piece === undefined) return undefined
    this.#taken = piece.nonce
    if (this.#pieces.length < PIECES_MAX) this.#call.resume()
    return piece.bytes
  }

  #acknowledge(response_nonce: string, type_url = this.#options.wanted.type.typeUrl): void {
    if (this.#isOver) return
    this.#call.send(framed(discovery.DeltaDiscoveryRequest, { type_url, response_nonce }))
  }

  #message(bytes: Buffer): void {
    if (this.#isOver) return
    let heard: Response
    try {
      heard = decodeMessage(discovery.DeltaDiscoveryResponse, bytes)
    } catch (error) {
      this.#ended(UNAVAILABLE, `cannot read a response: ${errorOf(error).message}`)
      return
    }
    this.#hear()
    const { wanted } = this.#options
    const { typeUrl } = wanted.type
    const { type_url: itsType = typeUrl, nonce = '' } = heard
    if (itsType !== typeUrl) {
      // A later version of the relay may send types that were not requested.
      this.#acknowledge(nonce, itsType)
      return
    }
    const foreign = heard.resources?.find(its => (its.resource?.type_url ?? typeUrl) !== typeUrl)
    if (foreign !== undefined) {
      const what = JSON.stringify(foreign.resource?.type_url?.slice(0, 200))
      this.#ended(
        UNAVAILABLE,
        `the relay sends ${what} as a ${wanted.type.kind}; this version cannot read it`,
      )
      return
    }
    const isLast = (heard.system_version_info ?? '') !== ''
    this.#gatheredBytes = isLast ? 0 : this.#gatheredBytes + bytes.length
    // A whole list, or a difference, is held until its last response: 15,000 Nodes with their images have about 300
    // MB.
    if (this.#gatheredBytes > (this.#options.gatheredBytesMax ?? 512 * 1024 * 1024)) {
      this.#ended(UNAVAILABLE, 'the relay sends a list or a difference without an end')
      return
    }
    this.#options.cluster(heard.control_plane?.identifier ?? '')
    if (wanted.what === 'list') this.#gather(heard)
    else {
      this.#opened(response(200, WATCH_TYPE, this))
      this.#put(this.#isInitial ? this.#initial(heard) : this.#live(heard), nonce)
    }
  }

  /** Restarts the silence timer of the relay. */
  #hear(): void {
    const { clock, random, wanted } = this.#options
    this.#cancelSilence()
    this.#cancelSilence = clock.after(STALE_MS * (1 + 0.4 * random()), () =>
      this.#ended(UNAVAILABLE, 'the relay has sent nothing for too long'),
    )
    if (wanted.seconds !== undefined)
      this.#cancelEnd ??= clock.after(wanted.seconds * 1_000, () => this.end())
  }

  #gather({ resources = [], system_version_info: revision = '', nonce = '' }: Response): void {
    this.#resources.push(...resources)
    this.#acknowledge(nonce)
    if (revision === '') return
    const { type } = this.#options.wanted
    this.#opened(response(200, LIST_TYPE, bodyOf(wholeList(type, this.#resources, revision))))
    this.#over(undefined)
  }

  #initial({ resources = [], system_version_info: revision = '' }: Response): Buffer {
    const { type } = this.#options.wanted
    const added = additions(type, resources)
    if (revision === '') return added
    this.#isInitial = false
    this.#revision = revision
    return Buffer.concat([added, bookmark(type, revision, END_OF_LIST)])
  }

  /** Nothing of a difference is passed on before all of it is there. */
  #live({
    resources = [],
    removed_resources: removed = [],
    system_version_info: revision = '',
  }: Response): Buffer {
    const { type } = this.#options.wanted
    this.#resources.push(...resources)
    this.#removed.push(...removed)
    if (revision === '') return Buffer.alloc(0)
    const [sets, gone] = [this.#resources.splice(0), this.#removed.splice(0)]
    const before = this.#revision
    this.#revision = revision
    this.#options.advanced(revision)
    if (sets.length === 0 && gone.length === 0) return bookmark(type, revision)
    return changes(type, { resources: sets, removed: gone }, [before, revision])
  }

  #put(bytes: Buffer, nonce: string): void {
    if (bytes.length === 0) {
      this.#acknowledge(nonce)
      return
    }
    this.#pieces.push({ bytes, nonce })
    if (this.#pieces.length >= PIECES_MAX) this.#call.pause()
    this.#wake()
  }

  #ended(code: number, text: string): void {
    if (this.#isOver) return
    const status = statusOf(code)
    if (code === DATA_LOSS) this.#options.isElsewhere()
    if (status !== undefined) this.#opened(statusResponse({ message: text, ...status }))
    const refusal = new RelayRefusal(text)
    // Each call concerns only those that still wait for the answer.
    this.#fail(refusal, status === undefined ? refusal : undefined)
  }

  #fail(error: Error, why: RelayRefusal | undefined): void {
    if (this.#isOver) return
    this.#failure = error.message
    this.#over(why)
    this.#refused(error)
    this.#wake()
  }

  #over(why: RelayRefusal | undefined): void {
    this.#isOver = true
    this.#cancelSilence()
    this.#cancelEnd?.()
    this.#options.signal.removeEventListener('abort', this.#aborted)
    this.#call.cancel()
    this.#options.ended(why)
  }
}

function statusOf(code: number): { readonly code: number; readonly reason: string } | undefined {
  if (code === OUT_OF_RANGE) return { code: 410, reason: 'Expired' }
  if (code === DATA_LOSS) return { code: 410, reason: ANOTHER_HISTORY }
  return code === NOT_FOUND ? { code: 404, reason: 'NotFound' } : undefined
}
