import { expect, it } from 'vitest'
import { finish } from '../../../../src/base/clock.ts'
import { formatIpPort } from '../../../../src/base/ip.ts'
import { type ExplainedEndpoint, reasonsOf } from '../../../../src/inspect/why/explain-reasons.ts'
import { isRefusal, type Refusal } from '../../../../src/model/fields.ts'
import { parseObject } from '../../../../src/model/parse.ts'
import { resolve } from '../../../../src/model/resolve.ts'
import { ip } from '../../../support/addresses.ts'
import { endpoint, type Fields, OPTIONS, service, slice, snapshotOf, UNREADY } from '../../model/objects.ts'

const IN = { isIn: true, reason: 'ready' }
const outFor = (reason: string) => ({ isIn: false, reason })

interface Asked {
  readonly to?: string
  readonly port?: number
  readonly from?: string
  readonly isLocal?: boolean
  /** The Service that the question names. */
  readonly named?: string
  readonly refusedObjects?: readonly Refusal[]
}

function reasons(objects: readonly Fields[], asked: Asked): readonly string[] {
  const { to = '10.96.0.1', port = 80, from = '203.0.113.9', isLocal = false, named } = asked
  const snapshot = snapshotOf(objects)
  const { table } = finish(resolve(OPTIONS, undefined, snapshot))
  const [caught] = table.services
    .values()
    .flatMap(its => its.ports)
    .flatMap(its => its.frontends.map(frontend => ({ port: its, frontend })))
    .filter(({ frontend }) => frontend.ip === ip(to) && frontend.port === port)
  const endpoints = snapshot.sliceByKey
    .values()
    .flatMap(its => its.endpoints)
    .map(
      (its): ExplainedEndpoint => ({
        address: formatIpPort(its.ip, 8080),
        pod: undefined,
        node: its.traits.nodeName,
        zone: undefined,
        slice: '',
        cluster: its.traits.conditions.ready ? IN : outFor('not ready'),
        local: its.traits.nodeName === 'other' ? outFor('not on this node') : IN,
      }),
    )
  const protocol = { name: 'TCP', number: 6 } as const
  const place = { from: ip(from), to: ip(to), port, protocol, interfaceName: undefined }
  const question = { ...place, ...(named === undefined ? {} : { service: named }) }
  const { refusedObjects = [] } = asked
  const known = { table, snapshot, overCap: [], refusedObjects, wallMs: 0 }
  return reasonsOf({ ...known, question, caught, endpoints, isLocal }).map(({ text }) => text)
}

const web = (spec: Fields = {}, endpoints: readonly Fields[] = [], rest: Fields = {}) => [
  service('web', spec, rest),
  ...(endpoints.length === 0 ? [] : [slice('web-1', 'web', endpoints)]),
]
const POD = endpoint('10.1.0.1', { nodeName: 'other' })
const RANGED = web({ type: 'LoadBalancer', loadBalancerSourceRanges: ['10.0.0.0/8'] }, [POD], {
  status: { loadBalancer: { ingress: [{ ip: '192.0.2.10' }] } },
})
const NODE_PORT = { type: 'NodePort', ports: [{ port: 80, nodePort: 30_080 }] }
const CONTESTED = [
  ...web(NODE_PORT, [POD], { metadata: { creationTimestamp: '2020-01-01T00:00:00Z' } }),
  service('late', { ...NODE_PORT, externalIPs: ['192.0.2.1'] }),
]
const CLAIMED =
  'refused: ns/late requests 10.96.0.1:80/TCP (spec.clusterIPs): already claimed by Service ns/web, which comes first'
const NO_ENDPOINT = 'ns/web has no endpoint: no EndpointSlice lists one for its unnamed TCP port in IPv4'
const NO_ROOM = {
  object: 'EndpointSlice ns/web-1',
  field: '',
  value: '',
  reason: 'no room',
  service: 'ns/web',
}
const MESH = { metadata: { labels: { 'service.kubernetes.io/service-proxy-name': 'mesh' } } }

