import { describe, expect, it } from 'vitest'
import { eventually } from '../../support/patience.ts'
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

  /** How the answers go on behind the length of the request, which they repeat: pid, then the link that was asked for. */
  const expected = (request: Uint8Array) => {
    const transport = openRoute()
    transport.sendSync(request)
    const into = new Uint8Array(256)
    const length = transport.receive(into) ?? 0
    return into.slice(request.length, Math.min(length, 64))
  }

  it('calls for each answer until one is expected, and not for that one', async () => {
    const transport = openRoute()
    let calls = 0
    const repetition = transport.repeat?.(getNoLink(), EVERY_MS, () => calls++)
    await eventually(() => calls > 1, 'a call for each answer')
    expect(receiveTypes(transport)).toBeUndefined()
    const octets = expected(getNoLink())
    repetition?.expect(octets)
    const before = calls
    await later(EVERY_MS * 10)
    expect(calls).toBe(before)
    repetition?.expect(octets.map(octet => octet ^ 1))
    await eventually(() => calls > before, 'a call for another answer')
    repetition?.stop()
    expect(thrownBy(() => repetition?.expect(new Uint8Array(65)))).toMatchObject({ syscall: 'repeat' })
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

  it('is not woken by an answer that stays behind, and does not take it for the next one', async () => {
    const transport = openRoute()
    const octets = expected(getNoLink())
    let calls = 0
    const repetition = transport.repeat?.(getNoLink(), EVERY_MS, () => calls++)
    repetition?.expect(octets)
    transport.sendSync(getNoLink())
    await later(EVERY_MS * 10)
    expect(calls).toBe(0)
    repetition?.expect(octets.map(octet => octet ^ 1))
    await eventually(() => calls > 1, 'a call for another answer')
    expect(receiveTypes(transport)).toBeUndefined()
    repetition?.stop()
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
