import { inPieces } from '../base/text.ts'

/**
 * Formats plain data as JSON in pieces of about 16 KiB, so that a large answer is never one string in memory. An iterable
 * becomes a list, and is advanced as its items are written. Ignores toJSON.
 */
export function jsonPieces(value: unknown): Generator<string> {
  return inPieces(partsOf(value), PIECE_LENGTH)
}

const PIECE_LENGTH = 16 * 1024

/** Maximum number of values that one call of JSON.stringify writes. */
const SMALL_MAX = 256

function* partsOf(value: unknown): Generator<string> {
  if (typeof value !== 'object' || value === null || roomAfter(value, SMALL_MAX) >= 0) {
    yield JSON.stringify(value) ?? 'null'
    return
  }
  if (Symbol.iterator in value) yield* listParts(value)
  else yield* objectParts(value)
}

/** Subtracts the values of `value` from `room`. Gives a negative number if there are too many, or for an iterable. */
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
