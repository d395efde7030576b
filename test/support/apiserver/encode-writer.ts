/**
 * Writes from the end to the beginning, so that the length of a message is known when it is to be written before it:
 * whoever uses it writes the last field first.
 */
export class BackwardWriter {
  #bytes: Buffer = Buffer.allocUnsafe(4096)
  /** Where what is written begins. */
  #start = this.#bytes.length

  /** Bytes written so far. */
  get length(): number {
    return this.#bytes.length - this.#start
  }

  written(): Buffer {
    return Buffer.from(this.#bytes.subarray(this.#start))
  }

  bytes(value: Uint8Array): void {
    this.#reserve(value.length)
    this.#start -= value.length
    this.#bytes.set(value, this.#start)
  }

  text(value: string): void {
    const length = Buffer.byteLength(value)
    this.#reserve(length)
    this.#start -= length
    this.#bytes.write(value, this.#start, 'utf8')
  }

  /** Negative numbers take ten bytes, as 64 bits in two's complement. */
  varint(value: number): void {
    if (value >= 0 && value < 0x80) {
      this.#reserve(1)
      this.#bytes[--this.#start] = value
      return
    }
    const bytes: number[] = []
    let rest = BigInt.asUintN(64, BigInt(value))
    for (; rest > 0x7fn; rest >>= 7n) bytes.push(Number(rest & 0x7fn) | 0x80)
    bytes.push(Number(rest))
    this.bytes(Uint8Array.from(bytes))
  }

  #reserve(count: number): void {
    if (count <= this.#start) return
    const { length } = this
    const grown = Buffer.allocUnsafe(2 * (length + count))
    this.#bytes.copy(grown, grown.length - length, this.#start)
    this.#start = grown.length - length
    this.#bytes = grown
  }
}
