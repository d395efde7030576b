import { describe, expect, it } from 'vitest'
import { Comparison } from '../../../../src/source/kube/consistency-check.ts'
import { ObjectIndex } from '../../../../src/source/kube/object-index.ts'
import { settle } from '../../../support/fake-clock.ts'
import { eventually } from '../../../support/patience.ts'
import { ReflectorRig } from '../../../support/reflector-rig.ts'
import { type Asked, type ScriptedWatch, service, type Written } from '../../../support/scripted-api.ts'

const PERIOD_MS = 100_000

let rig: ReflectorRig
let watch: ScriptedWatch

/** Watches these until the check asks for metadata. */
async function checking(objects: readonly Written[], resource = 'services'): Promise<Asked> {
  rig = new ReflectorRig({ checkPeriodMs: PERIOD_MS, random: () => 0.5, resource })
  await rig.start()
  rig.api.take(resource).list(objects, '100')
  await settle()
  watch = rig.api.take(resource).watch()
  await rig.clock.advance(PERIOD_MS)
  return rig.api.take(resource)
}

function repaired(): number[] {
  return rig.observations.flatMap(each => (each.kind === 'repaired' ? [each.objects] : []))
}

describe('consistency check', () => {
  it('F30, I-38: asks for metadata of the same objects in pages', async () => {
    const asked = await checking([service('a', 5)])
    expect(asked.request.accept).toBe(
      'application/json;drop=metadata.managedFields;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1',
    )
    expect(asked.query.get('labelSelector')).toBe('!service.kubernetes.io/service-proxy-name')
    expect(asked.query.get('limit')).toBe('250')
    expect(asked.query.has('resourceVersion')).toBe(false)
  })

  it('takes a second for each object, so that many nodes do not list many objects all the time', async () => {
    const objects = Array.from({ length: 250 }, (_, index) => service(`s${index}`, index + 1))
    rig = new ReflectorRig({ checkPeriodMs: PERIOD_MS, random: () => 0.5 })
    await rig.start()
    await rig.list(objects, '300')
    watch = rig.api.take().watch()
    await rig.clock.advance(2 * PERIOD_MS)
    expect(rig.api.count('metadata')).toBe(0)
    await rig.clock.advance(PERIOD_MS)
    expect(rig.api.count('metadata')).toBe(1)
    rig.api.take().list(objects, '300')
    await rig.clock.advance(2 * PERIOD_MS)
    expect(rig.api.count('metadata')).toBe(1)
    await rig.clock.advance(PERIOD_MS)
    expect(rig.api.count('metadata')).toBe(2)
    watch = rig.api.take().watch()
    await rig.status(403)
    await rig.clock.advance(PERIOD_MS)
    expect(rig.checks.at(-1)?.kind).toBe('forbidden')
    expect(rig.api.count('metadata')).toBe(3)
  })

  it('F30: does nothing when nothing differs, and comes again', async () => {
    const asked = await checking([service('a', 5), service('b', 6)])
    await settle(asked.list([service('a', 5)], '100', 'two'))
    const second = rig.api.take()
    expect(second.query.get('continue')).toBe('two')
    second.list([service('b', 6)], '100')
    await rig.clock.advance(PERIOD_MS)
    expect(rig.api.count('metadata')).toBe(3)
    expect(rig.api.count('list')).toBe(1)
    expect(watch.isLeft).toBe(false)
  })

  it('F30, I-38: repairs and counts an addition, a change and a deletion without events', async () => {
    const asked = await checking([service('a', 5), service('b', 6), service('c', 7)])
    const now = [service('a', 5), service('b', 95, { ip: '10.0.0.2' }), service('new', 96)]
    await settle(asked.list(now, '100'))
    expect(watch.isLeft).toBe(true)
    expect(rig.requests.at(-1)).toBe('list limit=500')
    await rig.list(now, '101')
    expect(rig.state).toEqual(['a=10.0.0.1', 'b=10.0.0.2', 'new=10.0.0.1'])
    expect(repaired()).toEqual([3])
    expect(rig.reasons()).toEqual(['start', 'events were lost'])
    rig.api.take().status(410)
    await rig.clock.advance(2_000)
    await rig.list(now, '102')
    expect(repaired()).toEqual([3])
  })

  it('A28: a list before the revision of the watch is that of a restored store, and is confirmed and obeyed', async () => {
    // Created after the backup: to the list alone, it may be newer.
    const asked = await checking([service('a', 5), service('b', 95)])
    await settle(asked.list([service('a', 5)], '50'))
    expect(rig.requests.at(-1)).toBe('list limit=500')
    rig.api.answer('services', each => {
      if (each.form === 'list') each.list([service('a', 5)], '50')
      else each.watch()
    })
    rig.api.take().list([service('a', 5)], '50')
    await rig.clock.advance(30_000)
    expect(rig.state).toEqual(['a=10.0.0.1'])
  })

  it('F30: an event that is only under way is waited for', async () => {
    const asked = await checking([service('a', 5)])
    asked.list([service('a', 120)], '130')
    await rig.clock.advance(5_000)
    expect(watch.isLeft).toBe(false)
    await settle(watch.modified(service('a', 120)))
    watch.bookmark('140')
    await rig.clock.advance(60_000)
    expect(watch.isLeft).toBe(false)
    expect(repaired()).toEqual([])
  })

  it('F30: once the watch has passed the list it is not waited for any longer', async () => {
    const asked = await checking([service('a', 5)])
    await settle(asked.list([service('a', 120)], '130'))
    expect(watch.isLeft).toBe(false)
    watch.bookmark('140')
    await rig.clock.advance(1_000)
    expect(watch.isLeft).toBe(true)
  })

  it('F30: a watch without bookmarks gets half a minute', async () => {
    const asked = await checking([service('a', 5)])
    asked.list([service('a', 120)], '130')
    await rig.clock.advance(29_000)
    expect(watch.isLeft).toBe(false)
    await rig.clock.advance(1_000)
    expect(watch.isLeft).toBe(true)
  })

  it('gives up a page after five minutes', async () => {
    const asked = await checking([service('a', 5)])
    await rig.clock.advance(300_000)
    expect(asked.request.signal.aborted).toBe(true)
    expect(rig.checks).toHaveLength(1)
    expect(watch.isLeft).toBe(false)
  })

  it('gives up pages without an end', async () => {
    const asked = await checking([service('a', 5)])
    rig.api.answer('services', each => each.list([], '100', 'more'))
    asked.list([], '100', 'more')
    await eventually(() => rig.checks.length > 0)
    expect(rig.checks.at(-1)?.text).toContain('more than 10000 pages')
    expect(watch.isLeft).toBe(false)
  })

  it('of one node looks at that node alone', async () => {
    const object = {
      kind: 'Node',
      apiVersion: 'v1',
      metadata: { name: 'n1', uid: 'u', resourceVersion: '5' },
    }
    const asked = await checking([object], 'nodes')
    const other = { ...object, metadata: { ...object.metadata, name: 'n2' } }
    asked.list([object, other], '100')
    await rig.clock.advance(40_000)
    expect(watch.isLeft).toBe(false)
  })

  it('that fails is reported, and changes nothing', async () => {
    const asked = await checking([service('a', 5)])
    await settle(asked.status(406, { reason: 'NotAcceptable' }))
    await rig.status(406, { reason: 'NotAcceptable' })
    expect(rig.checks.map(failure => failure?.kind)).toEqual(['unexpected'])
    expect(watch.isLeft).toBe(false)
    await rig.clock.advance(PERIOD_MS)
    rig.api.take().body('{"items":')
    await settle()
    expect(rig.checks.at(-1)?.kind).toBe('broken')
    await rig.clock.advance(PERIOD_MS)
    await rig.list([service('a', 5)], '100')
    expect(rig.checks.at(-1)).toBeUndefined()
  })

  it('is not made while there is no watch', async () => {
    rig = await new ReflectorRig({ checkPeriodMs: PERIOD_MS, random: () => 0 }).start()
    rig.api.answer('services', asked => asked.status(503))
    rig.api.take().status(503)
    await rig.clock.advance(3 * PERIOD_MS)
    expect(rig.api.count('metadata')).toBe(0)
  })

  it('ends with the reflector', async () => {
    const asked = await checking([service('a', 5)])
    await rig.reflector.stop()
    expect(asked.request.signal.aborted).toBe(true)
    expect(rig.clock.pending).toBe(0)
  })
})

