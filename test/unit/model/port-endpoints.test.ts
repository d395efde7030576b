import { describe, expect, it } from 'vitest'
import { finish } from '../../../src/base/clock.ts'
import { isRefusal } from '../../../src/model/fields.ts'
import { endpointsOf, type MergedEndpoints } from '../../../src/model/merged-endpoints.ts'
import { parseObject } from '../../../src/model/parse.ts'
import { hasEndpointAt } from '../../../src/model/port-endpoints.ts'
import { type Resolved, resolve } from '../../../src/model/resolve.ts'
import type { EndpointSlice } from '../../../src/model/service.ts'
import { applyEvents, EMPTY_SNAPSHOT, type SourceEvent, ValuePool } from '../../../src/model/snapshot.ts'
import { ip } from '../../support/addresses.ts'
import { createRandom, type Random } from '../../support/apiserver/random.ts'
import { IS_QUICK } from '../../support/runs.ts'
import { endpoint, OPTIONS, service, slice } from './objects.ts'

const WANTED = { name: '', protocol: 'TCP', family: 'IPv4' } as const
const pool = new ValuePool()

function event(object: unknown): SourceEvent {
  const parsed = parseObject(object, pool)
  if (parsed === undefined || isRefusal(parsed)) throw new Error(JSON.stringify(parsed))
  return parsed
}

interface Content {
  readonly at: number
  readonly hosts: readonly number[]
  readonly unready?: number
  readonly port?: number
}

function sliceObject({ at, hosts, unready, port = 80 }: Content): object {
  const fields = hosts.map(host =>
    endpoint(`10.1.${host >> 8}.${host & 255}`, {
      nodeName: `node-${host % 3}`,
      conditions: { ready: host !== unready },
      targetRef: { uid: `pod-${host}` },
    }),
  )
  return slice(`web-${String(at).padStart(3, '0')}`, 'web', fields, { ports: [{ name: '', port }] })
}

function sliceOf(content: Content): EndpointSlice {
  const parsed = event(sliceObject(content))
  if (parsed.kind !== 'EndpointSlice' || parsed.value === undefined) throw new Error('not a slice')
  return parsed.value
}

const merge = (slices: readonly EndpointSlice[], former?: MergedEndpoints) =>
  endpointsOf({ slices, wanted: WANTED, former })

const SLICES = 12
const HOSTS = 10

/** Hosts come and go, change their state, and now and then are in two slices or at another port. */
function changed({ at, hosts }: Content, random: Random): Content {
  const kept = hosts.filter(() => random.int(0, 9) > 0)
  const fresh = random.int(0, 2) === 0 ? [1_000 + random.int(0, 4_000)] : []
  const others = random.int(0, 12) === 0 ? [random.int(0, SLICES * HOSTS - 1)] : []
  const unready = random.int(0, 2) === 0 ? kept[0] : undefined
  const port = random.int(0, 20) === 0 ? { port: 81 } : {}
  return {
    at,
    hosts: [...new Set([...kept, ...fresh, ...others])],
    ...(unready === undefined ? {} : { unready }),
    ...port,
  }
}

describe('a merge of slices', () => {
  it.each([1, 2, 3, 4, 5])('is after any changes what it would be made anew, with seed %i', seed => {
    const random = createRandom(seed)
    const contents: Content[] = Array.from({ length: SLICES }, (_, at) => ({
      at,
      hosts: Array.from({ length: HOSTS }, (_, slot) => at * HOSTS + slot),
    }))
    const slices = contents.map(sliceOf)
    let former = merge([...slices])
    let patched = 0
    for (let round = 0; round < 300; round++) {
      for (let count = random.int(1, 3); count > 0; count--) {
        const at = random.int(0, SLICES - 1)
        const start = { at, hosts: Array.from({ length: HOSTS }, (_, slot) => at * HOSTS + slot) }
        contents[at] = random.int(0, 3) === 0 ? start : changed(contents[at] ?? start, random)
        slices[at] = sliceOf(contents[at])
      }
      const now = merge([...slices], former)
      expect(now).toEqual(merge([...slices]))
      if (former.isOnce && now.endpoints.some(its => former.endpoints.includes(its))) patched++
      former = now
    }
    expect(patched).toBeGreaterThan(20)
  })

  it('keeps the endpoints that are the same in the new version of their slice', () => {
    const before = [sliceOf({ at: 0, hosts: [1, 2, 3] }), sliceOf({ at: 1, hosts: [4, 5] })]
    const first = merge(before)
    const second = merge([sliceOf({ at: 0, hosts: [1, 3, 6] }), ...before.slice(1)], first)
    expect(second.endpoints.map(its => first.endpoints.indexOf(its))).toEqual([0, 2, 3, 4, -1])
  })

  it.skipIf(IS_QUICK)('finds addresses of a slice', () => {
    const value = sliceOf({ at: 0, hosts: [1, 3] })
    expect([1, 2, 3, 4].map(host => hasEndpointAt(value, ip(`10.1.0.${host}`)))).toEqual([
      true,
      false,
      true,
      false,
    ])
    expect(hasEndpointAt(value, ip('fd00::1'))).toBe(false)
  })
})

it.skipIf(IS_QUICK)(
  'a Service of many endpoints resolves after changes as it does anew, and keeps its back ends',
  () => {
    const random = createRandom(9)
    const hosts = (at: number) => Array.from({ length: 300 }, (_, slot) => at * 300 + slot)
    const contents: Content[] = Array.from({ length: 5 }, (_, at) => ({ at, hosts: hosts(at) }))
    let snapshot = applyEvents(EMPTY_SNAPSHOT, [service('web'), ...contents.map(sliceObject)].map(event))
    let resolved: Resolved = finish(resolve(OPTIONS, undefined, snapshot))
    expect(resolved.memo.merges.size).toBe(1)
    for (let round = 0; round < 40; round++) {
      const at = random.int(0, 4)
      contents[at] = changed(contents[at] ?? { at, hosts: [] }, random)
      snapshot = applyEvents(snapshot, [event(sliceObject(contents[at]))])
      const before = resolved.table.services.get('ns/web')?.ports[0]?.cluster ?? []
      resolved = finish(resolve(OPTIONS, resolved, snapshot))
      const anew = finish(resolve(OPTIONS, undefined, snapshot))
      expect(resolved.table.services.entries()).toEqual(anew.table.services.entries())
      expect(resolved.table.localBackends.entries().toSorted()).toEqual(
        anew.table.localBackends.entries().toSorted(),
      )
      const now = resolved.table.services.get('ns/web')?.ports[0]?.cluster ?? []
      const known = new Set(before)
      expect(now.filter(backend => known.has(backend)).length).toBeGreaterThan(500)
    }
    const gone = contents.map(({ at }) => event(sliceObject({ at, hosts: [at] })))
    expect(finish(resolve(OPTIONS, resolved, applyEvents(snapshot, gone))).memo.merges.size).toBe(0)
  },
)
