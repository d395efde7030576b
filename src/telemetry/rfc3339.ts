/** Go's zero time, which is what "never" looks like in kube-proxy's answers. */
export const NEVER = '0001-01-01T00:00:00Z'

/** Wall-clock milliseconds as Go writes times: UTC, without zeros at the end of the fraction. */
export function rfc3339(wallMs: number): string {
  return new Date(wallMs).toISOString().replace(/\.?0+Z$/, 'Z')
}

/** Formats a time with exactly six digits, a MicroTime of the API. */
export function microTime(wallMs: number): string {
  return new Date(wallMs).toISOString().replace('Z', '000Z')
}
