import { describe, expect, it } from 'vitest'
import { formatIpPort } from '../../../src/base/ip.ts'
import { ApiReach, type ApiReachOptions } from '../../../src/daemon/api-reach.ts'
import { SystemError, type Transport } from '../../../src/netlink/transport.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { FakeKernel } from '../../support/fake-kernel/kernel.ts'

function reachOf(openTransport: (() => Transport) | undefined, free: ApiReachOptions['free'] = []) {
  const told: string[][] = []
  const logged: string[] = []
  const note = (_: object, text: string) => void logged.push(text)
  const reach = new ApiReach({
    clock: new FakeClock(),
    log: { debug: note, warn: note },
    random: () => 0.5,
    openTransport,
    free,
    connects: () => Promise.resolve(true),
    changed: endpoints => told.push(endpoints.map(({ ip, port }) => formatIpPort(ip, port))),
  })
  return { reach, told, logged }
}

describe('where the API server is reached', () => {
  it('is told once an address, sorted, IPv4-mapped ones as what they are on the wire', () => {
    const { reach, told } = reachOf(undefined)
    reach.reaching(['192.0.2.2', '::ffff:192.0.2.1', 'no address'], 6443)
    reach.reaching(['192.0.2.1'], 6443)
    reach.reaching(['2001:db8::1'], 443)
    expect(told).toEqual([
      ['192.0.2.1:6443', '192.0.2.2:6443'],
      ['192.0.2.1:6443', '192.0.2.2:6443', '[2001:db8::1]:443'],
    ])
  })
})

describe('F131: addresses of a name that always resolves to another', () => {
  it('F131: are forgotten in the order in which they were dialed last', () => {
    const { reach, told } = reachOf(undefined)
    for (let last = 1; last <= 16; last++) reach.reaching([`192.0.2.${last}`], 6443)
    const before = told.length
    reach.reaching(['192.0.2.1'], 6443)
    expect(told).toHaveLength(before)
    reach.reaching(['192.0.2.17'], 6443)
    expect(told.at(-1)).toContain('192.0.2.1:6443')
    expect(told.at(-1)).not.toContain('192.0.2.2:6443')
  })
})

describe('F131: the way past rules of a former process', () => {
  function kernelRig(free: ApiReachOptions['free'] = []) {
    const kernel = new FakeKernel()
    const sockets: Transport[] = []
    const rig = reachOf(() => {
      const socket = kernel.open()
      sockets.push(socket)
      return socket
    }, free)
    const fail = async (times: number) => {
      for (let time = 0; time < times; time++) await (await rig.reach.dialling()).failed()
    }
    return { ...rig, sockets, fail }
  }

  it('F131: is not written where a failure comes from no address, or from loopback, which no Service can have', async () => {
    const { reach, sockets, fail } = kernelRig()
    await fail(4)
    reach.reaching(['127.0.0.1', '::1'], 6443)
    await fail(4)
    expect(sockets).toEqual([])
  })

  it('F131: is not written after the first sync, nor where nothing may be written', async () => {
    const { reach, sockets, fail } = kernelRig()
    reach.reaching(['192.0.2.1'], 6443)
    await reach.synced({ isStale: false })
    await fail(4)
    expect(sockets).toEqual([])
    const other = reachOf(undefined)
    other.reach.reaching(['192.0.2.1'], 6443)
    await (await other.reach.dialling()).failed()
    expect((await other.reach.dialling()).localPort).toBeUndefined()
    expect(other.logged).toEqual([])
  })

  it('F131: is written while a saved state is served, when nothing is freed any more', async () => {
    const freed: string[] = []
    const free = () => {
      freed.push('it')
      return Promise.resolve(undefined)
    }
    const { reach, sockets, fail } = kernelRig([free])
    reach.reaching(['192.0.2.1'], 6443)
    await reach.synced({ isStale: true })
    await fail(2)
    expect([sockets.length, freed]).toEqual([1, []])
    await reach.synced({ isStale: false })
    await fail(4)
    expect(sockets).toHaveLength(1)
  })

  it('F131: that cannot be written is logged once, and connecting goes on without', async () => {
    const { reach, logged } = reachOf(() => {
      throw new SystemError('socket', 1, 'EPERM')
    })
    reach.reaching(['192.0.2.1'], 6443)
    for (let time = 0; time < 4; time++) await (await reach.dialling()).failed()
    expect(logged).toEqual([expect.stringContaining('cannot bypass the Service rules of this node')])
  })

  it('F131: is not written, and no more is freed, once the first sync ends what an attempt waits for', async () => {
    let endFreeing: (freed: undefined) => void = () => undefined
    const freed: string[] = []
    const { reach, sockets, fail } = kernelRig([
      () => new Promise(resolve => (endFreeing = resolve)),
      () => {
        freed.push('second')
        return Promise.resolve(undefined)
      },
    ])
    reach.reaching(['192.0.2.1'], 6443)
    await fail(1)
    const attempt = reach.dialling()
    await reach.synced({ isStale: false })
    endFreeing(undefined)
    expect((await attempt).localPort).toBeUndefined()
    expect([sockets, freed]).toEqual([[], []])
  })
})
