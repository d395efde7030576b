import { describe, expect, it } from 'vitest'
import type { PortFrontends, ServiceFrontends } from '../../../src/model/frontend.ts'
import { isSameService } from '../../../src/model/resolve.ts'
import { endpoint, node, service, slice, tableOf } from './objects.ts'

function resolved(): ServiceFrontends {
  const table = tableOf([
    node(),
    service('web', {
      type: 'NodePort',
      externalTrafficPolicy: 'Local',
      ports: [{ port: 80, nodePort: 30080 }],
    }),
    slice('web-1', 'web', [endpoint('10.1.0.1', { nodeName: 'here' }), endpoint('10.1.0.2')]),
  ])
  const found = table.services.get('ns/web')
  if (found === undefined) throw new Error('not resolved')
  return found
}

const before = resolved()

function otherwise(change: (port: PortFrontends) => Partial<PortFrontends>): ServiceFrontends {
  return { ...before, ports: before.ports.map(port => ({ ...port, ...change(port) })) }
}

describe('isSameService', () => {
  it('is true of a Service that was resolved twice', () => {
    expect(before.ports[0]?.local).toHaveLength(1)
    expect(isSameService(before, resolved())).toBe(true)
  })

  it.each([
    ['addresses', { ...before, clusterIps: [] }],
    ['refusals', { ...before, refusals: [{ object: '', field: '', value: '', reason: '' }] }],
    ['a port less', { ...before, ports: [] }],
    ['affinity', otherwise(() => ({ affinityTimeoutS: 1 }))],
    ['scheduler', otherwise(() => ({ scheduler: 'wrr' }))],
    ['frontends', otherwise(({ frontends }) => ({ frontends: frontends.slice(1) }))],
    ['a backend less', otherwise(({ cluster }) => ({ cluster: cluster.slice(1) }))],
    ['no local backend', otherwise(() => ({ local: [] }))],
    [
      'address of a backend',
      otherwise(({ cluster }) => ({ cluster: cluster.map(its => ({ ...its, ip: 'abcd' })) })),
    ],
    [
      'port of a backend',
      otherwise(({ cluster }) => ({ cluster: cluster.map(its => ({ ...its, port: 1 })) })),
    ],
    [
      'place of a backend',
      otherwise(({ local }) => ({ local: local.map(its => ({ ...its, local: false })) })),
    ],
  ])('sees a difference in %s', (_, other) => {
    expect(isSameService(before, other)).toBe(false)
    expect(isSameService(other, before)).toBe(false)
  })
})
