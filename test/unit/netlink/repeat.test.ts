import { describe, expect, it } from 'vitest'
import { EBADF, getLink, inChild, openRoute, receiveTypes, thrownBy } from '../../support/route-socket.ts'

describe('repeat', () => {
  /** A request for a link that does not exist: all its answers are the same, and short. */
  const getNoLink = () => {
    const request = getLink()
    new DataView(request.buffer).setInt32(20, 0x7fffffff, true)
    return request
  }
  const EVERY_MS = 5
  const later = (ms: number) => new Promise(resolve => setTimeout(resolve, ms))

  it('calls for the first answer, and not for the same one again', async () => {
    const transport = openRoute()
    let calls = 0
    const first = transport.repeat?.(getNoLink(), EVERY_MS, () => calls++)
    await later(EVERY_MS * 10)
    expect(calls).toBe(1)
    expect(receiveTypes(transport)).toBeUndefined()
    first?.stop()
    const again = transport.repeat?.(getNoLink(), EVERY_MS, () => calls++)
    await later(EVERY_MS * 10)
    expect(calls).toBe(2)
    again?.stop()
  })

  it('compares with the last answer and what is expected of it', async () => {
    const transport = openRoute()
    let calls = 0
    const repetition = transport.repeat?.(getNoLink(), EVERY_MS, () => calls++)
    await later(EVERY_MS * 10)
    expect(calls).toBe(1)
    // NLMSG_ERROR with -ENODEV, at which the answers are refused.
    const errno = new Uint8Array(Int32Array.of(-19).buffer)
    repetition?.expect(16, Uint8Array.of(0, 0, 0, 0))
    repetition?.expect(16, errno)
    await later(EVERY_MS * 10)
    expect(calls).toBe(1)
    repetition?.expect(16, Uint8Array.of(0, 0, 0, 0))
    await later(EVERY_MS * 10)
    expect(calls).toBe(2)
    repetition?.stop()
    for (const [at, octets] of [
      [-1, errno],
      [253, errno],
      [257, new Uint8Array()],
    ] as const)
      expect(thrownBy(() => repetition?.expect(at, octets))).toMatchObject({
        syscall: 'expect',
        code: 'EINVAL',
      })
  })

  it('calls each time for an answer that is too long to compare, and no more when it is stopped', async () => {
    const transport = openRoute()
    let calls = 0
    await new Promise<void>(resolve => {
      const repetition = transport.repeat?.(getLink(), EVERY_MS, () => {
        if (++calls < 3) return
        repetition?.stop()
        resolve()
      })
    })
    await later(EVERY_MS * 4)
    expect(calls).toBe(3)
    transport.watch(() => undefined)()
  })

  it('refuses a request that is too long, or when the socket is watched or closed', async () => {
    const transport = openRoute()
    const changed = () => undefined
    const refusal = (datagram = getNoLink()) =>
      thrownBy(() => transport.repeat?.(datagram, EVERY_MS, changed))
    expect(refusal(new Uint8Array(65))).toMatchObject({ syscall: 'repeat', code: 'EMSGSIZE' })
    const stop = transport.watch(changed)
    expect(refusal()).toMatchObject({ code: 'EBUSY' })
    stop()
    await transport.close()
    expect(refusal()).toMatchObject(EBADF)
  })

  it('belongs to a watch', async () => {
    const printed = inChild(`
      const handle = open()
      console.log(addon.repeat(handle, dump, 1))
      addon.close(handle)`)
    expect(await printed).toBe('-22')
  })
})
