import {
  BACKSLASH,
  CLOSE_BRACE,
  CLOSE_BRACKET,
  COLON,
  COMMA,
  NEWLINE,
  OPEN_BRACE,
  OPEN_BRACKET,
  QUOTE,
  RETURN,
  SPACE,
  TAB,
} from '../json-bytes.ts'
/**
 * Takes a JSON text apart while it arrives, so that a List of tens of thousands of objects is never held whole, neither
 * as bytes nor as one value. A scanner over the bytes finds the borders of the elements of a top-level `items` array;
 * JSON.parse reads each element by itself, and the text around them (the envelope) at the end.
 */
export class JsonStream {
  /** Holds what has arrived and is not done with; reused, since a buffer for each chunk would pile up unfreed. */
  #store: Buffer = Buffer.alloc(0)
  /** The part of #store that is filled. */
  #bytes: Buffer = this.#store
  #depth = 0
  #inString = false
  #escaped = false
  #line = 1
  /** The start of the current string, element or envelope part in #bytes. */
  #stringStart = 0
  #lastString = ''
  #key = ''
  /** Bytes around the elements of `items`. */
  #envelope: Buffer[] = []
  #envelopeStart = 0
  #envelopeLine = 1
  #inItems = false
  #needs: 'element' | 'element or end' | 'comma or end' = 'element or end'
  /** -1 between elements. */
  #elementStart = -1
  #elementLine = 1
  #atStart = true

