/*
 * Names end up in kernel comments, log lines and map keys, so they are checked even though the API server has checked
 * them: files and other sources have not.
 */

const LABEL_MAX = 63
const SUBDOMAIN_MAX = 253

/** RFC 1123 label: 1 to 63 lower-case letters, digits and inner hyphens. */
export function isDnsLabel(text: string): boolean {
  return text.length <= LABEL_MAX && isLabelBetween(text, 0, text.length)
}

/** RFC 1123 subdomain: labels joined by dots, 253 characters at most. */
export function isDnsSubdomain(text: string): boolean {
  if (text.length > SUBDOMAIN_MAX) return false
  let from = 0
  for (;;) {
    const dot = text.indexOf('.', from)
    if (!isLabelBetween(text, from, dot < 0 ? text.length : dot)) return false
    if (dot < 0) return true
    from = dot + 1
  }
}

function isLabelBetween(text: string, from: number, to: number): boolean {
  if (to <= from || text.charCodeAt(from) === HYPHEN || text.charCodeAt(to - 1) === HYPHEN) return false
  for (let at = from; at < to; at++) {
    const code = text.charCodeAt(at)
    const isLetter = code >= 97 && code <= 122
    const isDigit = code >= 48 && code <= 57
    if (!isLetter && !isDigit && code !== HYPHEN) return false
  }
  return true
}

const HYPHEN = 45

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

export function createNamePool(): NamePool {
  return new Map()
}
