/** Go's zero time, which is what "never" looks like in kube-proxy's answers. */
export const NEVER = '0001-01-01T00:00:00Z'

/** Wall-clock milliseconds as Go writes times: UTC, without zeros at the end of the fraction. */
export function rfc3339(wallMs: number): string {
  return new Date(wallMs).toISOString().replace(/\.?0+Z$/, 'Z')
}

/** With exactly six digits: what the API server calls a MicroTime. */
export function microTime(wallMs: number): string {
  return new Date(wallMs).toISOString().replace('Z', '000Z')
}
