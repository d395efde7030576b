/*
 * Resource versions stay text: they exceed what a number holds. Equality always means something; order only under the
 * rule of KEP-5504 (decimal digits without a leading zero, compared by length, then as text), and only within one
 * resource. "0" means "any" in a request and nothing in an answer.
 */

const ORDERABLE = /^[1-9][0-9]*$/

/** Negative, zero or positive; undefined when one of them cannot be ordered. */
export function compareVersions(a: string, b: string): number | undefined {
  if (!ORDERABLE.test(a) || !ORDERABLE.test(b)) return undefined
  if (a.length !== b.length) return a.length - b.length
  return a === b ? 0 : a < b ? -1 : 1
}

/** False, too, when they cannot be ordered. */
export function isOlder(a: string, b: string): boolean {
  const order = compareVersions(a, b)
  return order !== undefined && order < 0
}

/** Whether a watch can begin there. */
export function isPosition(version: string): boolean {
  return version !== '' && version !== '0'
}

/** The position of a watch at `position` that receives `heard`: it never goes back. */
export function advanced(position: string, heard: string): string {
  return !isPosition(heard) || isOlder(heard, position) ? position : heard
}
