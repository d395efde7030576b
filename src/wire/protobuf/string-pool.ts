/** Each slot keeps one string, so that this is the bound; strings that meet in a slot take turns. */
const SLOTS = 4096
/** Longer strings are hardly ever repeated. */
const BYTES_MAX = 64

/** One copy of each short string that comes again and again: found by its bytes, without making a string first. */
export class StringPool {
  readonly #slots: string[] = new Array<string>(SLOTS).fill('')

  /** The text of these bytes in UTF-8. */
  text(bytes: Buffer, start: number, end: number): string {
    if (end - start > BYTES_MAX) return textOf(bytes, start, end)
    let hash = 0
    let bits = 0
    for (let at = start; at < end; at++) {
      const byte = bytes[at] ?? 0
      hash = (Math.imul(hash, 31) + byte) | 0
      bits |= byte
    }
    if (bits > ASCII_MAX) return bytes.toString('utf8', start, end)
    const slot = (hash ^ (hash >>> 12)) & (SLOTS - 1)
    const known = this.#slots[slot]
    if (known !== undefined && says(known, bytes, start, end)) return known
    const text = bytes.toString('latin1', start, end)
    this.#slots[slot] = text
    return text
  }
}

const ASCII_MAX = 0x7f

/** Whether these bytes are this ASCII text. */
export function says(text: string, bytes: Buffer, start: number, end: number): boolean {
  if (text.length !== end - start) return false
  for (let at = 0; at < text.length; at++) if (text.charCodeAt(at) !== bytes[start + at]) return false
  return true
}

/**
 * What is not UTF-8 is replaced by U+FFFD, as Go does when it writes the same object as JSON: the API server takes
 * such strings from anyone who may write an annotation, and no annotation may end a stream.
 */
export function textOf(bytes: Buffer, start: number, end: number): string {
  for (let at = start; at < end; at++)
    if ((bytes[at] ?? 0) > ASCII_MAX) return bytes.toString('utf8', start, end)
  return bytes.toString('latin1', start, end)
}
