const LONGEST_MS = 300_000

/**
 * Milliseconds that a Retry-After header (RFC 9110, 10.2.3) asks for, as seconds or as a date, clamped to 0 … 300 s;
 * undefined when it cannot be read. `wallMs` is the time of day in milliseconds since 1970.
 */
export function parseRetryAfter(header: string | undefined, wallMs: number): number | undefined {
  const text = header?.trim() ?? ''
  if (/^\d+$/.test(text)) return clamp(Number(text) * 1000)
  // Date.parse takes much that is no HTTP-date, numbers with a sign among it.
  if (!/^(Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? /.test(text)) return undefined
  const atMs = Date.parse(text)
  return Number.isNaN(atMs) ? undefined : clamp(atMs - wallMs)
}

function clamp(ms: number): number {
  return Math.min(LONGEST_MS, Math.max(0, ms))
}
