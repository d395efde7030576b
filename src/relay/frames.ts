/** An object as readers get it. */
export interface Entry {
  /** Its resourceVersion. */
  readonly version: string
  /** The encoded Resource. */
  readonly resource: Buffer
}

/** A response that every reader of a collection gets alike. */
export interface Frame {
  /** A message behind its prefix. */
  readonly bytes: Buffer
  /** What the reader acknowledges it with. */
  readonly nonce: string
}

/** Someone who reads a collection. */
export interface CollectionReader {
  /** There is something new. */
  moved(): void
  /** The history has ended: versions that were read before say nothing any more. */
  restarted(): void
  /** It reads a whole state that is too old to be kept for it. */
  evicted(): void
}

export function* framesIn(frames: Iterator<Frame>): Generator<Frame, undefined, undefined> {
  for (let next = frames.next(); next.done !== true; next = frames.next()) yield next.value
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
  /** Those that are not through with it. */
  readonly readers = new Set<CollectionReader>()
  readonly #source: Iterator<Frame>
  readonly #frames: Frame[] = []

  constructor({ position, revision, bytes, frames }: SnapshotOptions) {
    this.position = position
    this.revision = revision
    this.bytes = bytes
    this.#source = frames
  }

  /** Undefined behind the last. Readers ask for one after the other. */
  frame(index: number): Frame | undefined {
    if (index === this.#frames.length) {
      const next = this.#source.next()
      if (next.done !== true) this.#frames.push(next.value)
    }
    return this.#frames[index]
  }
}
