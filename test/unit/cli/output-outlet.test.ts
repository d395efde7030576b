import { getEventListeners } from 'node:events'
import { Writable } from 'node:stream'
import { describe, expect, it } from 'vitest'
import { systemClock } from '../../../src/base/clock.ts'
import { Outlet } from '../../../src/cli/io.ts'

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

/** An outlet whose reader reads nothing by itself. */
function stalling() {
  let done: (() => void) | undefined
  const outlet = new Outlet(
    new Writable({
      write(_chunk, _encoding, taken) {
        done = taken
      },
    }),
  )
  return { outlet, take: () => done?.() }
}

/** Of a process that nobody tells to end. */
const stop = new AbortController().signal

describe('a standard stream', () => {
  it('has not failed while it takes what is written', async () => {
    const outlet = new Outlet(streamThatFails(9, done => done(errno('EIO'))))
    outlet.write('a')
    await outlet.drained({ stop, clock: systemClock })
    expect([outlet.failure, outlet.lost.aborted]).toEqual([undefined, false])
  })

  it('is lost without a failure when its reader has seen enough', async () => {
    const outlet = new Outlet(streamThatFails(1, done => setImmediate(() => done(errno('EPIPE')))))
    for (const text of ['a', 'b', 'c']) outlet.write(text)
    await outlet.drained({ stop, clock: systemClock })
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
    await outlet.drained({ stop, clock: systemClock })
    expect(outlet.failure?.message).toBe("ENOSPC: the kernel's words")
  })

  it('leaves nothing at the signal of a command that writes again and again', async () => {
    const outlet = new Outlet(streamThatFails(99, done => done(errno('EIO'))))
    for (const text of ['a', 'b', 'c']) {
      outlet.write(text)
      await outlet.written(stop)
    }
    await outlet.drained({ stop, clock: systemClock })
    expect(getEventListeners(stop, 'abort')).toHaveLength(0)
  })

  it('does not write at all when it was not used', async () => {
    const outlet = new Outlet(streamThatFails(0, done => done(errno('EIO'))))
    await outlet.drained({ stop, clock: systemClock })
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

  it('is written when its reader has read all of it, or when the process is to end', async () => {
    const slow = stalling()
    slow.outlet.write('a')
    let isWritten = false
    const written = slow.outlet.written(stop).then(() => {
      isWritten = true
    })
    await new Promise(done => setImmediate(done))
    expect(isWritten).toBe(false)
    slow.take()
    slow.take()
    await written
    const stalled = stalling()
    stalled.outlet.write('a')
    await stalled.outlet.written(AbortSignal.abort())
    await new Outlet(process.stdout).written(stop)
  })

  it('waits for a slow reader', async () => {
    const { outlet, take } = stalling()
    outlet.write('a')
    let isDrained = false
    const draining = outlet.drained({ stop, clock: systemClock }).then(() => {
      isDrained = true
    })
    await new Promise(done => setTimeout(done, 50))
    expect(isDrained).toBe(false)
    // What is taken asks for the next, which is the empty write.
    take()
    take()
    await draining
    expect(outlet.failure).toBeUndefined()
  })

  it('gives a reader that stands still up when the process is to end, and says so', async () => {
    const told = new AbortController()
    const waits: number[] = []
    const clock = {
      ...systemClock,
      after(ms: number, run: () => void) {
        waits.push(ms)
        return systemClock.after(0, run)
      },
    }
    const outlet = new Outlet(new Writable({ write: () => undefined }))
    outlet.write('abcdef')
    const draining = outlet.drained({ stop: told.signal, clock })
    await new Promise(done => setTimeout(done, 50))
    expect(waits).toEqual([])
    told.abort()
    await draining
    expect(waits).toEqual([300])
    expect(outlet.failure?.message).toBe('reader stopped with 6 bytes unwritten')
    // Whoever follows this signal follows what happened while the command worked.
    expect(outlet.lost.aborted).toBe(false)
    await outlet.drained({ stop: told.signal, clock })
  })
})
