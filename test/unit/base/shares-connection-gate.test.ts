import { EventEmitter } from 'node:events'
import { describe, expect, it } from 'vitest'
import { ConnectionGate, type ConnectionLimits, ownersOf, sharesOf } from '../../../src/base/shares.ts'
import { healthCheckShares } from '../../../src/telemetry/service-health.ts'
import { FakeClock } from '../../support/fake-clock.ts'

class FakeSocket extends EventEmitter {
  readonly localAddress = '192.0.2.1'
  readonly remoteAddress: string | undefined
  destroyed = false

  constructor(remoteAddress?: string) {
    super()
    this.remoteAddress = remoteAddress
  }

  destroy(): this {
    if (!this.destroyed) this.emit('close')
    this.destroyed = true
    return this
  }
}

function gate(limits: ConnectionLimits) {
  return new ConnectionGate<FakeSocket>({ clock: new FakeClock(), limits, crowded: () => undefined })
}

/** What one party opens, round after round over its addresses; all that stay open. */
function flood(its: ConnectionGate<FakeSocket>, addresses: readonly string[], count: number) {
  const sockets = Array.from({ length: count }, (_, at) => new FakeSocket(addresses[at % addresses.length]))
  for (const socket of sockets) its.admit(socket)
  return () => sockets.filter(({ destroyed }) => !destroyed).length
}

describe('ownersOf', () => {
  it.each([
    ['198.51.100.7', '192.0.2.1', '198.51.100.0/24'],
    ['127.0.0.9', '127.0.0.1', 'loopback'],
    ['::1', '::1', 'loopback'],
    ['192.0.2.1', '192.0.2.1', 'this node'],
    ['192.0.2.9', '192.0.2.1', '192.0.2.0/24'],
    ['2001:db8:1:2:3::4', '2001:db8::1', '2001:db8:1:2::/64'],
    ['fe80::1%eth0', 'fe80::2%eth0', 'fe80::/64'],
    [undefined, undefined, 'unix socket'],
  ])('F132: counts %s at %s with %s', (remoteAddress, localAddress, prefix) => {
    const peer = { remoteAddress, localAddress }
    const names = ownersOf(peer).map(({ name }) => name)
    expect(names).toEqual([prefix, remoteAddress ?? 'unix socket'])
  })
})

describe('ConnectionGate', () => {
  const loopback = Array.from({ length: 8 }, (_, at) => `127.0.0.${at + 2}`)
  const thousand = Array.from({ length: 1_000 }, (_, at) => `10.${at >> 8}.${at & 255}.1`)

  it.each([
    ['one address', ['198.51.100.7'], 64],
    ['addresses of loopback', loopback, 128],
    ['addresses of one prefix', ['2001:db8::1', '2001:db8::2', '2001:db8::3'], 128],
    ['a thousand prefixes', thousand, 512],
  ])('F132: bounds what is open from %s', (_, addresses, most) => {
    expect(flood(gate(sharesOf(512)), addresses, 1_500)()).toBe(most)
  })

  it.each([
    ['a thousand prefixes', '127.0.0.1', thousand],
    ['a thousand prefixes', '192.0.2.1', thousand],
    ['other addresses of loopback', '127.0.0.1', loopback],
  ])('F132: %s take no connection of %s from it', (_, address, addresses) => {
    const its = gate(sharesOf(512))
    flood(its, addresses, 1_000)
    const probe = new FakeSocket(address)
    expect(its.admit(probe)).toBe(true)
    flood(its, addresses, 1_000)
    expect(probe.destroyed).toBe(false)
  })

  it("closes none of a cloud's probes: each second one from each of ten addresses, open for ten seconds", () => {
    const its = gate(sharesOf(512))
    const addresses = Array.from({ length: 10 }, (_, at) => `198.51.100.${at + 1}`)
    const rounds: FakeSocket[][] = []
    for (let second = 0; second < 100; second++) {
      const sockets = addresses.map(address => new FakeSocket(address))
      for (const socket of sockets) expect(its.admit(socket)).toBe(true)
      rounds.push(sockets)
      for (const socket of rounds[second - 10] ?? []) {
        expect(socket.destroyed).toBe(false)
        socket.destroy()
      }
    }
    expect(its.overShare).toEqual({ evicted: 0, refused: 0 })
  })

  describe('of health check node ports', () => {
    const services = Array.from({ length: 16 }, (_, at) => `ns/${at}`)
    const prefixes = thousand.slice(0, 100)
    const everywhere = (its: ConnectionGate<FakeSocket>, addresses: readonly string[]) => {
      for (const service of services)
        for (const address of addresses) its.admit(new FakeSocket(address), service)
    }

    it.each([
      ['one address', Array.from({ length: 20 }, () => '198.51.100.7'), 64],
      ['loopback', [...loopback, ...loopback], 128],
      ['a hundred prefixes', prefixes, 256],
    ])('F132: bounds what %s may hold at all Services together', (_, addresses, most) => {
      const its = gate(healthCheckShares(256))
      everywhere(its, addresses)
      expect(its.held).toBe(most)
    })

    it.each(['127.0.0.1', '192.0.2.1'])(
      'F132: a hundred prefixes at all Services take no connection of %s from it',
      address => {
        const its = gate(healthCheckShares(1_024))
        everywhere(its, prefixes)
        const probes = services.map(service => {
          const probe = new FakeSocket(address)
          expect(its.admit(probe, service)).toBe(true)
          return probe
        })
        everywhere(its, prefixes)
        expect(its.held).toBe(1_024)
        expect(probes.filter(({ destroyed }) => destroyed)).toEqual([])
      },
    )
  })

  it('F132: counts what it closes and what it refuses', () => {
    const its = gate({ connections: 2 })
    const open = flood(its, ['10.0.0.1'], 3)
    expect(open()).toBe(2)
    const busy = [new FakeSocket('10.0.0.1'), new FakeSocket('10.0.0.1')]
    for (const socket of busy) {
      its.admit(socket)
      its.mark(socket, 'busy')
    }
    const more = new FakeSocket('10.0.0.1')
    expect(its.admit(more)).toBe(false)
    expect(more.destroyed).toBe(true)
    expect(its.overShare).toEqual({ evicted: 3, refused: 1 })
  })
})
