import { runSeed } from './simulation.ts'

/*
 * KPROBE_SEEDS=n says how many seeds there are, KPROBE_FIRST_SEED=n where they begin; KPROBE_SEED=n runs that one alone
 * and prints what happened in it.
 */
const { KPROBE_SEED, KPROBE_SEEDS = '300', KPROBE_FIRST_SEED = '1' } = process.env
const FIRST = Number(KPROBE_SEED ?? KPROBE_FIRST_SEED)
const COUNT = KPROBE_SEED === undefined ? Number(KPROBE_SEEDS) : 1
/** Seeds to a test, so that a report says roughly where it is. */
const CHUNK = 50

export interface Chunk {
  readonly from: number
  readonly to: number
}

/** The seeds of one of `parts` test files, which run side by side. */
export function chunksOf(part: number, parts: number): readonly Chunk[] {
  const all = Array.from({ length: Math.ceil(COUNT / CHUNK) }, (_, index) => {
    const from = FIRST + index * CHUNK
    return { from, to: Math.min(from + CHUNK, FIRST + COUNT) - 1 }
  })
  return all.filter((_, index) => index % parts === part)
}

/** What did not hold in which seed, and how to see it again; empty when all is well. */
export async function complaintsOf({ from, to }: Chunk): Promise<readonly string[]> {
  const failed: string[] = []
  for (let seed = from; seed <= to; seed++) {
    const { complaints, trace } = await runSeed(seed)
    if (KPROBE_SEED !== undefined) process.stdout.write(`${trace.join('\n')}\n`)
    if (complaints.length === 0) continue
    failed.push(`seed ${seed}: ${complaints.slice(0, 5).join('; ')}`)
    failed.push(`  again: KPROBE_SEED=${seed} npx vitest run --project sim test/sim/simulator.test.ts`)
  }
  return failed
}
