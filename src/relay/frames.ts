import { compressedFrame } from '../api/grpc/rpc.ts'
import { assert } from '../base/errors.ts'
import { encodeMessage } from '../wire/protobuf/encoder.ts'
import { discovery } from './schema.ts'

/** An object as readers get it. */
export interface Entry {
  /** The object's resourceVersion. */
  readonly version: string
  readonly resource: Buffer
}

/** Recognizes the acknowledgement of one response. Readers share it, and wait with it for longer than the response is held. */
export class Receipt {
  readonly nonce: string
  readonly #typeUrl: string
  #request: Buffer | undefined

  constructor(nonce: string, typeUrl: string) {
    this.nonce = nonce
    this.#typeUrl = typeUrl
  }

  /** Tests whether a request is this acknowledgement as clients usually encode it, at a tenth of the cost of decoding. */
  is(request: Buffer): boolean {
    this.#request ??= encodeMessage(discovery.DeltaDiscoveryRequest, {
      type_url: this.#typeUrl,
      response_nonce: this.nonce,
    })
    return this.#request.equals(request)
  }
}

/** A response, encoded once in each form that its readers take. */
export class Frame {
  readonly receipt: Receipt
  /** Undefined once the plain form is there: it holds the objects, which may be gone from the state since. */
  #encode: (() => Buffer) | undefined
  #plain: Buffer | undefined
  #compressed: Buffer | undefined

  /** `encode` gives a message behind its prefix. */
  constructor(receipt: Receipt, encode: () => Buffer) {
    this.receipt = receipt
    this.#encode = encode
  }

  get plain(): Buffer {
    this.#plain ??= this.#encoded()
    this.#encode = undefined
    return this.#plain
  }

  /** Does not keep the plain form: a whole state is held only in the forms that readers take. */
  get compressed(): Buffer {
    if (this.#compressed !== undefined) return this.#compressed
    const plain = this.#plain ?? this.#encoded()
    // Below this, the frames of HTTP/2 and TCP weigh more than what compression saves.
    this.#compressed = plain.length < 512 ? plain : compressedFrame(plain)
    return this.#compressed
  }

  #encoded(): Buffer {
    assert(this.#encode !== undefined, 'a frame has a form')
    return this.#encode()
  }
}

export interface CollectionReader {
  moved(): void
  /** The history has ended: versions that were read before have no meaning any more. */
  restarted(): void
  /** It reads a whole state that is too old to be kept for it. */
  evicted(): void
}

interface SnapshotOptions {
  readonly position: number
  readonly revision: string
  readonly bytes: number
  readonly frames: Iterator<Frame>
}

/** A whole state whose frames are made when the first reader gets there. */
export class CollectionSnapshot {
  readonly position: number
  readonly revision: string
  readonly bytes: number
  /** Bytes that were published since. */
  changedBytes = 0
  readonly readers = new Set<CollectionReader>()
  readonly #source: Iterator<Frame>
  readonly #frames: Frame[] = []

  constructor({ position, revision, bytes, frames }: SnapshotOptions) {
    this.position = position
    this.revision = revision
    this.bytes = bytes
    this.#source = frames
  }

  /** Undefined behind the last. Readers request one after the other. */
  frame(index: number): Frame | undefined {
    if (index === this.#frames.length) {
      const next = this.#source.next()
      if (next.done !== true) this.#frames.push(next.value)
    }
    return this.#frames[index]
  }
}
