import { expect, it } from 'vitest'
import { finish } from '../../../src/base/clock.ts'
import { servedJson } from '../../../src/daemon/health-page.ts'
import { resolve } from '../../../src/model/resolve.ts'
import { endpoint, node, OPTIONS, service, slice, snapshotOf } from '../model/objects.ts'

it('servedJson counts what is refused and what has no endpoint, and names the first three', () => {
  const bad = ['a', 'b', 'c', 'd'].map((name, at) =>
    service(name, { clusterIP: `10.96.1.${at}`, externalIPs: ['192.0.2.999'] }),
  )
  const web = [service('web', { clusterIP: '10.96.0.1' }), slice('web-1', 'web', [endpoint('10.1.0.1')])]
  const { table } = finish(resolve(OPTIONS, undefined, snapshotOf([node(), ...bad, ...web])))
  const refusal = { object: 'Service ns/x', field: '', value: '', reason: 'why', service: 'ns/x' }
  const { families, refused, withoutEndpoint } = servedJson(table, [{ location: 'f', refusal }])
  expect([families, refused.services, refused.objects]).toEqual([['IPv4'], 4, 1])
  expect(refused.first.map(each => each.service)).toEqual(['ns/x', 'ns/a', 'ns/b'])
  expect(withoutEndpoint).toEqual({ services: 4, first: ['ns/a', 'ns/b', 'ns/c'] })
})

it('servedJson knows nothing before the first table', () => {
  expect(servedJson(undefined, [])).toMatchObject({ families: [], withoutEndpoint: { services: 0 } })
})
