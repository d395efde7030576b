/**
 * A part of an object that cannot be honored. The smallest unit is refused (one address, one port, one range) and
 * everything else of the object still goes in.
 */
export interface Refusal {
  /** Kind, namespace and name: `Service ns1/web`, `EndpointSlice ns1/web-abc`. */
  readonly object: string
  /** Path of the refused field: `spec.externalIPs[1]`. */
  readonly field: string
  /** The refused value as it was given, escaped and shortened for one line of text. */
  readonly value: string
  /** Why, and what would be accepted, as a sentence without a full stop. */
  readonly reason: string
  /** The Service, `namespace/name`, whose EndpointSlice is refused as a whole; absent where none is known. */
  readonly service?: string
}

/** Shared by everything that is entirely accepted. */
export const NO_REFUSALS: readonly Refusal[] = []

/** Distinguishes the result of a parse function from its input: no object of the model has these fields. */
export function isRefusal(value: object): value is Refusal {
  return 'reason' in value && 'field' in value
}

/** Collects what is refused of one object while it is read. Nearly always that is nothing: no text is made before. */
export interface Findings {
  /** `Service`. */
  readonly kind: string
  /** `namespace/name`, or `name` of cluster-scoped kinds. */
  readonly key: string
  refusals: Refusal[] | undefined
}

export function refuse(findings: Findings, field: string, value: unknown, reason: string): void {
  addRefusal(findings, {
    object: objectText(findings.kind, findings.key),
    field,
    value: printable(value),
    reason,
  })
}

/** The same of a value that must be a number: one in quotes is shown with them. */
export function refuseNumber(findings: Findings, field: string, value: unknown, reason: string): void {
  const isText = typeof value === 'string'
  addRefusal(findings, {
    object: objectText(findings.kind, findings.key),
    field,
    value: isText ? `"${printable(value)}"` : printable(value),
    reason: isText ? `a quoted string, and ${reason}` : reason,
  })
}

/** Adds one that may be about another object. */
export function addRefusal(findings: Findings, refusal: Refusal): void {
  if (findings.refusals === undefined) findings.refusals = [refusal]
  else findings.refusals.push(refusal)
}

export function refusalsOf(findings: Findings): readonly Refusal[] {
  return findings.refusals ?? NO_REFUSALS
}

/** `Service ns1/web`. */
export function objectText(kind: string, key: string): string {
  const slash = key.indexOf('/')
  const shown =
    slash < 0 ? printable(key) : `${printable(key.slice(0, slash))}/${printable(key.slice(slash + 1))}`
  return `${kind} ${shown}`
}

const LENGTH_MAX = 64
const ELLIPSIS = '...'

/** Text of any value, texts as they are. An object's own toString is not called: it is whatever a file made it. */
export function plainText(value: unknown): string {
  return typeof value === 'object' && value !== null ? printable(value) : String(value)
}

/**
 * An untrusted value as one line of printable ASCII, at most 64 characters: control characters, quotes, backslashes
 * and everything beyond ASCII (direction overrides among it) become \u escapes.
 */
export function printable(value: unknown): string {
  if (typeof value === 'string') return escaped(value)
  if (value === undefined) return 'nothing'
  if (Array.isArray(value)) return value.length === 0 ? '[]' : '[...]'
  if (typeof value === 'object' && value !== null) return '{...}'
  return escaped(String(value))
}

function escaped(text: string): string {
  let line = ''
  // One unit more than fits is enough to know that the text is too long.
  for (let at = 0; at < text.length && line.length <= LENGTH_MAX; at++)
    line += escapedUnit(text.charCodeAt(at))
  return line.length <= LENGTH_MAX ? line : line.slice(0, LENGTH_MAX - ELLIPSIS.length) + ELLIPSIS
}

function escapedUnit(unit: number): string {
  const isPlain =
    unit >= 0x20 && unit <= 0x7e && unit !== 0x22 && unit !== 0x27 && unit !== 0x5c && unit !== 0x60
  return isPlain ? String.fromCharCode(unit) : `\\u${unit.toString(16).padStart(4, '0')}`
}
