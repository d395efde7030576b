import { beforeEach, describe, expect, it } from 'vitest'
import { Drains } from '../../../src/flows/pass.ts'

let drains: Drains

beforeEach(() => {
  drains = new Drains()
})

const of = (between: string, drainMs: number, service = 'ns/web') =>
  ({ kind: 'drain', service, between, drainMs }) as const

/** One pass that sees these. */
function pass(nowMs: number, ...seen: readonly ReturnType<typeof of>[]): boolean[] {
  drains.begin()
  const due = seen.map(each => drains.isDue(each, nowMs))
  drains.finish(new Set(['ns/web']), nowMs)
  return due
}

describe('Drains', () => {
  it('forgets what has ended by itself, and begins anew when it comes again', () => {
    pass(0, of('a', 1_000), of('b', 1_000))
    pass(500, of('b', 1_000))
    expect(drains.size).toBe(1)
    pass(600, of('a', 1_000), of('b', 1_000))
    expect(pass(1_000, of('a', 1_000), of('b', 1_000))).toEqual([false, true])
  })

  it('keeps what a pass about other Services did not look at', () => {
    pass(0, of('a', 1_000))
    drains.begin()
    drains.finish(new Set(['ns/other']), 500)
    expect(drains.size).toBe(1)
  })

  it('remembers no more than its bound', () => {
    pass(0, ...Array.from({ length: 10_001 }, (_, n) => of(String(n), 1_000)))
    expect(drains.size).toBe(10_000)
  })
})
