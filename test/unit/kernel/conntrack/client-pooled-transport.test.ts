import { describe, expect, it } from 'vitest'
import { PooledTransport } from '../../../../src/kernel/conntrack/client.ts'
import { SystemError } from '../../../../src/netlink/transport.ts'
import { settle } from '../../../support/fake-clock.ts'
import { ScriptedTransport } from '../../../support/scripted-transport.ts'

const ANSWER = Uint8Array.of(1, 2, 3)

describe('PooledTransport', () => {
  it('sends without making the sender wait', async () => {
    const inner = new ScriptedTransport(() => [ANSWER])
    const pooled = new PooledTransport(inner)
    const into = new Uint8Array(8)
    pooled.sendSync(ANSWER)
    expect([inner.sent.length, pooled.receive(into)]).toEqual([0, undefined])
    await settle()
    expect([inner.sent.length, pooled.receive(into)]).toEqual([1, 3])
  })

  it('wakes the reader when the send failed, and throws that out of the next receive alone', async () => {
    const inner = new ScriptedTransport(() => {
      throw new SystemError('sendmsg', 1, 'EPERM')
    })
    const pooled = new PooledTransport(inner)
    let woken = 0
    pooled.watch(() => woken++)
    pooled.sendSync(ANSWER)
    await settle()
    expect(woken).toBe(1)
    expect(() => pooled.receive(new Uint8Array(8))).toThrow('EPERM')
    expect(pooled.receive(new Uint8Array(8))).toBeUndefined()
  })

  it('wakes nobody who has stopped watching', async () => {
    const inner = new ScriptedTransport(() => {
      throw new SystemError('sendmsg', 1, 'EPERM')
    })
    const pooled = new PooledTransport(inner)
    let woken = 0
    pooled.watch(() => woken++)()
    pooled.sendSync(ANSWER)
    await settle()
    expect([woken, inner.watched]).toEqual([0, false])
  })

  it('is the socket in everything else', async () => {
    const inner = new ScriptedTransport(() => [])
    const pooled = new PooledTransport(inner)
    pooled.join(3)
    expect([pooled.portId, pooled.sendLimitBytes, inner.joined.has(3)]).toEqual([77, 1 << 30, true])
    pooled.leave(3)
    await pooled.send(ANSWER)
    await pooled.close()
    expect([inner.joined.size, inner.sent.length, inner.closed]).toEqual([0, 1, true])
  })
})
