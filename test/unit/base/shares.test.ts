import { EventEmitter } from 'node:events'
import { describe, expect, it } from 'vitest'
import {
  ConnectionGate,
  type ConnectionLimits,
  type Owner,
  ownersOf,
  Shares,
  sharesOf,
} from '../../../src/base/shares.ts'
import { healthCheckShares } from '../../../src/telemetry/service-health.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { IS_QUICK } from '../../support/runs.ts'

/** Items are named after their owner: `a1`, `a2`, `b1`. */
const of = (item: string, limits: Omit<Owner, 'name'> = {}): readonly Owner[] => [
  { name: item.charAt(0), ...limits },
]

function filled(limit: number, items: readonly string[], limits: Omit<Owner, 'name'> = {}): Shares<string> {
  const shares = new Shares<string>(limit)
  for (const item of items) expect(shares.admit(item, of(item, limits)).kind).toBe('accepted')
  return shares
}

describe('Shares', () => {
  it('F132: the owner that holds most loses its longest idle item', () => {
    const shares = filled(4, ['b1', 'a1', 'a2', 'a3'])
    expect(shares.admit('c1', of('c1'))).toEqual({
      kind: 'evicted',
      owner: 'all',
      victim: 'a1',
      victimOf: ['a'],
    })
    expect(shares.held).toBe(4)
    shares.mark('a2', 'idle')
    expect(shares.admit('c2', of('c2'))).toMatchObject({ victim: 'a3' })
  })

  it('F132: the longest idle item of all goes where every owner holds as much', () => {
    const shares = filled(3, ['a1', 'b1', 'c1'])
    shares.mark('a1', 'idle')
    expect(shares.admit('d1', of('d1'))).toMatchObject({ victim: 'b1' })
  })

  it('F132: an owner at its own limit pays for its own items', () => {
    const shares = filled(10, ['b1', 'a1', 'a2'], { limit: 2 })
    expect(shares.admit('a3', of('a3', { limit: 2 }))).toMatchObject({ owner: 'a', victim: 'a1' })
    expect(shares.admit('b2', of('b2', { limit: 2 }))).toEqual({ kind: 'accepted' })
  })

  it('F132: what is reserved for an owner goes only for its own items', () => {
    const shares = new Shares<string>(4)
    const admit = (item: string) => shares.admit(item, of(item, { reserved: item.startsWith('n') ? 2 : 0 }))
    for (const item of ['n1', 'n2', 'a1', 'b1']) admit(item)
    expect(admit('c1')).toMatchObject({ victim: 'a1' })
    expect(admit('d1')).toMatchObject({ victim: 'b1' })
    expect(admit('n3')).toMatchObject({ victim: 'n1' })
    shares.leave('c1')
    admit('n4')
    // Beyond its reserve it is an owner like any other.
    expect(admit('e1')).toMatchObject({ victim: 'n2' })
  })

  it('F132: a busy item goes only for one of an owner that holds two fewer', () => {
    const shares = filled(3, ['a1', 'a2', 'b1'])
    for (const item of ['a1', 'a2', 'b1']) shares.mark(item, 'busy')
    expect(shares.admit('a3', of('a3'))).toEqual({ kind: 'refused', owner: 'all' })
    expect(shares.admit('b2', of('b2'))).toEqual({ kind: 'refused', owner: 'all' })
    expect(shares.admit('c1', of('c1'))).toMatchObject({ victim: 'a1' })
    shares.mark('c1', 'busy')
    expect(shares.admit('d1', of('d1'))).toEqual({ kind: 'refused', owner: 'all' })
    shares.mark('c1', 'idle')
    expect(shares.admit('d1', of('d1'))).toMatchObject({ victim: 'c1' })
  })

  it('F132: looks into the largest owner for the largest of its parts', () => {
    const shares = new Shares<string>(5)
    const admit = (prefix: string, address: string, item: string) =>
      shares.admit(item, [{ name: prefix }, { name: address }])
    admit('p', '1', 'p1a')
    admit('p', '2', 'p2a')
    admit('p', '2', 'p2b')
    admit('q', '1', 'q1a')
    admit('q', '1', 'q1b')
    expect(admit('r', '1', 'r1a')).toMatchObject({ victim: 'p2a', victimOf: ['p', '2'] })
  })

  it.skipIf(IS_QUICK)('F132: however many items of one owner come and go, the others keep theirs', () => {
    const shares = filled(64, ['b1', 'c1', 'c2'])
    for (let round = 0; round < 10_000; round++) {
      const admission = shares.admit(`a${round}`, of('a'))
      if (admission.kind === 'evicted') expect(admission.victim.startsWith('a')).toBe(true)
    }
    expect(shares.held).toBe(64)
  })
})

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
