/*
 * Names end up in kernel comments, log lines and map keys, so they are checked even though the API server has checked
 * them: files and other sources have not.
 */

const LABEL_MAX = 63
const SUBDOMAIN_MAX = 253

// The engine compiles these at their second use; loops over characters are slow for the first thousands of objects.
const LABEL = /^[a-z0-9](?:[-a-z0-9]*[a-z0-9])?$/
const SUBDOMAIN = /^[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*$/

/** RFC 1123 label: 1 to 63 lower-case letters, digits and inner hyphens. */
export function isDnsLabel(text: string): boolean {
  return text.length <= LABEL_MAX && LABEL.test(text)
}

/** RFC 1123 subdomain: labels joined by dots, 253 characters at most. */
export function isDnsSubdomain(text: string): boolean {
  return isDnsLabel(text) || (text.length <= SUBDOMAIN_MAX && SUBDOMAIN.test(text))
}

/**
 * One copy of each string that many objects repeat (node names, zones). Bounded: when it is full it starts over, which
 * costs memory and nothing else.
 */
export type NamePool = Map<string, string>

const POOL_MAX = 65_536

export function pooled(pool: NamePool | undefined, text: string): string {
  if (pool === undefined || text === '') return text
  const known = pool.get(text)
  if (known !== undefined) return known
  if (pool.size >= POOL_MAX) pool.clear()
  pool.set(text, text)
  return text
}

/** An empty pool, for parseObject: equal names of many objects become one string. */
export function createNamePool(): NamePool {
  return new Map()
}
