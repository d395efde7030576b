/** Go's zero time, which means never in kube-proxy's answers. */
export const NEVER = '0001-01-01T00:00:00Z'

/** Formats wall-clock milliseconds as Go does: UTC, without trailing zeros in the fraction. */
export function rfc3339(wallMs: number): string {
  return new Date(wallMs).toISOString().replace(/\.?0+Z$/, 'Z')
}

/** Formats a time with exactly six digits, a MicroTime of the API. */
export function microTime(wallMs: number): string {
  return new Date(wallMs).toISOString().replace('Z', '000Z')
}
