/** Numbers that look random and are the same for the same seed. */
export interface Random {
  /** Uniform in [0, 1). */
  (): number
  /** Uniform integer, both ends included. */
  int(min: number, max: number): number
  /** True with this probability. */
  chance(probability: number): boolean
  /** Throws for an empty list. */
  pick<T>(list: readonly T[]): T
  /** Another sequence, which does not depend on how much is taken from this one later. */
  fork(): Random
}

export function createRandom(seed: number): Random {
  const next = mulberry32(seed)
  const int = (min: number, max: number) => min + Math.floor(next() * (max - min + 1))
  return Object.assign(() => next(), {
    int,
    chance: (probability: number) => next() < probability,
    pick<T>(list: readonly T[]): T {
      const found = list[int(0, list.length - 1)]
      if (found === undefined) throw new Error('nothing to pick from')
      return found
    },
    fork: () => createRandom(int(0, 0xffff_ffff)),
  })
}

function mulberry32(seed: number): () => number {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 0x1_0000_0000
  }
}
