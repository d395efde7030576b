import { describe, expect, it } from 'vitest'
import type { HealthCheck } from '../../../src/model/frontend.ts'
import { DRAINING, endpoint, type Fields, node, service, slice, tableOf, UNREADY } from './objects.ts'

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
    expect(found?.healthCheck).toBeUndefined()
  })
})
