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
function editDistance(a: string, b: string): number {
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