const v = (resourceVersion: number, uid = 'u1') => ({ uid, resourceVersion: String(resourceVersion) })

const object = (key: string) => ({ key, bornS: 0 })

function indexOf(...keys: readonly string[]): ObjectIndex {
  const index = new ObjectIndex()
  for (const key of keys) index.put(key, v(10))
  return index
}

describe('comparison with a list', () => {
  it('F151: does not take for lost what there is no room for, nor what has lost its place meanwhile', () => {
    const index = indexOf('a', 'going')
    const comparison = new Comparison(index, ({ key }) => key !== 'a')
    comparison.take(object('a'), v(10))
    comparison.take(object('beyond'), v(12))
    comparison.take(object('going'), v(12))
    index.forget('going')
    index.put('beyond', v(14))
    expect(comparison.end()).toBe(1)
    expect(comparison.confirmed('20')).toBe(0)
  })

  it('does not take for lost what is newer than the list', () => {
    const index = indexOf('changed', 'deleted', 'recreated')
    index.put('changed', v(25))
    index.put('added', v(26))
    index.remove('deleted', v(27))
    const comparison = new Comparison(index, () => false)
    comparison.take(object('changed'), v(15))
    comparison.take(object('deleted'), v(10))
    comparison.take(object('recreated'), v(10))
    expect(comparison.end()).toBe(3)
    expect(comparison.confirmed('20')).toBe(0)
  })

  it('F30: takes what is listed for lost although an earlier list had lacked it', () => {
    const index = indexOf('hidden')
    index.removeUnlisted('hidden', '19')
    const comparison = new Comparison(index, () => false)
    comparison.take(object('hidden'), v(10))
    expect(comparison.end()).toBe(1)
    expect(comparison.confirmed('20')).toBe(1)
  })
})
