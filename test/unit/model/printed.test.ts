import { describe, expect, it } from 'vitest'
import { printedService } from '../../../src/model/printed.ts'
import { endpoint, node, service, slice, tableOf } from './objects.ts'

describe('printedService', () => {
  it('prints frontends, endpoints and refusals in words', () => {
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
    expect(found === undefined ? undefined : printedService(found)).toMatchObject({
      service: 'ns/web',
      ports: [
        {
          key: 'ns/web:/TCP/IPv4',
          affinitySeconds: 10_800,
          frontends: ['ClusterIP 10.96.0.1:80 internal/cluster', 'NodePort :30080 external-cluster'],
        },
      ],
      refusals: [expect.stringContaining('Service ns/web: spec.externalIPs')],
    })
    const [port] = found === undefined ? [] : printedService(found).ports
    expect(port?.cluster.map(text => text.split(' ')[0])).toEqual(['10.0.0.1:8080', '10.0.0.2:8080'])
  })
})
