import { inPieces } from '../base/text.ts'

/**
 * JSON of plain data in pieces of about 16 KiB, so that a large answer is never one string in memory. Iterables are
 * written as lists, and generators are asked for an item when it is its turn; dates and toJSON are not known here.
 */
export function jsonPieces(value: unknown): Generator<string> {
  return inPieces(partsOf(value), PIECE_LENGTH)
}

const PIECE_LENGTH = 16 * 1024

/** Values that JSON.stringify may write at once. */
const SMALL_MAX = 256

function* partsOf(value: unknown): Generator<string> {
  if (typeof value !== 'object' || value === null || roomAfter(value, SMALL_MAX) >= 0) {
    yield JSON.stringify(value) ?? 'null'
    return
  }
  if (Symbol.iterator in value) yield* listParts(value)
  else yield* objectParts(value)
}

/** How many values of `room` are left behind this one; negative when it is too large, or holds a list to be asked for. */
function roomAfter(value: unknown, room: number): number {
  if (typeof value !== 'object' || value === null) return room - 1
  if (!Array.isArray(value) && Symbol.iterator in value) return -1
  let left = room - 1
  for (const item of Array.isArray(value) ? value : Object.values(value)) {
    if (left < 0) break
    left = roomAfter(item, left)
  }
  return left
}

function* listParts(list: object): Generator<string> {
  yield '['
  let separator = ''
  if (isIterable(list))
    for (const item of list) {
      yield separator
      yield* partsOf(item)
      separator = ','
    }
  yield ']'
}

function* objectParts(object: object): Generator<string> {
  yield '{'
  let separator = ''
  for (const [name, value] of Object.entries(object)) {
    if (value === undefined) continue
    yield `${separator}${JSON.stringify(name)}:`
    yield* partsOf(value)
    separator = ','
  }
  yield '}'
}

function isIterable(value: object): value is Iterable<unknown> {
  return Symbol.iterator in value && typeof value[Symbol.iterator] === 'function'
}
