import { describe, expect, it } from 'vitest'
import { finish } from '../../../src/base/clock.ts'
import { readSnapshotJson, snapshotJson } from '../../../src/daemon/saved/snapshot-json.ts'
import { podNames, podPlaces, podText } from '../../../src/model/pod-names.ts'
import { resolve } from '../../../src/model/resolve.ts'
import type { Snapshot } from '../../../src/model/snapshot.ts'
import { jsonPieces } from '../../../src/telemetry/admin-server.ts'
import { endpoint, OPTIONS, service, slice, snapshotOf } from './objects.ts'

const at = (address: string, name: string, kind = 'Pod') => endpoint(address, { targetRef: { kind, name } })
const namesIn = ({ sliceByKey }: Snapshot) => podNames(podPlaces(sliceByKey.values()))
const SNAPSHOT = snapshotOf([
  service('web', {}),
  slice('web-1', 'web', [at('10.1.0.1', 'web-a'), endpoint('10.1.0.2'), at('10.1.0.3', 'vm', 'Machine')]),
  slice('dns-1', 'dns', [at('192.0.2.1', 'dns')], { ports: [{ name: '', port: 53, protocol: 'UDP' }] }),
  slice('log-1', 'log', [at('192.0.2.1', 'log')], { ports: [{ name: '', port: 514, protocol: 'UDP' }] }),
])

describe('podNames', () => {
  it('names the Pod of an address, where an EndpointSlice has one', () => {
    const pods = namesIn(SNAPSHOT)
    const [slash = ''] = SNAPSHOT.sliceByKey.values().map(({ key }) => key.replace(/\/.*/, '/'))
    expect(pods('10.1.0.1')).toBe(`${slash}web-a`)
    expect([pods('10.1.0.2'), pods('10.1.0.3'), pods('10.1.0.4')]).toEqual([undefined, undefined, undefined])
  })

  it('tells Pods of the network of the host apart by their ports', () => {
    const pods = namesIn(SNAPSHOT)
    expect([pods('192.0.2.1:53'), pods('192.0.2.1:514')]).toEqual([
      expect.stringContaining('/dns'),
      expect.stringContaining('/log'),
    ])
    expect(pods('192.0.2.1')).toBeUndefined()
  })

  it('survives the saved state', () => {
    const saved: unknown = JSON.parse([...jsonPieces(snapshotJson(SNAPSHOT))].join(''))
    const read = finish(readSnapshotJson(saved))
    expect([...podPlaces(read.sliceByKey.values())]).toEqual([...podPlaces(SNAPSHOT.sliceByKey.values())])
  })

  it('another name alone changes no rule', () => {
    const renamed = (name: string) =>
      snapshotOf([service('web', {}), slice('web-1', 'web', [at('10.1.0.1', name)])])
    const rules = (snapshot: Snapshot) =>
      finish(resolve(OPTIONS, undefined, snapshot)).table.services.values()
    expect(rules(renamed('new'))).toEqual(rules(renamed('old')))
  })
})

it('podText has the form that the commands print', () => {
  expect(podText('10.1.0.1:80', 'shop/cart-a')).toBe('10.1.0.1:80 (pod shop/cart-a)')
  expect(podText('10.1.0.1:80', undefined)).toBe('10.1.0.1:80')
})
