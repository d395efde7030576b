/*
 * Values that live long and are many: what V8 keeps beyond their contents adds up to a third of the memory.
 */

const EMPTY: readonly never[] = []

/** A copy of a list that push has filled, and left room for 16 more items in. */
export function trimmed<T>(list: readonly T[]): readonly T[] {
  return list.length === 0 ? EMPTY : list.slice()
}

/** A list to be filled by index (`list[at] = item`), with room for `length` items and no more; see cut(). */
export function listFor<T>(length: number): T[] {
  return new Array<T>(length)
}

/** A list of listFor() when it has the items it will have: what is beyond them are holes. */
export function cut<T>(list: T[], length: number): readonly T[] {
  if (length === 0) return EMPTY
  if (length < list.length) list.length = length
  return list
}

/** The parts as one piece of text: + and templates keep every part alive until the result is read. */
export function joined(parts: readonly string[], separator = ''): string {
  return parts.join(separator)
}
