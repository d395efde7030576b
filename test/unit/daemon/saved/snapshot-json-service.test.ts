import { describe, expect, it } from 'vitest'
import { serviceJson } from '../../../../src/daemon/saved/snapshot-json.ts'
import { endpoint, node, service, slice, tableOf } from '../../model/objects.ts'

describe('serviceJson', () => {
  it('gives frontends, endpoints and refusals as fields', () => {
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
})
