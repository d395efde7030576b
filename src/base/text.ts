/** Text that stays on its line and means what it shows: control, format and direction characters are escaped. */
export function oneLine(text: string): string {
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/gu, character => {
    const code = character.codePointAt(0) ?? 0
    return `\\u{${code.toString(16)}}`
  })
}

/** Compares by code units, for a sort. */
export function compareTexts(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0
}

/** `1 Service`, `2 Services`. */
export function count(number: number, noun: string): string {
  return `${number} ${noun}${number === 1 ? '' : 's'}`
}

/** `12.3 KiB`. */
export function bytesText(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`
  const units = ['KiB', 'MiB', 'GiB']
  const power = Math.min(units.length, Math.floor(Math.log2(bytes) / 10))
  return `${(bytes / 1024 ** power).toFixed(1)} ${units[power - 1]}`
}

/** Joins parts to pieces of at least `length` characters, except the last. Takes a part only when a piece needs it. */
export function* inPieces(parts: Iterable<string>, length: number): Generator<string> {
  let piece = ''
  for (const part of parts) {
    piece += part
    if (piece.length < length) continue
    yield piece
    piece = ''
  }
  if (piece !== '') yield piece
}

/** Manifests mark a value that an operator has to fill in: `REPLACE_ME_POD_CIDR`. Undefined when the text has no such mark. */
export function placeholderIn(text: string): string | undefined {
  return /REPLACE_ME\w*/.exec(text)?.[0]
}

export const PLACEHOLDER_REASON = 'is a placeholder of the manifest; replace it with the real value'

/** The candidate that a typing mistake may have meant: at most `letters` of them differ, or a third. */
export function nearest(word: string, candidates: readonly string[], letters = 2): string | undefined {
  let best: string | undefined
  let bestDistance = Number.POSITIVE_INFINITY
  for (const candidate of candidates) {
    const distance = editDistance(word, candidate)
    if (
      distance <= Math.max(letters, candidate.length / 3) &&
      distance < Math.min(bestDistance, candidate.length)
    ) {
      best = candidate
      bestDistance = distance
    }
  }
  return best
}

/** Levenshtein's; words longer than 64 letters count as far away. */
export function editDistance(a: string, b: string): number {
  if (a.length > 64 || b.length > 64) return Number.POSITIVE_INFINITY
  let row = Array.from({ length: b.length + 1 }, (_, column) => column)
  for (let i = 1; i <= a.length; i++) {
    const next = [i]
    for (let j = 1; j <= b.length; j++) {
      const replace = (row[j - 1] ?? 0) + (a[i - 1] === b[j - 1] ? 0 : 1)
      next.push(Math.min(replace, (row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1))
    }
    row = next
  }
  return row[b.length] ?? 0
}

/** Go's zero time, which means never in kube-proxy's answers. */
export const NEVER = '0001-01-01T00:00:00Z'

/** Formats wall-clock milliseconds as Go does: UTC, without trailing zeros in the fraction. */
export function rfc3339(wallMs: number): string {
  return new Date(wallMs).toISOString().replace(/\.?0+Z$/, 'Z')
}

/** Gives the time of day of an RFC 3339 time in UTC, with its zone: `10:21:03Z`. */
export function clockText(time: string): string {
  return `${time.slice(11, 19)}Z`
}

/** Formats a time with exactly six digits, a MicroTime of the API. */
export function microTime(wallMs: number): string {
  return new Date(wallMs).toISOString().replace('Z', '000Z')
}
