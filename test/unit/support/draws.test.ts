import { expect, it } from 'vitest'
import { drawsToMeet, outcomesOf } from '../../support/draws.ts'

/** Gives 'late' from this draw on, and 'soon' before it. */
function late(from: number): { readonly draw: () => Promise<string>; readonly drawn: () => number } {
  let drawn = 0
  return { draw: async () => (++drawn < from ? 'soon' : 'late'), drawn: () => drawn }
}

it.each([2, 3, 5, 17])(
  'the draws for %i outcomes miss one of them once in 10¹² runs, and one draw fewer more often',
  count => {
    const missed = (draws: number) => count * (1 - 1 / count) ** draws
    expect(missed(drawsToMeet(count))).toBeLessThanOrEqual(1e-12)
    expect(missed(drawsToMeet(count) - 1)).toBeGreaterThan(1e-12)
  },
)

it('draws until as many outcomes were met as there may be, however late, but not for ever', async () => {
  const [last, never] = [late(drawsToMeet(2)), late(drawsToMeet(2) + 1)]
  expect(await outcomesOf(last.draw, 2)).toEqual(['late', 'soon'])
  expect(await outcomesOf(never.draw, 2)).toEqual(['soon'])
  expect([last.drawn(), never.drawn()]).toEqual([41, 41])
})

it('draws some times more than it has to, so that an outcome too many shows', async () => {
  const { draw } = late(8)
  expect(await outcomesOf(draw, 1)).toEqual(['late', 'soon'])
})
