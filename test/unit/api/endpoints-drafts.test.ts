import { describe, expect, it } from 'vitest'
import { draftsOf, hostnamesOf } from '../../../src/api/endpoint-messages.ts'
import type { Ip } from '../../../src/base/ip.ts'
import type { EndpointSlice } from '../../../src/model/service.ts'
import { applyEvents, EMPTY_SNAPSHOT } from '../../../src/model/snapshot.ts'
import { backends, clusterIp, EXTERNAL, ip4, service, vip } from '../../support/frontends.ts'
import { endpoint, slice } from '../model/objects.ts'
import { detailed } from './views.ts'

const SLICE = 100

interface Counted<T> {
  readonly value: T
  /** How often somebody has looked something up in it. */
  readonly reads: () => number
}

function counted<T extends object>(value: T): Counted<T> {
  let reads = 0
  const proxy = new Proxy(value, {
    get(target, name) {
      reads++
      return Reflect.get(target, name)
    },
  })
  return { value: proxy, reads: () => reads }
}

function namedSlices(count: number): Counted<readonly EndpointSlice[]> {
  const objects = Array.from({ length: count }, (_, index) =>
    slice(
      `s${String(index).padStart(3, '0')}`,
      'a',
      Array.from({ length: SLICE }, (_, slot) =>
        endpoint(`10.1.${index}.${slot}`, { hostname: `pod-${index}-${slot}` }),
      ),
    ),
  )
  const { slices } = applyEvents(EMPTY_SNAPSHOT, objects.map(detailed))
  const tables = (slices.get('ns/a') ?? []).map(its => ({ its, names: counted(its.hostnames ?? {}) }))
  return {
    value: tables.map(({ its, names }) => ({ ...its, hostnames: names.value })),
    reads: () => tables.reduce((sum, { names }) => sum + names.reads(), 0),
  }
}

function askedFor(...ips: readonly Ip[]): ReadonlyMap<Ip, unknown> {
  return new Map(ips.map(ip => [ip, undefined]))
}

describe('hostnames', () => {
  it('cost one look at each name, or at each slice for one address', () => {
    const all = namedSlices(20)
    const ips = Array.from({ length: 20 * SLICE }, (_, n) => ip4(10, 1, Math.floor(n / SLICE), n % SLICE))
    expect(hostnamesOf(all.value, askedFor(...ips)).size).toBe(ips.length)
    expect(all.reads()).toBe(ips.length)
    const one = namedSlices(20)
    expect(hostnamesOf(one.value, askedFor(ip4(10, 1, 7, 7)))).toEqual(
      new Map([[ip4(10, 1, 7, 7), 'pod-7-7']]),
    )
    expect(one.reads()).toBe(20)
  })
})

describe('drafts', () => {
  const frontends = [clusterIp(ip4(10, 96, 0, 1), 80), vip(ip4(192, 0, 2, 1), 80, EXTERNAL)]

  it('of some addresses are those of all, and are found without a walk', () => {
    const list = backends(4_096)
    const twice = list.flatMap(backend => [backend, { ...backend, port: 8081 }])
    const all = draftsOf(service('ns/a', [{ frontends, cluster: twice }]), undefined)
    const some = [list[0], list[77], list[4_095]].flatMap(backend => backend?.ip ?? [])
    const lists = counted(twice)
    const only = new Set([...some, ip4(10, 0, 0, 0), ip4(10, 255, 0, 0)])
    const drafts = draftsOf(service('ns/a', [{ frontends, cluster: lists.value }]), only)
    expect([...drafts.keys()]).toEqual(some)
    for (const [ip, draft] of drafts) expect(draft).toEqual(all.get(ip))
    expect(all.size).toBe(4_096)
    // Two lists, five addresses, 13 halvings each, and what is found.
    expect(lists.reads()).toBeLessThan(2 * 5 * 20)
  })
})
