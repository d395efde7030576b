import { describe, expect, it } from 'vitest'
import { explainEndpoints } from '../../../../src/inspect/why/endpoint-verdicts.ts'
import type { ResolveOptions } from '../../../../src/model/node-context.ts'
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