  /** Call after the last chunk. Throws JsonTextError when the text ends too early. */
  end(): void {
    if (this.#depth > 0 || this.#inString)
      throw new JsonTextError(
        `the file ends in the middle of the object that begins at line ${this.#envelopeLine}`,
        this.#line,
      )
  }

  /** Whatever ends within `chunk`, which may be reused afterwards. Throws JsonTextError. */
  *push(chunk: Uint8Array): Generator<JsonPart> {
    let index = this.#bytes.length
    this.#append(chunk)
    if (this.#atStart) index = this.#skipByteOrderMark()
    for (; index < this.#bytes.length; index++) {
      if (this.#inString) index = this.#scanString(index)
      else {
        if (this.#inItems && this.#depth > 2) index = this.#skipWithinElement(index)
        if (index === this.#bytes.length) break
        const part = this.#scan(index, this.#bytes[index] ?? 0)
        if (part !== undefined) yield part
      }
    }
    this.#forget()
  }

  #append(chunk: Uint8Array): void {
    const rest = this.#bytes
    const length = rest.length + chunk.length
    if (this.#store.length < length) this.#store = Buffer.allocUnsafe(2 * length)
    this.#store.set(rest)
    this.#store.set(chunk, rest.length)
    this.#bytes = this.#store.subarray(0, length)
  }

  /**
   * Where nearly all bytes are: passes over what an element holds, up to the bracket that closes the element, a string
   * that does not end in what has arrived, or the end. Gives the index of the first byte not passed over.
   */
  #skipWithinElement(from: number): number {
    const bytes = this.#bytes
    let depth = this.#depth
    let index = from
    for (; index < bytes.length; index++) {
      const byte = bytes[index]
      if (byte === QUOTE) {
        const end = endOfString(bytes, index + 1)
        if (end < 0) break
        index = end
      } else if (byte === OPEN_BRACE || byte === OPEN_BRACKET) depth++
      else if (byte === CLOSE_BRACE || byte === CLOSE_BRACKET) {
        if (depth === 3) break
        depth--
      } else if (byte === NEWLINE) this.#line++
    }
    this.#depth = depth
    return index
  }

  /** Runs to the end of a string, or of what has arrived of it; gives the index of the last byte read. */
  #scanString(from: number): number {
    const bytes = this.#bytes
    let index = from
    for (; index < bytes.length; index++) {
      const byte = bytes[index]
      if (this.#escaped) this.#escaped = false
      else if (byte === BACKSLASH) this.#escaped = true
      else if (byte === NEWLINE) throw new JsonTextError('a string is not closed on its line', this.#line)
      else if (byte === QUOTE) {
        this.#inString = false
        if (this.#depth === 1) this.#lastString = bytes.toString('latin1', this.#stringStart, index)
        return index
      }
    }
    return index - 1
  }

  #scan(index: number, byte: number): JsonPart | undefined {
    if (byte === SPACE || byte === TAB || byte === RETURN) return undefined
    if (byte === NEWLINE) {
      this.#line++
      return undefined
    }
    if (this.#depth === 0) return this.#openDocument(index, byte)
    if (this.#inItems && this.#depth === 2) return this.#betweenElements(index, byte)
    return this.#within(index, byte)
  }

  #openDocument(index: number, byte: number): undefined {
    if (byte !== OPEN_BRACE) throw new JsonTextError('expected an object, which begins with {', this.#line)
    this.#depth = 1
    this.#envelopeStart = index
    this.#envelopeLine = this.#line
    this.#key = ''
    this.#lastString = ''
  }

  #within(index: number, byte: number): JsonPart | undefined {
    if (byte === QUOTE) {
      this.#inString = true
      this.#stringStart = index + 1
    } else if (byte === OPEN_BRACE || byte === OPEN_BRACKET) {
      this.#depth++
      if (byte === OPEN_BRACKET && this.#depth === 2 && this.#key === 'items') this.#openItems(index)
    } else if (byte === CLOSE_BRACE || byte === CLOSE_BRACKET) {
      this.#depth--
      if (this.#depth === 0) return this.#closeDocument(index)
      if (this.#inItems && this.#depth === 2) return this.#closeElement(index + 1)
    } else if (this.#depth === 1) {
      if (byte === COLON) this.#key = this.#lastString
      else if (byte === COMMA) this.#key = ''
    }
    return undefined
  }

  #openItems(index: number): void {
    this.#inItems = true
    this.#needs = 'element or end'
    this.#envelope.push(Buffer.from(this.#bytes.subarray(this.#envelopeStart, index + 1)))
  }

  #betweenElements(index: number, byte: number): undefined {
    if (byte === CLOSE_BRACKET && this.#needs !== 'element') {
      this.#inItems = false
      this.#depth = 1
      this.#envelopeStart = index
    } else if (byte === COMMA && this.#needs === 'comma or end') this.#needs = 'element'
    else if (byte === OPEN_BRACE && this.#needs !== 'comma or end') {
      this.#elementStart = index
      this.#elementLine = this.#line
      this.#depth++
    } else throw new JsonTextError('expected an object, a comma or ] in items', this.#line)
  }

  #closeElement(end: number): JsonPart {
    const text = this.#bytes.toString('utf8', this.#elementStart, end)
    this.#elementStart = -1
    this.#needs = 'comma or end'
    return { kind: 'item', value: parseAt(text, this.#elementLine), line: this.#elementLine, text }
  }

  #closeDocument(index: number): JsonPart {
    this.#envelope.push(Buffer.from(this.#bytes.subarray(this.#envelopeStart, index + 1)))
    const text = Buffer.concat(this.#envelope).toString('utf8')
    this.#envelope = []
    return { kind: 'document', value: parseAt(text, this.#envelopeLine), line: this.#envelopeLine, text }
  }

  /** Drops the bytes that are done with. */
  #forget(): void {
    const { length } = this.#bytes
    if (this.#elementStart >= 0) {
      if (length - this.#elementStart > ITEM_BYTES_MAX)
        throw new JsonTextError(`an object is larger than ${ITEM_BYTES_MAX} bytes`, this.#elementLine)
      this.#bytes = this.#bytes.subarray(this.#elementStart)
      this.#stringStart -= this.#elementStart
      this.#elementStart = 0
      return
    }
    if (this.#depth === 0 || this.#inItems) {
      this.#bytes = Buffer.alloc(0)
      return
    }
    if (length - this.#envelopeStart > ITEM_BYTES_MAX)
      throw new JsonTextError(`an object is larger than ${ITEM_BYTES_MAX} bytes`, this.#envelopeLine)
    this.#bytes = this.#bytes.subarray(this.#envelopeStart)
    this.#stringStart -= this.#envelopeStart
    this.#envelopeStart = 0
  }

  #skipByteOrderMark(): number {
    this.#atStart = false
    return this.#bytes.length >= 3 && this.#bytes.readUIntBE(0, 3) === 0xefbbbf ? 3 : 0
  }
}

export interface JsonPart {
  readonly kind: /** An element of the `items` of the document that ends next. */
    | 'item'
    /** A top-level object; its `items` are empty here, because they came before it. */
    | 'document'
  readonly value: unknown
  /** The line on which it begins, from 1. */
  readonly line: number
  /** What `value` was read from. */
  readonly text: string
}

/** `line` counts from 1. */
export class JsonTextError extends Error {
  override readonly name = 'JsonTextError'
  readonly line: number

  constructor(message: string, line: number, cause?: unknown) {
    super(message, { cause })
    this.line = line
  }
}

/** Above what etcd lets an object be (1.5 MiB). */
const ITEM_BYTES_MAX = 4 * 1024 * 1024

/** Index of the closing quote; -1 when it has not arrived, or an escape or control character is for others to judge. */
function endOfString(bytes: Buffer, from: number): number {
  for (let index = from; index < bytes.length; index++) {
    const byte = bytes[index]
    if (byte === QUOTE) return index
    if (byte === BACKSLASH || byte === NEWLINE) return -1
  }
  return -1
}

function parseAt(text: string, line: number): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error)
    const position = /at position (\d+)/.exec(message)?.[1]
    const before = text.slice(0, position === undefined ? 0 : Number(position))
    const lines = before.match(/\n/g)?.length ?? 0
    // V8 quotes the text and counts from the element's beginning, or names no position.
    const plain = message.replace(/,? (\.\.\.)?".*is not valid JSON$| in JSON at position.*$/s, '')
    throw new JsonTextError(`${plain}, in the object that begins at line ${line}`, line + lines, error)
  }
}
