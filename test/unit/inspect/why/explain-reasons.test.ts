import { describe, expect, it } from 'vitest'
import { explainEndpoints } from '../../../../src/inspect/why/endpoint-verdicts.ts'
import { refusedText } from '../../../../src/inspect/why/explain-reasons.ts'
import { isRefusal } from '../../../../src/model/fields.ts'
import type { ResolveOptions } from '../../../../src/model/node-context.ts'
import { parseObject } from '../../../../src/model/parse.ts'
import {
  DRAINING,
  endpoint,
  type Fields,
  node,
  OPTIONS,
  service,
  slice,
  snapshotOf,
  UNREADY,
} from '../../model/objects.ts'
import { type Asked, BALANCED, explain, ready, THERE, web } from './explained.ts'

const NODE_PORT = { type: 'NodePort', ports: [{ port: 80, nodePort: 30_080 }] }
const CONTESTED = [
  ...web([ready(1, THERE)], NODE_PORT, { metadata: { creationTimestamp: '2020-01-01T00:00:00Z' } }),
  service('late', { ...NODE_PORT, externalIPs: ['192.0.2.1'] }),
]
const CLAIMED = refusedText('ns/late', {
  object: 'Service ns/late',
  field: 'spec.clusterIPs',
  value: '10.96.0.1:80/TCP',
  reason: 'already claimed by Service ns/web, which comes first',
})
const NO_ENDPOINT = 'ns/web has no endpoint: no EndpointSlice lists one for its unnamed TCP port in IPv4'
const NO_ROOM = {
  object: 'EndpointSlice ns/web-1',
  field: '',
  value: '',
  reason: 'no room',
  service: 'ns/web',
}

it.each<[string, readonly Fields[], Asked, readonly unknown[]]>([
  [
    'F150: a slice that there is no room for',
    [service('web')],
    { refusedObjects: [NO_ROOM] },
    [NO_ENDPOINT, 'EndpointSlice ns/web-1 is ignored: no room'],
  ],
  ['a place that another Service has', CONTESTED, {}, [CLAIMED]],
  ['a place that another Service has, by name', CONTESTED, { from: '203.0.113.9', to: 'ns/late' }, [CLAIMED]],
  [
    'a node port that another Service has',
    CONTESTED,
    { to: '192.168.1.7:30080' },
    [expect.stringContaining('refused: ns/late requests 30080/TCP (spec.ports[].nodePort): ')],
  ],
  ['a node port at an address of no node', CONTESTED, { to: '192.168.1.9:30080' }, []],
  [
    'a client within the source ranges',
    web([ready(1)], { type: 'LoadBalancer', loadBalancerSourceRanges: ['10.0.0.0/8'] }, BALANCED),
    { from: '10.9.9.9', to: '198.51.100.9:80' },
    [],
  ],
  [
    'a part of an EndpointSlice that is ignored',
    web([ready(1), endpoint('127.0.0.1')]),
    {},
    [
      expect.stringMatching(
        /^EndpointSlice ns\/web-1: ignored endpoints\[1\]\.addresses\[0\] 127\.0\.0\.1: a loopback/,
      ),
    ],
  ],
])('gives the reasons about %s', (_, objects, asked, expected) => {
  expect(explain(objects, asked).reasons).toEqual(expected)
})

it('names five parts of EndpointSlices that are ignored, and how many more there are', () => {
  const wrong = ['web', 'api'].map(name =>
    parseObject({ ...slice(`${name}-2`, name, []), addressType: 'FQDN' }),
  )
  const refusedObjects = wrong.filter(its => its !== undefined && isRefusal(its))
  const many = Array.from({ length: 8 }, (_, index) => endpoint(`127.0.0.${index}`))
  const all = explain(web(many), { refusedObjects }).reasons
  expect(all).toHaveLength(7)
  expect(all.slice(0, 2)).toEqual([
    NO_ENDPOINT,
    'EndpointSlice ns/web-2 is ignored: addressType FQDN: not a family; IPv4 and IPv6 are accepted',
  ])
  expect(all.at(-1)).toBe('4 more parts of EndpointSlices of Service ns/web are ignored')
})

