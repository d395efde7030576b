/**
 * Bytes that arrive in pieces: each piece is looked at where it lies, and only what it leaves unfinished is copied.
 * The caller bounds the rest; memory of a large rest is released once the rest is consumed.
 */
export class Rest {
  #store: Buffer = EMPTY
  #start = 0
  #end = 0
  #isStored = false

  /** What was left, and this piece. Valid until the next call. */
  with(piece: Uint8Array): Buffer {
    this.#isStored = this.#end > this.#start
    if (!this.#isStored) return Buffer.from(piece.buffer, piece.byteOffset, piece.byteLength)
    this.#reserve(piece.length)
    this.#store.set(piece, this.#end)
    this.#end += piece.length
    return this.#store.subarray(this.#start, this.#end)
  }

  /** Keeps `bytes`, the result of with(), but for its first `done` bytes. */
  leave(bytes: Buffer, done: number): void {
    if (this.#isStored) {
      this.#start += done
      if (this.#start === this.#end && this.#store.length > KEPT_MAX) this.#store = EMPTY
    } else if (done < bytes.length) {
      this.#start = 0
      this.#end = 0
      this.#reserve(bytes.length - done)
      this.#end = bytes.copy(this.#store, 0, done)
    }
  }

  /** Bytes that are left. */
  get length(): number {
    return this.#end - this.#start
  }

  #reserve(count: number): void {
    if (this.#end + count <= this.#store.length) return
    const { length } = this
    const room = length + count
    const store = room <= this.#store.length / 2 ? this.#store : Buffer.allocUnsafeSlow(2 * room)
    this.#store.copy(store, 0, this.#start, this.#end)
    this.#store = store
    this.#start = 0
    this.#end = length
  }
}

const EMPTY: Readonly<Buffer> = Buffer.alloc(0)
/** Room that is kept although nothing is left. */
const KEPT_MAX = 256 * 1024
