import { describe, expect, test } from 'vitest'
import { finish, finishInSlices, Pauses, type Steps } from '../../../src/base/clock.ts'

function* counting(pauses: number, onStep: (step: number) => void = () => undefined): Steps<string> {
  for (let step = 0; step < pauses; step++) {
    onStep(step)
    yield
  }
  return `after ${pauses}`
}

function* failing(): Steps<string> {
  yield
  throw new Error('broken')
}

describe('a computation in steps', () => {
  test('throws what it throws', async () => {
    expect(() => finish(failing())).toThrow('broken')
    const slicing = { sliceMs: 1, nowMs: () => 0, breathe: async () => undefined }
    await expect(finishInSlices(failing(), slicing)).rejects.toThrow('broken')
  })

  test('lets others have their turn whenever a slice is used up, and not before', async () => {
    let nowMs = 0
    const breaths: number[] = []
    const steps = counting(10, () => {
      nowMs += 4
    })
    const breathe = async () => {
      breaths.push(nowMs)
      nowMs += 100
    }
    expect(await finishInSlices(steps, { sliceMs: 10, nowMs: () => nowMs, breathe })).toBe('after 10')
    // Three steps of 4 ms use up 10 ms; time spent breathing counts for no slice.
    expect(breaths).toEqual([12, 124, 236])
  })
})

describe('pauses', () => {
  test('are due after equal numbers of items', () => {
    const pauses = new Pauses()
    const due = Array.from({ length: 2_000 }, (_, item) => (pauses.due() ? item + 1 : 0)).filter(at => at > 0)
    const [first = 0] = due
    expect(due.length).toBeGreaterThan(5)
    expect(due).toEqual(due.map((_, index) => first * (index + 1)))
  })

  test('are due at once after an item that counts as many', () => {
    const pauses = new Pauses()
    expect(pauses.due(100_000)).toBe(true)
    expect(pauses.due(1)).toBe(false)
  })
})
