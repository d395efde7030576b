import type { Octets } from '../../base/octets.ts'
import { compareTexts } from '../../base/text.ts'
import { fnv1a } from '../../model/balance.ts'

/*
 * Tables after "Maglev: A Fast and Reliable Software Network Load Balancer" (Eisenbud et al., NSDI 2016, section 3.4): the
 * endpoints of a port take turns, and each takes the next free slot of its own permutation. Equal endpoints give equal tables
 * on every node. Two things differ, for reasons in docs/decisions/0054-balance.md: the permutation is a cubic one, and
 * an endpoint takes a whole number of slots for each unit of its weight. The other slots stay empty; a packet that
 * hashes to one is hashed again.
 */

/** An endpoint, and how many connections it gets beside the others: a whole number. */
export interface Weighted {
  /** Its address and port. */
  readonly endpoint: Octets
  readonly weight: number
}

/** The numbers of slots, and up to which size each is used. All are primes with remainder 2 modulo 3: cubes permute them. */
const STEPS: readonly (readonly [size: number, slots: number])[] = [
  [5, 1_019],
  [14, 2_039],
  [100, 4_091],
  [400, 16_361],
]
/** The bound of one port's table in one family: with more endpoints, each has fewer slots. */
export const MAGLEV_SLOTS_MAX = 65_519
/** Weights make a table larger by at most this factor. */
export const WEIGHT_FACTOR_MAX = 16
/** With fewer slots for a unit of weight, weights are rounded. */
const UNIT_SLOTS_MIN = 8

/** Gives the number of slots for a list. */
export function maglevSlots(list: readonly Pick<Weighted, 'weight'>[]): number {
  return hashedSlots(Math.min(totalOf(list), list.length * WEIGHT_FACTOR_MAX))
}

/** Gives the number of slots for so many endpoints of equal weights. */
export function hashedSlots(size: number): number {
  return STEPS.find(([most]) => size <= most)?.[1] ?? MAGLEV_SLOTS_MAX
}

function totalOf(list: readonly Pick<Weighted, 'weight'>[]): number {
  return list.reduce((sum, { weight }) => sum + weight, 0)
}

/**
 * Gives the position of each slot's endpoint in `list`; -1 for an empty slot. The first slot is not one that a hash leads
 * to: it is for packets that met only empty ones, and has the endpoint that comes first by hash.
 */
export function maglevTable(list: readonly Weighted[], seed: number): Int32Array {
  const size = maglevSlots(list)
  const table = new Int32Array(1 + size).fill(-1)
  const takers = list.map((its, at) => takerOf(its, { at, seed, size }))
  takers.sort(
    (a, b) => a.order - b.order || compareTexts(list[a.at]?.endpoint ?? '', list[b.at]?.endpoint ?? ''),
  )
  const left = quotasOf(list, size)
  table[0] = takers[0]?.at ?? -1
  let free = size
  for (let isTaking = true; isTaking; ) {
    isTaking = false
    for (const taker of takers) {
      const wanted = Math.min(left[taker.at] ?? 0, taker.weight, free)
      free -= wanted
      for (let turn = 0; turn < wanted; turn++) take(table, taker, size)
      left[taker.at] = (left[taker.at] ?? 0) - wanted
      isTaking ||= wanted > 0
    }
  }
  return table
}

/**
 * Gives the number of slots of each endpoint: as many for each unit of weight, or rounded down where weights are too large.
 * Each endpoint gets at least one, as long as there are slots.
 */
function quotasOf(list: readonly Weighted[], size: number): number[] {
  const total = totalOf(list)
  if (total * UNIT_SLOTS_MIN <= size || total === list.length) {
    const unit = Math.max(1, Math.floor(size / total))
    return list.map(({ weight }) => weight * unit)
  }
  const sharesOf = (slots: number) => list.map(({ weight }) => Math.floor((slots * weight) / total))
  const shares = sharesOf(size)
  return shares.includes(0) ? sharesOf(Math.max(0, size - list.length)).map(share => 1 + share) : shares
}

/** An endpoint that takes slots. Its permutation is `offset + factor * (start + n)^3` modulo the number of slots. */
interface Taker {
  readonly at: number
  readonly weight: number
  readonly order: number
  readonly factor: number
  readonly offset: number
  /** `start + n`. */
  next: number
}

interface TakerPlace {
  readonly at: number
  readonly seed: number
  readonly size: number
}

function takerOf({ endpoint, weight }: Weighted, { at, seed, size }: TakerPlace): Taker {
  const [order, start, factor, offset] = [1, 2, 3, 4].map(salt => scrambled(fnv1a(endpoint, seed ^ salt)))
  return {
    at,
    weight,
    order: order ?? 0,
    factor: 1 + ((factor ?? 0) % (size - 1)),
    offset: (offset ?? 0) % size,
    next: (start ?? 0) % size,
  }
}

function take(table: Int32Array, taker: Taker, size: number): void {
  let slot: number
  do {
    const x = taker.next % size
    taker.next++
    const cube = modulo(modulo(x * x, size) * x, size)
    slot = 1 + modulo(cube * taker.factor + taker.offset, size)
  } while (table[slot] !== -1)
  table[slot] = taker.at
}

/** Equals `%` for whole numbers below 2^33 and a divisor below 2^16. V8 computes `%` above 2^31 many times slower. */
function modulo(value: number, size: number): number {
  return value - size * Math.floor(value / size)
}

/** Spreads the differences of similar hashes over all bits: the last step of MurmurHash3. */
function scrambled(hash: number): number {
  const first = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b)
  const second = Math.imul(first ^ (first >>> 13), 0xc2b2ae35)
  return (second ^ (second >>> 16)) >>> 0
}
