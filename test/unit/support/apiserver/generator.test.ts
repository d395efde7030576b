import { describe, expect, it } from 'vitest'
import { isRefusal } from '../../../../src/model/fields.ts'
import { parseObject } from '../../../../src/model/parse.ts'
import { rollingUpdate } from '../../../support/apiserver/churn.ts'
import { clusterOf } from '../../../support/apiserver/generator.ts'
import { createRandom } from '../../../support/apiserver/random.ts'
import { Store } from '../../../support/apiserver/store.ts'

const SHAPE = { services: 6, endpointsPerService: 250, nodes: 4 }

/** At a standing hour: objects carry the second of their creation. */
function filled(): Store {
  const store = new Store({ now: () => new Date('2026-11-01T00:00:00Z') })
  for (const { resource, object } of clusterOf(SHAPE)) store.create(resource, object)
  return store
}

function addressesOf(object: unknown): readonly string[] {
  const parsed = parseObject(object)
  if (parsed === undefined || isRefusal(parsed) || parsed.kind !== 'EndpointSlice') return []
  return (parsed.value?.endpoints ?? [])
    .filter(({ traits }) => traits.conditions.ready)
    .map(({ ip }) => String(ip))
}

describe('a synthetic cluster', () => {
  it('is read without a refusal, every endpoint at an address of its own', () => {
    const store = filled()
    const slices = store.list('endpointslices')
    expect(slices).toHaveLength(6 * 3)
    expect(new Set(slices.flatMap(addressesOf)).size).toBe(6 * 250)
    for (const resource of ['services', 'endpointslices', 'nodes', 'servicecidrs'])
      for (const object of store.list(resource)) {
        const parsed = parseObject(object)
        expect(parsed === undefined || isRefusal(parsed)).toBe(false)
      }
  })
})

describe('changes', () => {
  it('of a rolling update leave no Service without endpoints, and none of the old ones', () => {
    const store = filled()
    const old = new Set(store.list('endpointslices').flatMap(addressesOf))
    for (const { resource, object } of rollingUpdate({ shape: SHAPE, random: createRandom(1) }, [2])) {
      expect(addressesOf(object).length).toBeGreaterThanOrEqual(50)
      store.put(resource, object)
    }
    const now = store.list('endpointslices').flatMap(addressesOf)
    expect(now).toHaveLength(6 * 250)
    expect(now.filter(address => !old.has(address))).toHaveLength(250)
  })
})
