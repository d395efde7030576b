import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { applyEvents, EMPTY_SNAPSHOT, type Snapshot, type SourceEvent } from '../../../src/model/snapshot.ts'
import { ip } from '../../support/addresses.ts'
import { IS_QUICK } from '../../support/runs.ts'
import { endpoint, eventsOf, node, service, serviceCidr, slice, snapshotOf } from './objects.ts'

function apply(snapshot: Snapshot, ...objects: unknown[]): Snapshot {
  return applyEvents(snapshot, eventsOf(objects))
}

const gone = (kind: 'Service' | 'EndpointSlice' | 'Node' | 'ServiceCIDR', key: string): SourceEvent => ({
  kind,
  key,
  value: undefined,
})

describe('applyEvents', () => {
  it('gives back the same snapshot when nothing is new', () => {
    const objects = [
      service('web'),
      slice('web-1', 'web', [endpoint('10.1.0.1')]),
      node(),
      serviceCidr('k', ['10.96.0.0/12']),
    ]
    const snapshot = applyEvents(snapshotOf(objects), [{ kind: 'LocalIps', value: [ip('10.0.0.1')] }])
    expect(apply(snapshot, ...objects)).toBe(snapshot)
    expect(applyEvents(snapshot, [])).toBe(snapshot)
    expect(applyEvents(snapshot, [{ kind: 'LocalIps', value: [ip('10.0.0.1'), ip('10.0.0.1')] }])).toBe(
      snapshot,
    )
    const unknown = [
      gone('Service', 'ns/x'),
      gone('EndpointSlice', 'ns/x'),
      gone('ServiceCIDR', 'x'),
      gone('Node', 'x'),
    ]
    expect(applyEvents(snapshot, unknown)).toBe(snapshot)
  })

  it('ignores unused metadata', () => {
    const snapshot = snapshotOf([service('web'), slice('web-1', 'web', [])])
    const metadata = { resourceVersion: '7', annotations: { a: 'b' }, managedFields: [] }
    expect(apply(snapshot, service('web', {}, { metadata }))).toBe(snapshot)
    const relabeled = { ...metadata, labels: { 'kubernetes.io/service-name': 'web', a: 'b' } }
    expect(apply(snapshot, slice('web-1', 'web', [], { metadata: relabeled }))).toBe(snapshot)
  })

  it('lets the last of several events for a key count', () => {
    const snapshot = snapshotOf([service('web')])
    expect(apply(snapshot, service('web', { type: 'NodePort' }), service('web'))).toBe(snapshot)
    const events = [...eventsOf([service('api')]), gone('Service', 'ns/api')]
    expect(applyEvents(snapshot, events)).toBe(snapshot)
  })

  it('moves a slice whose label changes, and drops the Service it leaves empty (F38)', () => {
    const one = snapshotOf([slice('a-1', 'a', [endpoint('10.1.0.1')])])
    const two = apply(one, slice('a-1', 'b', [endpoint('10.1.0.1')]))
    expect([...two.slices.keys()]).toEqual(['ns/b'])
    expect(two.sliceByKey.get('ns/a-1')?.service).toBe('ns/b')
    const three = applyEvents(two, [gone('EndpointSlice', 'ns/a-1')])
    expect([three.slices.size, three.sliceByKey.size]).toEqual([0, 0])
  })

  it('keeps slices of one name in two namespaces apart (I-42)', () => {
    const other = slice('web-1', 'web', [], { metadata: { namespace: 'other' } })
    const snapshot = snapshotOf([slice('web-1', 'web', []), other])
    expect([...snapshot.slices.keys()].sort()).toEqual(['ns/web', 'other/web'])
  })

  it('forgets the Node only when that Node goes', () => {
    const snapshot = snapshotOf([node()])
    expect(applyEvents(snapshot, [gone('Node', 'there')])).toBe(snapshot)
    expect(applyEvents(snapshot, [gone('Node', 'here')]).node).toBeUndefined()
  })

  it('keeps slices and their owners in step through any sequence', () => {
    const name = fc.constantFrom('s-1', 's-2', 's-3')
    const step = fc.oneof(
      fc
        .record({ name, to: fc.constantFrom('a', 'b', 'c') })
        .map(({ name, to }) => eventsOf([slice(name, to, [])])),
      name.map(name => [gone('EndpointSlice', `ns/${name}`)]),
    )
    fc.assert(
      fc.property(fc.array(fc.array(step, { maxLength: 4 }), { maxLength: 10 }), batches => {
        let snapshot = EMPTY_SNAPSHOT
        const model = new Map<string, string>()
        for (const batch of batches) {
          const events = batch.flat()
          snapshot = applyEvents(snapshot, events)
          for (const event of events) {
            if (event.kind !== 'EndpointSlice') continue
            if (event.value === undefined) model.delete(event.key)
            else model.set(event.key, event.value.service)
          }
          expect(new Map(snapshot.sliceByKey.entries().map(([key, { service }]) => [key, service]))).toEqual(
            model,
          )
          const held = [...snapshot.slices.entries()].flatMap(([owner, slices]) =>
            slices.map(({ key }) => [key, owner] as const),
          )
          expect(new Map(held)).toEqual(model)
          expect(held).toHaveLength(model.size)
          for (const slices of snapshot.slices.values()) {
            const sorted = slices.map(its => its.key).sort()
            expect(slices.map(its => its.key)).toEqual(sorted)
            expect(slices.length).toBeGreaterThan(0)
          }
        }
      }),
    )
  })
})

describe('the slices of a Service', () => {
  const web = ['web-c', 'web-a', 'web-b'].map(name => slice(name, 'web', [endpoint('10.1.0.1')]))

  it('are the ones of before where a batch says the same of them', () => {
    const before = snapshotOf(web)
    const after = applyEvents(before, eventsOf([...web, slice('web-b', 'web', [endpoint('10.1.0.9')])]))
    const [a, b, c] = before.slices.get('ns/web') ?? []
    const [a2, b2, c2] = after.slices.get('ns/web') ?? []
    expect([a2 === a, b2 === b, c2 === c]).toEqual([true, false, true])
  })

  it.skipIf(IS_QUICK)('cost time in proportion when one Service has very many, in the worst order', () => {
    const many = eventsOf(
      Array.from({ length: 50_000 }, (_, index) => slice(`web-${99_999 - index}`, 'web', [])),
    )
    const start = performance.now()
    const full = applyEvents(EMPTY_SNAPSHOT, many)
    const empty = applyEvents(
      full,
      many.map((_, index) => ({ kind: 'EndpointSlice', key: `ns/web-${99_999 - index}`, value: undefined })),
    )
    expect(performance.now() - start).toBeLessThan(50_000)
    expect(full.slices.get('ns/web')).toHaveLength(50_000)
    expect(empty.slices.size).toBe(0)
  })
})
