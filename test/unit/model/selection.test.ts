import { describe, expect, it } from 'vitest'
import {
  DRAINING,
  endpoint,
  type Fields,
  node,
  onlyPort,
  portShown,
  service,
  slice,
  tableOf,
  UNREADY,
} from './objects.ts'

const HERE = { nodeName: 'here' }
const THERE = { nodeName: 'there' }

function hints(zones: readonly string[], nodes: readonly string[] = []): Fields {
  return { hints: { forZones: zones.map(name => ({ name })), forNodes: nodes.map(name => ({ name })) } }
}

/** What becomes of a Service with these endpoints. */
function outcome(
  spec: Fields,
  endpoints: readonly Fields[],
  here: Parameters<typeof node>[0] = { zone: 'a' },
): unknown {
  return portShown(onlyPort(tableOf([node(here), service('web', spec), slice('web-1', 'web', endpoints)])))
}

/** What test/scenarios do not say: internal-local*.yaml and terminating*.yaml are about the other cases. */
describe('internal traffic policy', () => {
  const spec = { internalTrafficPolicy: 'Local' }
  const notHere = endpoint('10.1.0.1', { ...HERE, conditions: UNREADY })

  it.each([
    ['none usable anywhere', [notHere], 'reject'],
    ['local not ready, remote ready', [notHere, endpoint('10.1.0.2', THERE)], 'drop'],
  ])('Local with %s', (_, endpoints, route) => {
    const frontends = [`10.96.0.1:80 ${route}`]
    expect(outcome(spec, endpoints)).toEqual({ frontends, cluster: [], local: [] })
  })

  it('Local takes local endpoints whatever their hints say', () => {
    const endpoints = [
      endpoint('10.1.0.1', { ...HERE, ...hints(['b']) }),
      endpoint('10.1.0.2', { ...THERE, ...hints(['a']) }),
    ]
    expect(outcome(spec, endpoints)).toMatchObject({ local: ['10.1.0.1:8080 local'] })
  })
})

/** What test/scenarios/hints-*.yaml do not say. */
describe('hints', () => {
  it.each([
    [
      'several zones of one endpoint',
      [endpoint('10.1.0.1', hints(['b', 'a'])), endpoint('10.1.0.2', hints(['b']))],
    ],
    [
      'this node only, no zones',
      [endpoint('10.1.0.1', hints([], ['here'])), endpoint('10.1.0.2', hints([], ['there']))],
    ],
  ])('for %s', (_, endpoints) => {
    expect(outcome({}, endpoints)).toMatchObject({ cluster: ['10.1.0.1:8080'] })
  })

  it('for zones mean nothing to a node without a zone, even an empty one', () => {
    const endpoints = [endpoint('10.1.0.1', hints(['a', ''])), endpoint('10.1.0.2', hints(['b']))]
    expect(outcome({}, endpoints, {})).toMatchObject({ cluster: ['10.1.0.1:8080', '10.1.0.2:8080'] })
  })
})

describe('duplicate endpoints', () => {
  function clusterOf(...slices: Fields[]): string[] {
    return portShown(onlyPort(tableOf([node(), service('web'), ...slices]))).cluster
  }

  it('of one address and port are one, in one slice as in several', () => {
    const twice = [endpoint('10.1.0.1'), endpoint('10.1.0.1')]
    expect(clusterOf(slice('web-1', 'web', twice), slice('web-2', 'web', twice))).toEqual(['10.1.0.1:8080'])
  })

  function pod(uid: string, conditions: Fields): Fields {
    return endpoint('10.1.0.1', { conditions, targetRef: { kind: 'Pod', uid } })
  }
  const changedAt = (time: string) => ({
    metadata: { annotations: { 'endpoints.kubernetes.io/last-change-trigger-time': time } },
  })
  const GHOST = pod('ghost', { ready: false, serving: true, terminating: true })
  const READY = pod('new', { ready: true })
  const STARTING = pod('new', UNREADY)
  const permutations = [
    [0, 1, 2],
    [0, 2, 1],
    [1, 0, 2],
    [1, 2, 0],
    [2, 0, 1],
    [2, 1, 0],
  ]

  it.each(permutations)(
    'a ready pod wins over ghosts with its address, in the order %i %i %i (I-41)',
    (...order) => {
      const endpoints = [GHOST, READY, pod('older', DRAINING)]
      const slices = order.map((at, index) =>
        slice(`web-${index}`, 'web', [endpoints[at]], changedAt(`2026-01-0${at + 1}T00:00:00Z`)),
      )
      expect(clusterOf(...slices)).toEqual(['10.1.0.1:8080'])
    },
  )

  it('a pod that starts is not served through the ghost that had its address', () => {
    expect(clusterOf(slice('web-1', 'web', [GHOST]), slice('web-2', 'web', [STARTING]))).toEqual([])
    expect(clusterOf(slice('web-1', 'web', [STARTING]), slice('web-2', 'web', [GHOST]))).toEqual([])
  })

  it.each([
    ['2026-01-02T00:00:00Z', '2026-01-01T00:00:00Z', []],
    ['2026-01-01T00:00:00Z', '2026-01-02T00:00:00.5Z', ['10.1.0.1:8080']],
    ['2026-01-01T00:00:00Z', '2026-01-01T00:00:00.000001Z', ['10.1.0.1:8080']],
  ])(
    'of one pod in two slices the newer slice knows better: unready %s, ready %s (I-41)',
    (unready, ready, cluster) => {
      const slices = [
        slice('web-1', 'web', [pod('one', UNREADY)], changedAt(unready)),
        slice('web-2', 'web', [pod('one', { ready: true })], changedAt(ready)),
      ]
      expect(clusterOf(...slices)).toEqual(cluster)
      expect(clusterOf(...slices.toReversed())).toEqual(cluster)
    },
  )
})

/** What port-names.yaml does not say. */
describe('ports of slices', () => {
  const OF_TCP = { name: 'a', port: 80 }

  it.each([
    ['another protocol', OF_TCP, [{ name: 'a', port: 8080, protocol: 'UDP' }], []],
    [
      'the same name twice, with two protocols',
      { ...OF_TCP, protocol: 'UDP' },
      [
        { name: 'a', port: 1 },
        { name: 'a', port: 2, protocol: 'UDP' },
      ],
      ['10.1.0.1:2'],
    ],
  ])('join with Service ports: %s', (_, port, ports, cluster) => {
    const web = service('web', { ports: [port] })
    const listed = slice('web-1', 'web', [endpoint('10.1.0.1')], { ports })
    expect(portShown(onlyPort(tableOf([web, listed]))).cluster).toEqual(cluster)
  })
})
