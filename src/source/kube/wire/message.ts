/** An object of the API while it is being read. */
export interface Message {
  [field: string]: unknown
}

export function isMessage(value: unknown): value is Message {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

export function textIn(value: unknown): string {
  return typeof value === 'string' ? value : ''
}
