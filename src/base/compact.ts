/*
 * Values that live long and are many: what V8 keeps beyond their contents adds up to a third of the memory.
 */

const EMPTY: readonly never[] = []

/** A copy of a list that push has filled, and left room for 16 more items in. */
export function trimmed<T>(list: readonly T[]): readonly T[] {
  return list.length === 0 ? EMPTY : list.slice()
}

/** Beyond this V8 would make a hash table of a list that is empty yet. */
const ROOM_MAX = 10_000

/**
 * A list to be filled by index (`list[at] = item`), with room for `length` items and no more. Its holes are real: set
 * its length to the number of items in the end.
 */
export function listFor<T>(length: number): T[] {
  return length > ROOM_MAX ? [] : new Array<T>(length)
}

/** The parts as one piece of text: + and templates keep every part alive until somebody reads the result. */
export function joined(parts: readonly string[]): string {
  return parts.join('')
}
