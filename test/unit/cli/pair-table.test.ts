import { expect, it } from 'vitest'
import { PairTable } from '../../../src/inspect/live/flow-groups.ts'

it('remembers values as a map by all four words does, while it grows and after it was cleared', () => {
  const table = new PairTable<number>()
  const wrong: string[] = []
  for (let round = 0; round < 2; round++) {
    const truth = new Map<string, number>()
    let state = 1 + round
    for (let n = 0; n < 20_000; n++) {
      state = Math.imul(state, 1_664_525) + 1_013_904_223
      // Few values a word, so that keys share words, and meet again.
      const words = [1 + (n % 3), (state >>> 8) % 40, (state >>> 14) % 40, (state >>> 20) % 40]
      const key = new Uint32Array(words)
      if (table.get(key) !== truth.get(words.join())) wrong.push(words.join())
      table.set(key, n)
      truth.set(words.join(), n)
    }
    expect(table.size).toBe(truth.size)
    for (const [words, value] of truth)
      if (table.get(new Uint32Array(words.split(',').map(Number))) !== value) wrong.push(words)
    expect(wrong).toEqual([])
    table.clear()
    expect(table.size).toBe(0)
  }
})