const QUERY = { options: OPTIONS, service: 'ns/web', portName: '', protocol: 'TCP', family: 'IPv4' } as const
const hint = (zone: string, nodes: readonly string[] = []) => ({
  hints: { forZones: [{ name: zone }], forNodes: nodes.map(name => ({ name })) },
})
const LOCAL = { nodeName: 'here' }
const ENDED = { ready: false, serving: false, terminating: true }

/** The verdicts for both traffic policies: `in: ready | out: not on this node`. */
function explained(endpoints: readonly Fields[], annotations: Fields = {}): readonly string[] {
  const objects = [
    node({ zone: 'a' }),
    service('web', {}, { metadata: { annotations } }),
    slice(
      'web-1',
      'web',
      endpoints.map((more, index) => endpoint(`10.1.0.${index + 1}`, more)),
    ),
  ]
  const options: ResolveOptions = { ...OPTIONS, balancing: { policy: 'random' } }
  const found = explainEndpoints({ ...QUERY, options, snapshot: snapshotOf(objects) })?.endpoints ?? []
  return found.map(({ cluster, localList }) =>
    [cluster, localList].map(({ isIn, reason }) => `${isIn ? 'in' : 'out'}: ${reason}`).join(' | '),
  )
}

describe('explainEndpoints', () => {
  it.each<[string, readonly Fields[], readonly string[]]>([
    ['ready', [LOCAL, {}], ['in: ready | in: ready', 'in: ready | out: not on this node']],
    ['not ready', [{ ...LOCAL, conditions: UNREADY }], ['out: not ready | out: not ready']],
    [
      'terminated',
      [{ ...LOCAL, conditions: ENDED }, { conditions: ENDED }],
      [
        'out: terminating and no longer serving | out: terminating and no longer serving',
        'out: terminating and no longer serving | out: not on this node',
      ],
    ],
    [
      'draining beside a ready one',
      [{ ...LOCAL, conditions: DRAINING }, LOCAL],
      [
        'out: terminating while another endpoint is ready | out: terminating while another endpoint on this node is ready',
        'in: ready | in: ready',
      ],
    ],
    [
      'draining alone',
      [{ ...LOCAL, conditions: DRAINING }],
      [
        'in: terminating but still serving, and no endpoint is ready | in: terminating but still serving, and no endpoint on this node is ready',
      ],
    ],
    [
      'hinted to zones',
      [hint('a'), hint('b')],
      [
        'in: ready and hinted to the zone of this node | out: not on this node',
        'out: ready but hinted to other zones | out: not on this node',
      ],
    ],
    [
      'hinted to nodes',
      [hint('a', ['here']), hint('a', ['there'])],
      [
        'in: ready and hinted to this node | out: not on this node',
        'out: ready but hinted to other nodes | out: not on this node',
      ],
    ],
  ])('says of endpoints that are %s why they are in or out', (_, endpoints, expected) => {
    expect(explained(endpoints)).toEqual(expected)
  })

  it('says what weights and local-first leave', () => {
    const [elsewhere, zone] = [' | out: not on this node', (name: string) => ({ zone: name })]
    expect(
      explained([zone('a'), zone('b'), zone('c')], { 'kprobe.io/weights': 'zone=a:3,zone=b:0' }),
    ).toEqual([
      `in: ready, with weight 3${elsewhere}`,
      `out: ready, but drained by kprobe.io/weights${elsewhere}`,
      `in: ready${elsewhere}`,
    ])
    expect(explained([LOCAL, { nodeName: 'there' }], { 'kprobe.io/balance': 'local-first' })).toEqual([
      'in: ready | in: ready',
      `out: ready, but not needed: this node has its share of endpoints${elsewhere}`,
    ])
  })

  it('knows nothing of Services and ports that are not there', () => {
    const snapshot = snapshotOf([service('web')])
    for (const absent of [{ service: 'ns/x' }, { portName: 'x' }, { protocol: 'UDP' }] as const)
      expect(explainEndpoints({ ...QUERY, snapshot, ...absent })).toBeUndefined()
    expect(explainEndpoints({ ...QUERY, snapshot, family: 'IPv6' })?.endpoints).toEqual([])
  })
})
