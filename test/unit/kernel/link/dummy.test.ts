import { describe, expect, it } from 'vitest'
import { systemClock } from '../../../../src/base/clock.ts'
import { formatIp, type Ip } from '../../../../src/base/ip.ts'
import { DummyClient } from '../../../../src/kernel/link/dummy.ts'
import { type SocketFaults, systemError } from '../../../support/fake-kernel/socket.ts'
import { FakeLinks } from '../../../support/fake-link/kernel.ts'
import { typeOf } from '../../../support/scripted-transport.ts'

const NAME = 'kube-ipvs0'

function manyIps(count: number): readonly Ip[] {
  return Array.from({ length: count }, (_, i) => String.fromCharCode(10, 97, i >> 8, i & 255))
}

function start(faults: SocketFaults = {}) {
  const kernel = new FakeLinks()
  const client = new DummyClient({
    transport: kernel.open({ faults }),
    clock: systemClock,
    timeoutMs: 1_000,
  })
  return { kernel, client }
}

describe('what goes wrong with a dummy device', () => {
  it('is no device that somebody else makes at the same time', () => {
    const made = (kind: string): SocketFaults => ({
      onSend(sent) {
        if (typeOf(sent) === 16 && kernel?.byName(NAME) === undefined) kernel?.add(NAME, kind)
        return sent
      },
    })
    let kernel: FakeLinks | undefined
    for (const kind of ['dummy', 'veth']) {
      const { kernel: fresh, client } = start(made(kind))
      kernel = fresh
      if (kind === 'dummy') client.ensure(NAME)
      else expect(() => client.ensure(NAME)).toThrow(/not a dummy device but of kind veth/)
      expect(fresh.byName(NAME)?.kind).toBe(kind)
    }
  })

  it('is a send that fails for good: what was not sent has failed', async () => {
    let sends = 0
    const { kernel, client } = start({
      onSend(sent) {
        if (typeOf(sent) === 20 && ++sends === 2) throw systemError('sendmsg', 'EPERM')
        return sent
      },
    })
    client.ensure(NAME)
    const add = manyIps(401)
    const { unknown, failures, messages } = await client.commit(NAME, { add, remove: [] })
    expect([unknown, messages]).toEqual([undefined, 200])
    expect(failures.map(({ ip, code }) => `${formatIp(ip)} ${code}`)).toEqual(
      add.slice(200).map(ip => `${formatIp(ip)} EPERM`),
    )
    expect(kernel.byName(NAME)?.addresses).toHaveLength(200)
  })
})
