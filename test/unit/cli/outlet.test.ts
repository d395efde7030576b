import { Writable } from 'node:stream'
import { describe, expect, it } from 'vitest'
import { Outlet } from '../../../src/cli/outlet.ts'

/** A stream that takes so many writes, and answers the others as `fail` says. */
function streamThatFails(after: number, fail: (done: (error: Error) => void) => void): Writable {
  let taken = 0
  return new Writable({
    write(_chunk, _encoding, done) {
      if (taken++ < after) done()
      else fail(done)
    },
  })
}

const errno = (code: string) => Object.assign(new Error(`${code}: the kernel's words`), { code })

describe('a standard stream', () => {
  it('has not failed while it takes what is written', async () => {
    const outlet = new Outlet(streamThatFails(9, done => done(errno('EIO'))))
    outlet.write('a')
    await outlet.drained()
    expect([outlet.failure, outlet.lost.aborted]).toEqual([undefined, false])
  })

  it('is lost without a failure when its reader has seen enough', async () => {
    const outlet = new Outlet(streamThatFails(1, done => setImmediate(() => done(errno('EPIPE')))))
    for (const text of ['a', 'b', 'c']) outlet.write(text)
    await outlet.drained()
    outlet.write('dropped')
    expect(outlet.lost.aborted).toBe(true)
    expect(outlet.lost.reason).toMatchObject({ code: 'EPIPE' })
    expect(outlet.failure).toBeUndefined()
  })

  it.each([
    ['told later', (done: (error: Error) => void) => done(errno('ENOSPC'))],
    [
      'thrown',
      () => {
        throw errno('ENOSPC')
      },
    ],
  ])('keeps the first error, %s', async (_how, fail) => {
    const outlet = new Outlet(streamThatFails(0, fail))
    outlet.write('a')
    outlet.write('b')
    await outlet.drained()
    expect(outlet.failure?.message).toBe("ENOSPC: the kernel's words")
  })

  it('does not write at all when it was not used', async () => {
    const outlet = new Outlet(streamThatFails(0, done => done(errno('EIO'))))
    await outlet.drained()
    expect(outlet.failure).toBeUndefined()
  })

  it('passes on what is no error of the system', () => {
    const outlet = new Outlet(
      streamThatFails(0, () => {
        throw new TypeError('a mistake')
      }),
    )
    expect(() => outlet.write('a')).toThrow(TypeError)
  })
})