it.each<[string, readonly Fields[], Asked, readonly unknown[]]>([
  ['a connection that finds an endpoint', web({}, [POD]), {}, []],
  ['a Service without endpoints', web(), {}, [NO_ENDPOINT]],
  [
    'F150: a slice that there is no room for',
    web(),
    { refusedObjects: [NO_ROOM] },
    [NO_ENDPOINT, 'EndpointSlice ns/web-1 is ignored: no room'],
  ],
  [
    'endpoints that cannot be used',
    web(
      {},
      [1, 2].map(last => endpoint(`10.1.0.${last}`, { conditions: UNREADY })),
    ),
    {},
    ['ns/web has no ready endpoint: 2 of 2 are not ready'],
  ],
  [
    'endpoints on other nodes alone',
    web({ internalTrafficPolicy: 'Local' }, [POD]),
    {},
    [
      'ns/web has no usable endpoint on this node, and its traffic policy is Local: 1 of 1 is not on this node',
    ],
  ],
  [
    'a client outside the source ranges',
    RANGED,
    { to: '192.0.2.10' },
    ['not admitted: ns/web admits only 10.0.0.0/8, and 203.0.113.9 is outside'],
  ],
  ['a client within them', RANGED, { to: '192.0.2.10', from: '10.9.9.9' }, []],
  [
    'another port of an address',
    web({
      ports: [
        { name: 'http', port: 80 },
        { name: 'dns', port: 53, protocol: 'UDP' },
      ],
    }),
    { port: 8080 },
    ['wrong port: ns/web has no port 8080/TCP at 10.96.0.1; it has 80/TCP (http), 53/UDP (dns)'],
  ],
  [
    'a Service of another proxy',
    web({}, [], MESH),
    {},
    [
      'another proxy: ns/web is one that the proxy mesh serves (label service.kubernetes.io/service-proxy-name)',
    ],
  ],
  [
    'an address that was refused',
    [service('evil', { externalIPs: ['127.0.0.1'] })],
    { to: '127.0.0.1', isLocal: true },
    [
      'refused: ns/evil requests 127.0.0.1 (spec.externalIPs[0]): a loopback address, which every node has for itself',
    ],
  ],
  ['a place that another Service has', CONTESTED, {}, [CLAIMED]],
  ['a place that another Service has, by name', CONTESTED, { named: 'ns/late' }, [CLAIMED]],
  [
    'a node port that another Service has',
    CONTESTED,
    { to: '192.168.1.7', port: 30_080, isLocal: true },
    [expect.stringContaining('refused: ns/late requests 30080/TCP (spec.ports[].nodePort): ')],
  ],
  ['a node port at an address of no node', CONTESTED, { to: '192.168.1.7', port: 30_080 }, []],
  [
    'a part of an EndpointSlice that is ignored',
    web({}, [endpoint('10.1.0.1'), endpoint('127.0.0.1')]),
    {},
    [
      expect.stringMatching(
        /^EndpointSlice ns\/web-1: ignored endpoints\[1\]\.addresses\[0\] 127\.0\.0\.1: a loopback/,
      ),
    ],
  ],
])('gives the reasons about %s', (_, objects, asked, expected) => {
  expect(reasons(objects, asked)).toEqual(expected)
})

it('names five parts of EndpointSlices that are ignored, and how many more there are', () => {
  const wrong = ['web', 'api'].map(name =>
    parseObject({ ...slice(`${name}-2`, name, []), addressType: 'FQDN' }),
  )
  const refusedObjects = wrong.filter(its => its !== undefined && isRefusal(its))
  const many = Array.from({ length: 8 }, (_, index) => endpoint(`127.0.0.${index}`))
  const all = reasons(web({}, many), { refusedObjects })
  expect(all).toHaveLength(7)
  expect(all.slice(0, 2)).toEqual([
    NO_ENDPOINT,
    'EndpointSlice ns/web-2 is ignored: addressType FQDN: not a family; IPv4 and IPv6 are accepted',
  ])
  expect(all.at(-1)).toBe('4 more parts of EndpointSlices of Service ns/web are ignored')
})
