/*
 * Reads fields of data of an unknown shape, such as parsed JSON, and compares such data; what is not there, or of another
 * type, is empty.
 */

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

/** Compares two values deeply (plain data: no functions, no cycles). */
export function isSame(a: unknown, b: unknown): boolean {
  if (a === b) return true
  if (Array.isArray(a)) return Array.isArray(b) && isSameList(a, b)
  return isFields(a) && isFields(b) && !Array.isArray(b) && isSameFields(a, b)
}

type Fields = Readonly<Record<string, unknown>>

function isFields(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null
}

function isSameList(a: readonly unknown[], b: readonly unknown[]): boolean {
  if (a.length !== b.length) return false
  for (let index = 0; index < a.length; index++) if (!isSame(a[index], b[index])) return false
  return true
}

function isSameFields(a: Fields, b: Fields): boolean {
  let surplus = 0
  for (const name in a) {
    if (!isSame(a[name], b[name]) || !(name in b)) return false
    surplus++
  }
  for (const _ in b) surplus--
  return surplus === 0
}
