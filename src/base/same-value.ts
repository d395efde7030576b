/** Whether two trees of plain data (primitives, arrays, objects) say the same. */
export function sameValue(a: unknown, b: unknown): boolean {
  if (Object.is(a, b)) return true
  if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null) return false
  if (Array.isArray(a)) {
    if (!Array.isArray(b) || a.length !== b.length) return false
    for (let i = 0; i < a.length; i++) if (!sameValue(a[i], b[i])) return false
    return true
  }
  if (Array.isArray(b)) return false
  const left = Object.entries(a)
  const right = new Map<string, unknown>(Object.entries(b))
  if (left.length !== right.size) return false
  return left.every(([key, value]) => right.has(key) && sameValue(value, right.get(key)))
}
