/* Reads fields of data of an unknown shape, such as parsed JSON; what is not there, or of another type, is empty. */

export function fieldOf(value: unknown, field: string): unknown {
  return typeof value === 'object' && value !== null ? Reflect.get(value, field) : undefined
}

export function listAt(value: unknown, field: string): readonly unknown[] {
  const list: unknown = fieldOf(value, field)
  return Array.isArray(list) ? list : []
}

export function textAt(value: unknown, field: string): string {
  const text = fieldOf(value, field)
  return typeof text === 'string' ? text : ''
}

export function numberAt(value: unknown, field: string): number | undefined {
  const number = fieldOf(value, field)
  return typeof number === 'number' ? number : undefined
}
