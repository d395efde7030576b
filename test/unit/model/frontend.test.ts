import { describe, expect, it } from 'vitest'
import { finish } from '../../../src/base/clock.ts'
import type { HealthCheck } from '../../../src/model/frontend.ts'
import { resolve } from '../../../src/model/resolve.ts'
import { applyEvents } from '../../../src/model/snapshot.ts'
import {
  DRAINING,
  endpoint,
  eventsOf,
  type Fields,
  node,
  OPTIONS,
  service,
  slice,
  snapshotOf,
  tableOf,
  UNREADY,
} from './objects.ts'

const LOCAL: Fields = {
  type: 'LoadBalancer',
  externalTrafficPolicy: 'Local',
  healthCheckNodePort: 30_100,
  ports: [{ port: 80, nodePort: 30_080 }],
}

const here = (address: string, rest: Fields = {}) => endpoint(address, { nodeName: 'here', ...rest })

function healthCheck(...objects: readonly unknown[]): HealthCheck | undefined {
  return tableOf([node(), ...objects]).services.get('ns/web')?.healthCheck
}

describe('healthCheckOf', () => {
  it('counts each ready address on this node once, over all slices and ports', () => {
    const found = healthCheck(
      service('web', LOCAL),
      slice('web-1', 'web', [here('10.1.0.1'), here('10.1.0.2'), endpoint('10.1.0.3')]),
      slice('web-2', 'web', [here('10.1.0.2')], { ports: [{ name: 'other', port: 9090 }] }),
    )
    expect(found).toEqual({ port: 30_100, local: { IPv4: 2 } })
  })

  it('leaves out endpoints that are not ready, those that drain among them', () => {
    const found = healthCheck(
      service('web', LOCAL),
      slice('web-1', 'web', [
        here('10.1.0.1', { conditions: DRAINING }),
        here('10.1.0.2', { conditions: UNREADY }),
      ]),
    )
    expect(found).toEqual({ port: 30_100, local: { IPv4: 0 } })
  })

  it('leaves out slices without a port', () => {
    expect(
      healthCheck(service('web', LOCAL), slice('web-1', 'web', [here('10.1.0.1')], { ports: [] })),
    ).toEqual({ port: 30_100, local: { IPv4: 0 } })
  })

  it('counts by family, for the families of the ClusterIPs', () => {
    const dual = { ...LOCAL, clusterIP: undefined, clusterIPs: ['10.96.0.1', 'fd00:96::1'] }
    const objects = [
      slice('web-4', 'web', [here('10.1.0.1')]),
      slice('web-6', 'web', [here('fd00::1'), here('fd00::2')], { addressType: 'IPv6' }),
    ]
    expect(healthCheck(service('web', dual), ...objects)?.local).toEqual({ IPv4: 1, IPv6: 2 })
    expect(healthCheck(service('web', LOCAL), ...objects)?.local).toEqual({ IPv4: 1 })
  })

  it.each([
    ['policy Cluster', { ...LOCAL, externalTrafficPolicy: 'Cluster' }],
    ['no load balancer', { ...LOCAL, type: 'NodePort' }],
    ['no such port', { ...LOCAL, healthCheckNodePort: undefined }],
  ])('is absent with %s', (_, spec) => {
    const found = tableOf([node(), service('web', spec)]).services.get('ns/web')
    expect(found).toBeDefined()
    expect(found).not.toHaveProperty('healthCheck')
  })

  it('changes with an endpoint, and not without', () => {
    const first = snapshotOf([node(), service('web', LOCAL), slice('web-1', 'web', [here('10.1.0.1')])])
    const before = finish(resolve(OPTIONS, undefined, first))
    const other = applyEvents(first, eventsOf([service('other', { clusterIP: '10.96.0.2' })]))
    const same = finish(resolve(OPTIONS, before, other))
    expect(same.table.services.get('ns/web')).toBe(before.table.services.get('ns/web'))
    const grown = applyEvents(
      other,
      eventsOf([slice('web-1', 'web', [here('10.1.0.1'), here('10.1.0.2', { conditions: UNREADY })])]),
    )
    const still = finish(resolve(OPTIONS, same, grown))
    expect(still.table.services.get('ns/web')?.healthCheck?.local).toEqual({ IPv4: 1 })
    const ready = applyEvents(grown, eventsOf([slice('web-1', 'web', [here('10.1.0.1'), here('10.1.0.2')])]))
    const two = finish(resolve(OPTIONS, still, ready))
    expect(two.table.services.get('ns/web')?.healthCheck?.local).toEqual({ IPv4: 2 })
  })
})
