import { describe, expect, it } from 'vitest'
import { withObjects } from '../../../../src/inspect/bundle/debug.ts'
import { manifestsOf } from '../../../../src/inspect/bundle/manifests.ts'
import { isRefusal } from '../../../../src/model/fields.ts'
import { parseObject } from '../../../../src/model/parse.ts'
import type { Service } from '../../../../src/model/service.ts'
import { applyEvents, EMPTY_SNAPSHOT, type Snapshot } from '../../../../src/model/snapshot.ts'
import { loadScenarios } from '../../../support/scenario.ts'
import { endpoint, node, service, slice } from '../../model/objects.ts'

/** What a source hands over, without what the parser refused: that is not in a Snapshot. */
function factsOf({ node, serviceCidrs, services, sliceByKey }: Snapshot) {
  const facts = (entries: Iterable<readonly [string, object]>) =>
    new Map([...entries].map(([key, value]) => [key, { ...value, refusals: [] }]))
  return {
    node: node && { ...node, refusals: [] },
    serviceCidrs: [...serviceCidrs.entries()],
    services: facts(services.entries()),
    slices: facts(sliceByKey.entries()),
  }
}

function snapshotOf(objects: readonly unknown[]): Snapshot {
  const events = objects.map(object => parseObject(object))
  return applyEvents(
    EMPTY_SNAPSHOT,
    events.flatMap(event => (event === undefined || isRefusal(event) ? [] : event)),
  )
}

function readAgain(snapshot: Snapshot): Snapshot {
  const { items } = JSON.parse(JSON.stringify(manifestsOf(snapshot)))
  return snapshotOf(items)
}

describe('manifests of a Snapshot', () => {
  it.each(loadScenarios().map(({ name, steps }) => [name, steps.flatMap(({ objects }) => objects)] as const))(
    'are the same objects once more: %s',
    (_, objects) => {
      const snapshot = snapshotOf(objects)
      expect(factsOf(readAgain(snapshot))).toEqual(factsOf(snapshot))
    },
  )

  it('have what scenarios do not', () => {
    const target = { kind: 'Pod', name: 'web-1', uid: 'a,b%c' }
    const labels = { 'service.kubernetes.io/service-proxy-name': 'other' }
    const annotations = {
      'kprobe.io/tcp-drain': '1.5s',
      'kprobe.io/ipvs-scheduler': 'wrr',
      'kprobe.io/balance': 'local-first',
      'kprobe.io/weights': 'zone=a:3,node=b:0',
    }
    const when = {
      labels: { 'kubernetes.io/service-name': 'web' },
      annotations: { 'endpoints.kubernetes.io/last-change-trigger-time': '2026-01-02T03:04:05.678Z' },
    }
    const metadata = { namespace: 'ns', name: 'web', uid: 'u', labels, annotations }
    const objects = [
      node({ zone: 'a' }),
      service('web', { sessionAffinity: 'ClientIP', clusterIP: '10.96.0.9' }, { metadata }),
      service(
        'cut',
        {},
        { metadata: { namespace: 'ns', name: 'cut', annotations: { 'kprobe.io/tcp-drain': 'cut' } } },
      ),
      slice(
        'web-1',
        'web',
        [endpoint('10.1.0.1', { targetRef: target }), endpoint('10.1.0.2', { zone: 'a' })],
        {
          metadata: when,
        },
      ),
    ]
    const snapshot = snapshotOf(objects)
    const [web] = [...snapshot.services.values()].filter((its: Service) => its.proxyName === 'other')
    expect(web).toMatchObject({
      balance: { policy: 'local-first' },
      tcpDrainMs: 1_500,
      ipvsScheduler: 'wrr',
      affinityTimeoutS: 10_800,
    })
    expect(factsOf(readAgain(snapshot))).toEqual(factsOf(snapshot))
  })
})

function bundleOf(events: readonly unknown[]) {
  const data = Buffer.from(JSON.stringify({ number: 1, events }))
  return withObjects({
    facts: { kprobe: 'test' },
    files: [{ name: 'snapshot.json', about: '', data }],
    missing: [],
  })
}

it('a bundle has the objects of the daemon as manifests, before all else', async () => {
  const { files, missing } = await bundleOf([{ kind: 'ServiceCIDR', key: 'kubernetes', value: [] }])
  expect(files.map(({ name }) => name)).toEqual(['objects.json', 'snapshot.json'])
  expect(missing).toEqual([])
})

it('a bundle of a daemon of another version lacks the manifests alone', async () => {
  const { files, missing } = await bundleOf([{ kind: 'Gateway', key: 'shop/cart' }])
  expect(files.map(({ name }) => name)).toEqual(['snapshot.json'])
  expect(missing).toEqual([
    { name: 'objects.json', why: expect.stringContaining('another version of kprobe') },
  ])
})
