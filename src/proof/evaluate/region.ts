import type { Octets } from '../../base/octets.ts'

/** All values from `from` to `to`, both included, in the order of their octets. */
export interface Interval {
  readonly from: Octets
  readonly to: Octets
}

/** A set of values of one length: sorted intervals that do not touch. */
export type Region = readonly Interval[]

export function point(value: Octets): Region {
  return [{ from: value, to: value }]
}

export function everything(length: number): Region {
  return [{ from: '\0'.repeat(length), to: '\xff'.repeat(length) }]
}

/** Gives all values whose first `bits` bits are those of `value`. */
export function prefix(value: Octets, bits: number): Interval {
  let from = ''
  let to = ''
  for (let at = 0; at < value.length; at++) {
    const free = 0xff >> Math.min(8, Math.max(0, bits - at * 8))
    const octet = value.charCodeAt(at)
    from += String.fromCharCode(octet & ~free & 0xff)
    to += String.fromCharCode(octet | free)
  }
  return { from, to }
}

export function onlyValue(region: Region): Octets | undefined {
  const [first, second] = region
  return first !== undefined && second === undefined && first.from === first.to ? first.from : undefined
}

/** Sorts intervals and joins those that overlap or touch. */
export function union(intervals: Iterable<Interval>): Region {
  const sorted = [...intervals].sort((a, b) => (a.from < b.from ? -1 : a.from > b.from ? 1 : 0))
  const joined: Interval[] = []
  for (const interval of sorted) {
    const last = joined.at(-1)
    if (last === undefined || !(interval.from <= last.to || interval.from === after(last.to)))
      joined.push(interval)
    else if (interval.to > last.to) joined[joined.length - 1] = { from: last.from, to: interval.to }
  }
  return joined
}

export function intersection(a: Region, b: Region): Region {
  if (b.length > a.length) return intersection(b, a)
  const common: Interval[] = []
  let at = b[0] === undefined ? 0 : firstEndingAt(a, b[0].from)
  for (const interval of b) {
    if (b.length < 8) at = firstEndingAt(a, interval.from)
    for (let other = a[at]; other !== undefined; other = a[++at]) {
      if (other.from > interval.to) break
      const from = other.from > interval.from ? other.from : interval.from
      const to = other.to < interval.to ? other.to : interval.to
      if (from <= to) common.push({ from, to })
      if (other.to > interval.to) break
    }
  }
  return common
}

export function difference(a: Region, b: Region): Region {
  const rest: Interval[] = []
  let at = 0
  for (const interval of a) {
    let from: Octets | undefined = interval.from
    if (b.length > 16) at = firstEndingAt(b, interval.from)
    else at = 0
    for (let other = b[at]; other !== undefined && from !== undefined; other = b[++at]) {
      if (other.to < from) continue
      if (other.from > interval.to) break
      if (other.from > from) rest.push({ from, to: before(other.from) })
      from = other.to >= interval.to ? undefined : after(other.to)
    }
    if (from !== undefined) rest.push({ from, to: interval.to })
  }
  return rest
}

export function isSameRegion(a: Region, b: Region): boolean {
  if (a === b) return true
  if (a.length !== b.length) return false
  return a.every((interval, index) => {
    const other = b[index]
    return other?.from === interval.from && other.to === interval.to
  })
}

export function includes(region: Region, value: Octets): boolean {
  const found = region[firstEndingAt(region, value)]
  return found !== undefined && found.from <= value
}

/** Tests whether the region and the interval have a value in common. */
export function meets(region: Region, { from, to }: Interval): boolean {
  const found = region[firstEndingAt(region, from)]
  return found !== undefined && found.from <= to
}

/** Counts the values. Exact up to 2^53. */
export function sizeOf(region: Region): number {
  let size = 0
  for (const { from, to } of region) size += from === to ? 1 : numberOf(to) - numberOf(from) + 1
  return size
}

function numberOf(value: Octets): number {
  let number = 0
  for (let at = 0; at < value.length; at++) number = number * 256 + value.charCodeAt(at)
  return number
}

/** Gives the index of the first interval that does not end before `value`. */
function firstEndingAt(region: Region, value: Octets): number {
  let low = 0
  let high = region.length
  while (low < high) {
    const middle = (low + high) >> 1
    if ((region[middle]?.to ?? '') < value) low = middle + 1
    else high = middle
  }
  return low
}

/** Gives the next value; undefined behind the last. */
function after(value: Octets): Octets | undefined {
  for (let at = value.length - 1; at >= 0; at--) {
    const octet = value.charCodeAt(at)
    if (octet === 0xff) continue
    return value.slice(0, at) + String.fromCharCode(octet + 1) + '\0'.repeat(value.length - at - 1)
  }
  return undefined
}

/** Gives the value before. Callers pass no value of zeros only. */
function before(value: Octets): Octets {
  for (let at = value.length - 1; at >= 0; at--) {
    const octet = value.charCodeAt(at)
    if (octet === 0) continue
    return value.slice(0, at) + String.fromCharCode(octet - 1) + '\xff'.repeat(value.length - at - 1)
  }
  return value
}
