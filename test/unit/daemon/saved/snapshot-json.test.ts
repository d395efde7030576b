import { describe, expect, it } from 'vitest'
import { finish } from '../../../../src/base/clock.ts'
import { isSame } from '../../../../src/base/plain-data.ts'
import {
  readSnapshotJson,
  savedEvent,
  savedObjects,
  serviceJson,
  snapshotJson,
} from '../../../../src/daemon/saved/snapshot-json.ts'
import { resolve } from '../../../../src/model/resolve.ts'
import { applyEvents, EMPTY_SNAPSHOT, ValuePool } from '../../../../src/model/snapshot.ts'
import { jsonPieces } from '../../../../src/telemetry/admin-server.ts'
import { ip } from '../../../support/addresses.ts'
import { serviceCidrOf } from '../../../support/apiserver/generator.ts'
import {
  endpoint,
  eventsOf,
  node,
  OPTIONS,
  service,
  slice,
  snapshotOf,
  tableOf,
} from '../../model/objects.ts'

const OBJECTS = [
  node({ zone: 'a' }),
  serviceCidrOf(['10.96.0.0/12']),
  service('web', { externalIPs: ['192.0.2.255', '127.0.0.1'], loadBalancerSourceRanges: ['10.0.0.0/8'] }),
  service('six', { clusterIP: 'fd00::ff', ports: [{ name: 'ip', port: 80 }] }),
  slice('web-1', 'web', [endpoint('10.1.0.1', { nodeName: 'ip', zone: 'a', targetRef: { uid: 'u' } })]),
  service(
    'near',
    { clusterIP: '10.96.0.3' },
    { metadata: { annotations: { 'kprobe.io/balance': 'local-first', 'kprobe.io/weights': 'zone=a:3' } } },
  ),
]

const through = (value: unknown): unknown => JSON.parse([...jsonPieces(value)].join(''))

describe('readSnapshotJson', () => {
  it('reads what snapshotJson writes: the same objects, the same number, the same meaning', () => {
    const before = applyEvents(snapshotOf(OBJECTS), [{ kind: 'LocalIps', value: [ip('192.0.2.1')] }])
    const after = finish(readSnapshotJson(through(snapshotJson(before))))
    expect(after.number).toBe(before.number)
    expect(after.node).toEqual(before.node)
    expect(after.localIps).toEqual(before.localIps)
    for (const map of ['services', 'slices', 'sliceByKey', 'serviceCidrs'] as const)
      expect(after[map].entries()).toEqual(before[map].entries())
    const meaning = (snapshot: typeof before) =>
      finish(
        resolve({ ...OPTIONS, balancing: { policy: 'random' } }, undefined, snapshot),
      ).table.services.values()
    expect(meaning(after)).toEqual(meaning(before))
  })

  it('writes addresses as text, and neither annotations, labels nor host names', () => {
    const metadata = { annotations: { token: 'secret' }, labels: { a: 'secret' } }
    const objects = [
      service('web', {}, { metadata }),
      slice('web-1', 'web', [endpoint('10.1.0.1', { hostname: 'secret' })]),
    ]
    const events = eventsOf(objects, { details: true })
    const text = JSON.stringify(through(snapshotJson(applyEvents(EMPTY_SNAPSHOT, events))))
    expect(text).toContain('"clusterIps":["10.96.0.1"]')
    expect(text).toContain('"ip":"10.1.0.1"')
    expect(text).not.toContain('secret')
  })

  it.each<[string, unknown]>([
    ['not a list of objects', { services: [] }],
    [
      'another version of kprobe; use that version: {"kind"',
      { number: 1, events: [{ kind: 'Service', key: 'ns/web', value: {} }] },
    ],
    [
      'another version of kprobe; use that version: {"kind"',
      { number: 1, events: [{ kind: 'Pod', key: 'ns/web', value: {} }] },
    ],
    ['not an address: here', { number: 1, events: [{ kind: 'LocalIps', localIps: ['here'] }] }],
  ])('throws: %s', (message, value) => {
    expect(() => finish(readSnapshotJson(value))).toThrow(message)
  })
})

it('saved objects equal parsed ones, so that an equal list changes nothing', () => {
  const weighed = { metadata: { annotations: { 'kprobe.io/weights': 'zone=a:3' } } }
  const before = snapshotOf([...OBJECTS, service('far', { clusterIP: '10.96.0.4' }, weighed)])
  const pool = new ValuePool()
  const after = applyEvents(
    EMPTY_SNAPSHOT,
    [...savedObjects(before)].map(object => savedEvent(through(object), pool)),
  )
  for (const map of ['services', 'sliceByKey'] as const)
    for (const [key, value] of before[map].entries())
      expect(isSame(after[map].get(key), value), key).toBe(true)
})

it('serviceJson gives frontends, endpoints and refusals as fields', () => {
  const table = tableOf([
    node(),
    service('web', {
      type: 'LoadBalancer',
      externalIPs: ['127.0.0.1'],
      sessionAffinity: 'ClientIP',
      ports: [{ port: 80, nodePort: 30080 }],
    }),
    slice('web-1', 'web', [endpoint('10.0.0.1', { nodeName: 'here' }), endpoint('10.0.0.2')]),
  ])
  const found = table.services.get('ns/web')
  const json = found === undefined ? undefined : serviceJson(found)
  expect(json).toMatchObject({
    service: 'ns/web',
    ports: [
      {
        name: 'ns/web',
        family: 'IPv4',
        protocol: 'TCP',
        affinitySeconds: 10_800,
        frontends: [
          { kind: 'ClusterIP', ip: '10.96.0.1', port: 80, route: { kind: 'internal', over: 'cluster' } },
          { kind: 'NodePort', port: 30080, route: { kind: 'external-cluster' } },
        ],
        cluster: [
          { ip: '10.0.0.1', port: 8080, local: true },
          { ip: '10.0.0.2', port: 8080, local: false },
        ],
      },
    ],
    refusals: [{ object: 'Service ns/web', field: 'spec.externalIPs[0]', value: '127.0.0.1' }],
  })
  expect(JSON.parse(JSON.stringify(json))).toEqual(json)
  expect(json?.ports[0]).not.toHaveProperty('scheduler')
  expect(json).not.toHaveProperty('wholes')
})
