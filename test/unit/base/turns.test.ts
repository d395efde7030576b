import { describe, expect, it } from 'vitest'
import { Turns } from '../../../src/base/turns.ts'

describe('turns', () => {
  it('run one after the other, in the order in which they were taken', async () => {
    const turns = new Turns()
    const told: string[] = []
    const work = (name: string, ms: number) => () =>
      new Promise<string>(resolve => {
        told.push(`${name} begins`)
        setTimeout(() => {
          told.push(`${name} ends`)
          resolve(name)
        }, ms)
      })
    expect(await Promise.all([turns.take(work('a', 5)), turns.take(work('b', 0))])).toEqual(['a', 'b'])
    expect(told).toEqual(['a begins', 'a ends', 'b begins', 'b ends'])
  })

  it('go on after one that failed, which its taker alone hears of', async () => {
    const turns = new Turns()
    const failed = turns.take(() => Promise.reject(new Error('no luck')))
    const next = turns.take(() => Promise.resolve('next'))
    await expect(failed).rejects.toThrow('no luck')
    expect(await next).toBe('next')
  })
})
