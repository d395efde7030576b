import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { parseObject, watchedIdentity } from '../../../src/model/parse.ts'
import { runs } from '../../support/runs.ts'
import { endpoint, node, service, serviceCidr, slice } from './objects.ts'

describe('parseObject', () => {
  it.each([
    [service('web'), 'Service', 'ns/web'],
    [slice('web-1', 'web', []), 'EndpointSlice', 'ns/web-1'],
    [node(), 'Node', 'here'],
    [serviceCidr('k', []), 'ServiceCIDR', 'k'],
    [serviceCidr('k', [], 'v1beta1'), 'ServiceCIDR', 'k'],
    [{ apiVersion: 'v1', kind: 'Service', metadata: { name: 'web' }, spec: {} }, 'Service', 'default/web'],
  ])('%# gives the event of its kind under its key', (object, kind, key) => {
    expect(parseObject(object)).toMatchObject({ kind, key, value: expect.anything() })
    expect(watchedIdentity(object)).toMatchObject({ kind, key })
  })

  it.each([
    { apiVersion: 'v1', kind: 'Pod', metadata: { name: 'a' } },
    { apiVersion: 'serving.knative.dev/v1', kind: 'Service', metadata: { name: 'a' } },
    { apiVersion: 'v1', kind: 'EndpointSlice', metadata: { name: 'a' } },
    { kind: 'Service' },
    {},
  ])('%# is of no kind that is watched', object => {
    expect(parseObject(object)).toBeUndefined()
  })

  it('deletes slices of headless Services, so that the label added later does, too', () => {
    const labels = { 'kubernetes.io/service-name': 'web', 'service.kubernetes.io/headless': '' }
    const object = slice('web-1', 'web', [endpoint('10.1.0.1')], { metadata: { labels } })
    expect(parseObject(object)).toEqual({ kind: 'EndpointSlice', key: 'ns/web-1', value: undefined })
  })

  it.each([
    [
      { ...slice('web-1', 'web', []), apiVersion: 'discovery.k8s.io/v1beta1' },
      'EndpointSlice ns/web-1',
      'apiVersion',
    ],
    [{ ...service('web'), apiVersion: 'v2' }, 'Service ns/web', 'apiVersion'],
    [service('WEB'), 'Service ns/WEB', 'metadata.name'],
    ['text', 'object', ''],
  ])('%# is refused whole', (object, name, field) => {
    expect(parseObject(object)).toMatchObject({ object: name, field })
  })

  it('survives any JSON in the place of any field (I-42)', () => {
    const whole = slice('web-1', 'web', [endpoint('10.1.0.1', { hints: { forZones: [{ name: 'a' }] } })])
    const objects = [
      service(
        'web',
        { externalIPs: ['192.0.2.1'] },
        { status: { loadBalancer: { ingress: [{ ip: '192.0.2.2' }] } } },
      ),
      whole,
      node(),
    ]
    fc.assert(
      fc.property(fc.constantFrom(...objects), fc.nat(60), fc.jsonValue(), (object, at, value) => {
        parseObject(withField(object, { left: at }, value))
      }),
      { numRuns: runs(3000) },
    )
  })

  it('survives objects that JSON has given a toString (I-42)', () => {
    const trap = { toString: 0, valueOf: 0 }
    const metadata = { name: 'web', namespace: 'ns' }
    for (const name of Object.keys(metadata))
      expect(parseObject({ ...service('web'), metadata: { ...metadata, [name]: trap } })).toHaveProperty(
        'reason',
      )
    const labels = { 'service.kubernetes.io/service-proxy-name': trap }
    expect(parseObject({ ...service('web'), metadata: { ...metadata, labels } })).toMatchObject({
      value: { proxyName: '{...}' },
    })
  })

  it('survives any object of a watched kind', () => {
    fc.assert(
      fc.property(
        fc.constantFrom('Service', 'EndpointSlice', 'Node'),
        fc.object({ maxDepth: 4 }),
        (kind, object) => {
          const apiVersion = kind === 'EndpointSlice' ? 'discovery.k8s.io/v1' : 'v1'
          parseObject({ metadata: { namespace: 'ns', name: 'web' }, ...object, apiVersion, kind })
        },
      ),
    )
  })
})

/** A copy of plain data in which the n-th value, counted depth first, is another. */
function withField(data: unknown, count: { left: number }, value: unknown): unknown {
  if (count.left-- === 0) return value
  if (Array.isArray(data)) return data.map(item => withField(item, count, value))
  if (typeof data !== 'object' || data === null) return data
  return Object.fromEntries(
    Object.entries(data).map(([name, field]) => [name, withField(field, count, value)]),
  )
}
