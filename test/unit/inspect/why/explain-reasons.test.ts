import { describe, expect, it } from 'vitest'
import { finish } from '../../../../src/base/clock.ts'
import { formatIpPort } from '../../../../src/base/ip.ts'
import { type ExplainedEndpoint, reasonsOf } from '../../../../src/inspect/why/explain-reasons.ts'
import { isRefusal, type Refusal } from '../../../../src/model/fields.ts'
import { parseObject } from '../../../../src/model/parse.ts'
import { resolve } from '../../../../src/model/resolve.ts'
import type { Snapshot } from '../../../../src/model/snapshot.ts'
import { ip } from '../../../support/addresses.ts'
import { endpoint, type Fields, OPTIONS, service, slice, snapshotOf, UNREADY } from '../../model/objects.ts'

const POD = { nodeName: 'other' }
const IN = { isIn: true, reason: 'ready' }

interface Asked {
  readonly to: string
  readonly port?: number
  readonly from?: string
  readonly isLocal?: boolean
  /** The Service that the question names. */
  readonly named?: string
  readonly refusedObjects?: readonly Refusal[]
}

function reasons(objects: readonly Fields[], asked: Asked) {
  return reasonsIn(snapshotOf(objects), asked)
}

function reasonsIn(snapshot: Snapshot, asked: Asked) {
  const { to, port = 80, from = '203.0.113.9', isLocal = false, named, refusedObjects = [] } = asked
  const { table } = finish(resolve(OPTIONS, undefined, snapshot))
  const ports = table.services.values().flatMap(its => its.ports)
  const caught = ports.flatMap(its =>
    its.frontends.flatMap(frontend =>
      frontend.ip === ip(to) && frontend.port === port ? [{ port: its, frontend }] : [],
    ),
  )[0]
  const slices = snapshot.sliceByKey.values()
  const endpoints = slices
    .flatMap(its => its.endpoints)
    .map(
      (its): ExplainedEndpoint => ({
        address: formatIpPort(its.ip, 8080),
        node: its.traits.nodeName,
        slice: '',
        cluster: IN,
        local: IN,
      }),
    )
  const question = {
    from: ip(from),
    to: ip(to),
    port,
    protocol: { name: 'TCP', number: 6 },
    interfaceName: undefined,
    ...(named === undefined ? {} : { service: named }),
  } as const
  return reasonsOf({
    question,
    table,
    snapshot,
    overCap: [],
    refusedObjects,
    wallMs: 0,
    caught,
    endpoints,
    isLocal,
  }).map(({ text }) => text)
}

