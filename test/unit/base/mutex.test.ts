import { describe, expect, it } from 'vitest'
import { Mutex } from '../../../src/base/queues.ts'

describe('a mutex', () => {
  it('run one after the other, in the order in which they were taken', async () => {
    const mutex = new Mutex()
    const told: string[] = []
    const work = (name: string, ms: number) => () =>
      new Promise<string>(resolve => {
        told.push(`${name} begins`)
        setTimeout(() => {
          told.push(`${name} ends`)
          resolve(name)
        }, ms)
      })
    expect(await Promise.all([mutex.run(work('a', 5)), mutex.run(work('b', 0))])).toEqual(['a', 'b'])
    expect(told).toEqual(['a begins', 'a ends', 'b begins', 'b ends'])
  })

  it('go on after one that failed, which its taker alone hears of', async () => {
    const mutex = new Mutex()
    const failed = mutex.run(() => Promise.reject(new Error('no luck')))
    const next = mutex.run(() => Promise.resolve('next'))
    await expect(failed).rejects.toThrow('no luck')
    expect(await next).toBe('next')
  })
})
