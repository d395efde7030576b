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
  it('lets a connection go on for the time it has since it was first seen', () => {
    expect(pass(0, of('a', 1_000))).toEqual([false])
    expect(drains.nextDueMs).toBe(1_000)
    expect(pass(900, of('a', 1_000))).toEqual([false])
    expect(drains.servicesDue(999)).toEqual([])
    expect(drains.servicesDue(1_000)).toEqual(['ns/web'])
    expect(pass(1_000, of('a', 1_000), of('a', 1_000))).toEqual([true, true])
    expect([drains.size, drains.nextDueMs]).toEqual([0, undefined])
  })

  it('cuts at once where there is no time, and remembers nothing', () => {
    expect(pass(0, of('a', 0), of('a', 0))).toEqual([true, true])
    expect(drains.size).toBe(0)
  })

  it('forgets what has ended by itself, and begins anew when it comes again', () => {
    pass(0, of('a', 1_000), of('b', 1_000))
    pass(500, of('b', 1_000))
    expect(drains.size).toBe(1)
    pass(600, of('a', 1_000), of('b', 1_000))
    expect(pass(1_000, of('a', 1_000), of('b', 1_000))).toEqual([false, true])
  })
})
