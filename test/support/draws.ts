/** How often a test may fail by the draws of one place in it. A run of all tests draws at some thousand places. */
const CHANCE = 1e-12

/**
 * Gives how many draws meet each of `count` equally likely outcomes, but for one run in 10¹²: each outcome is missed with a
 * chance of (1 - 1 / count) ^ draws, and one of them at most with `count` times that. 41 draws for two, 71 for three.
 */
export function drawsToMeet(count: number): number {
  return count < 2 ? 1 : Math.ceil(Math.log(CHANCE / count) / Math.log1p(-1 / count))
}

/**
 * Gives the outcomes of some draws, sorted, each once: draws until `count` of them were met, and at least `atLeast` times,
 * so that an outcome beyond these shows as well. Fewer than `count` mean that the others cannot be met.
 */
export async function outcomesOf(
  draw: () => Promise<string>,
  count: number,
  atLeast = 8,
): Promise<readonly string[]> {
  const met = new Set<string>()
  const most = Math.max(atLeast, drawsToMeet(count))
  for (let drawn = 0; drawn < most && (drawn < atLeast || met.size < count); drawn++) met.add(await draw())
  return [...met].toSorted()
}
