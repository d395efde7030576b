/** Whether two values of the model (plain data: no functions, no cycles) say the same. */
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