describe('reasonsOf', () => {
  it('F150: names a slice that there is no room for', () => {
    const refusal = {
      object: 'EndpointSlice ns/api-1',
      field: '',
      value: '',
      reason: 'no room',
      service: 'ns/api',
    }
    expect(reasons([service('api')], { to: '10.96.0.1', refusedObjects: [refusal] })).toEqual([
      'Service ns/api has no endpoints',
      'EndpointSlice ns/api-1 is ignored: no room',
    ])
  })

  it('names what is ignored of the EndpointSlices, five parts of them at most', () => {
    const object = slice('web-1', 'web', [endpoint('10.1.0.1'), endpoint('127.0.0.1')])
    const parts = reasons([service('web'), object], { to: '10.96.0.1' })
    expect(parts).toEqual([
      expect.stringMatching(
        /^EndpointSlice ns\/web-1: ignored endpoints\[1\]\.addresses\[0\] 127\.0\.0\.1: a loopback/,
      ),
    ])
    const whole = parseObject({ ...slice('web-2', 'web', []), addressType: 'FQDN' })
    const other = parseObject({ ...slice('api-1', 'api', []), addressType: 'FQDN' })
    const refusedObjects = [whole, other].filter(its => its !== undefined && isRefusal(its))
    const many = slice(
      'web-1',
      'web',
      Array.from({ length: 8 }, (_, index) => endpoint(`127.0.0.${index}`)),
    )
    const all = reasons([service('web'), many], { to: '10.96.0.1', refusedObjects })
    expect(all).toHaveLength(7)
    expect(all.slice(0, 2)).toEqual([
      'Service ns/web has no endpoints',
      'EndpointSlice ns/web-2 is ignored: addressType FQDN: not a family; IPv4 and IPv6 are accepted',
    ])
    expect(all.at(-1)).toBe('4 more parts of EndpointSlices of Service ns/web are ignored')
  })

  it('is empty for a connection that finds an endpoint', () => {
    expect(
      reasons([service('web'), slice('web-1', 'web', [endpoint('10.1.0.1')])], { to: '10.96.0.1' }),
    ).toEqual([])
  })

  it('names the Service that has no endpoints', () => {
    expect(reasons([service('web')], { to: '10.96.0.1' })).toEqual(['Service ns/web has no endpoints'])
  })

  it('names the Service whose endpoints cannot be used', () => {
    const unready = [
      endpoint('10.1.0.1', { conditions: UNREADY }),
      endpoint('10.1.0.2', { conditions: UNREADY }),
    ]
    expect(reasons([service('web'), slice('web-1', 'web', unready)], { to: '10.96.0.1' })).toEqual([
      'Service ns/web has no usable endpoint (2 endpoints, listed below)',
    ])
    const local = service('web', { internalTrafficPolicy: 'Local' })
    expect(reasons([local, slice('web-1', 'web', [endpoint('10.1.0.1', POD)])], { to: '10.96.0.1' })).toEqual(
      [
        'Service ns/web has no usable endpoint on this node, and its traffic policy is Local (1 endpoint, listed below)',
      ],
    )
  })

  it('says that a client is outside the source ranges', () => {
    const balanced = service(
      'web',
      { type: 'LoadBalancer', loadBalancerSourceRanges: ['10.0.0.0/8'] },
      { status: { loadBalancer: { ingress: [{ ip: '192.0.2.10' }] } } },
    )
    const objects = [balanced, slice('web-1', 'web', [endpoint('10.1.0.1', POD)])]
    expect(reasons(objects, { to: '192.0.2.10' })).toEqual([
      '203.0.113.9 is outside the source ranges of Service ns/web: 10.0.0.0/8',
    ])
    expect(reasons(objects, { to: '192.0.2.10', from: '10.9.9.9' })).toEqual([])
  })

  it('names the ports of an address that is known', () => {
    const web = service('web', {
      ports: [
        { name: 'http', port: 80 },
        { name: 'dns', port: 53, protocol: 'UDP' },
      ],
    })
    expect(reasons([web], { to: '10.96.0.1', port: 8080 })).toEqual([
      '10.96.0.1 is an address of Service ns/web; its ports there are 80/TCP (http), 53/UDP (dns)',
    ])
  })

  it('names the proxy that serves the address', () => {
    const labels = { 'service.kubernetes.io/service-proxy-name': 'mesh' }
    const web = service('web', {}, { metadata: { labels } })
    expect(reasons([web], { to: '10.96.0.1' })).toEqual([
      '10.96.0.1 is an address of Service ns/web, which is one that the proxy mesh serves (label service.kubernetes.io/service-proxy-name)',
    ])
  })

  it('says who asked for an address that was refused, and why', () => {
    expect(
      reasons([service('evil', { externalIPs: ['127.0.0.1'] })], { to: '127.0.0.1', isLocal: true }),
    ).toEqual([
      'Service ns/evil requests 127.0.0.1 (spec.externalIPs[0]), which kprobe refuses: a loopback address, which every node has for itself',
    ])
  })

  it('says who asked for the port of an address, or for a node port, that is served for another Service', () => {
    const spec = { type: 'NodePort', ports: [{ port: 80, nodePort: 30_080 }] }
    const older = { metadata: { creationTimestamp: '2020-01-01T00:00:00Z' } }
    const objects = [
      service('web', spec, older),
      service('late', { ...spec, externalIPs: ['192.0.2.1'] }),
      slice('web-1', 'web', [endpoint('10.1.0.1')]),
    ]
    expect(reasons(objects, { to: '10.96.0.1' })).toEqual([
      'Service ns/late requests 10.96.0.1:80/TCP (spec.clusterIPs), which kprobe refuses: already claimed by Service ns/web, which comes first',
    ])
    expect(reasons(objects, { to: '10.96.0.1', named: 'ns/late' })).toEqual(
      reasons(objects, { to: '10.96.0.1' }),
    )
    expect(reasons(objects, { to: '192.168.1.7', port: 30_080, isLocal: true })).toEqual([
      expect.stringContaining(
        'Service ns/late requests 30080/TCP (spec.ports[].nodePort), which kprobe refuses: ',
      ),
    ])
    expect(reasons(objects, { to: '192.168.1.7', port: 30_080 })).toEqual([])
  })
})
