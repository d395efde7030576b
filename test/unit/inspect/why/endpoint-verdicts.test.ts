import { describe, expect, it } from 'vitest'
import { explainEndpoints } from '../../../../src/inspect/why/endpoint-verdicts.ts'
import {
  DRAINING,
  endpoint,
  type Fields,
  node,
  OPTIONS,
  onlyPort,
  service,
  slice,
  snapshotOf,
  tableOf,
  UNREADY,
} from '../../model/objects.ts'

const QUERY = { options: OPTIONS, service: 'ns/web', portName: '', protocol: 'TCP', family: 'IPv4' } as const
const hint = (zone: string, nodes: readonly string[] = []) => ({
  hints: { forZones: [{ name: zone }], forNodes: nodes.map(name => ({ name })) },
})
const LOCAL = { nodeName: 'here' }

function explained(endpoints: readonly Fields[], zone = 'a'): unknown {
  const objects = [node({ zone }), service('web'), slice('web-1', 'web', endpoints)]
  const found = explainEndpoints({ ...QUERY, snapshot: snapshotOf(objects) })
  const inCluster = (found?.endpoints ?? []).filter(its => its.cluster.isIn).map(its => its.ip)
  expect(inCluster).toEqual(onlyPort(tableOf(objects)).cluster.map(its => its.ip))
  return found?.endpoints.map(its => [
    its.cluster.isIn,
    its.cluster.reason,
    its.localList.isIn,
    its.localList.reason,
  ])
}

describe('explainEndpoints', () => {
  it.each<[string, Fields[], unknown[]]>([
    ['ready, local', [endpoint('10.1.0.1', LOCAL)], [[true, 'ready', true, 'ready']]],
    ['ready, remote', [endpoint('10.1.0.1')], [[true, 'ready', false, 'not on this node']]],
    [
      'not ready',
      [endpoint('10.1.0.1', { ...LOCAL, conditions: UNREADY })],
      [[false, 'not ready', false, 'not ready']],
    ],
    [
      'terminated',
      [
        endpoint('10.1.0.1', { ...LOCAL, conditions: { ready: false, serving: false, terminating: true } }),
        endpoint('10.1.0.2', { conditions: { ready: false, serving: false, terminating: true } }),
      ],
      [
        [false, 'terminating and no longer serving', false, 'terminating and no longer serving'],
        [false, 'terminating and no longer serving', false, 'not on this node'],
      ],
    ],
    [
      'draining beside a ready one',
      [endpoint('10.1.0.1', { ...LOCAL, conditions: DRAINING }), endpoint('10.1.0.2', LOCAL)],
      [
        [
          false,
          'terminating while another endpoint is ready',
          false,
          'terminating while another endpoint on this node is ready',
        ],
        [true, 'ready', true, 'ready'],
      ],
    ],
    [
      'draining alone',
      [endpoint('10.1.0.1', { ...LOCAL, conditions: DRAINING })],
      [
        [
          true,
          'terminating but still serving, and no endpoint is ready',
          true,
          'terminating but still serving, and no endpoint on this node is ready',
        ],
      ],
    ],
    [
      'hinted to zones',
      [endpoint('10.1.0.1', hint('a')), endpoint('10.1.0.2', hint('b'))],
      [
        [true, 'ready and hinted to the zone of this node', false, 'not on this node'],
        [false, 'ready but hinted to other zones', false, 'not on this node'],
      ],
    ],
    [
      'hinted to nodes',
      [endpoint('10.1.0.1', hint('a', ['here'])), endpoint('10.1.0.2', hint('a', ['there']))],
      [
        [true, 'ready and hinted to this node', false, 'not on this node'],
        [false, 'ready but hinted to other nodes', false, 'not on this node'],
      ],
    ],
  ])('says of endpoints that are %s why they are in or out', (_, endpoints, expected) => {
    expect(explained(endpoints)).toEqual(expected)
  })

  it('knows nothing of Services and ports that are not there', () => {
    const snapshot = snapshotOf([service('web')])
    expect(explainEndpoints({ ...QUERY, snapshot, service: 'ns/x' })).toBeUndefined()
    expect(explainEndpoints({ ...QUERY, snapshot, portName: 'x' })).toBeUndefined()
    expect(explainEndpoints({ ...QUERY, snapshot, protocol: 'UDP' })).toBeUndefined()
    expect(explainEndpoints({ ...QUERY, snapshot, family: 'IPv6' })?.endpoints).toEqual([])
  })
})
