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

const NODE_PORT = { type: 'NodePort', ports: [{ port: 80, nodePort: 30080 }] }
const ONLY_INTERNAL = '10.96.0.1:80'

describe('endpoint conditions', () => {
  it.each([
    ['absent', {}, true],
    ['all null', { ready: null, serving: null, terminating: null }, true],
    ['ready', { ready: true }, true],
    [
      'ready but terminating (publishNotReadyAddresses)',
      { ready: true, serving: true, terminating: true },
      true,
    ],
    ['not ready', { ready: false }, false],
    ['not ready, serving null', { ready: false, serving: null, terminating: false }, false],
    ['terminating, no longer serving', { ready: false, serving: false, terminating: true }, false],
    ['terminating, serving null', { ready: false, terminating: true }, true],
    ['terminating and serving', DRAINING, true],
  ])('an only endpoint that is %s is used: %s', (_, conditions, isUsed) => {
    expect(outcome({}, [{ ...endpoint('10.1.0.1'), conditions }])).toEqual(
      isUsed
        ? { frontends: [`${ONLY_INTERNAL} internal/cluster`], cluster: ['10.1.0.1:8080'], local: [] }
        : { frontends: [`${ONLY_INTERNAL} reject`], cluster: [], local: [] },
    )
  })

  it('an endpoint without conditions at all is ready', () => {
    expect(outcome({}, [{ addresses: ['10.1.0.1'] }])).toMatchObject({ cluster: ['10.1.0.1:8080'] })
  })

  it('endpoints that terminate serve only while none is ready (I-45)', () => {
    const draining = endpoint('10.1.0.1', { conditions: DRAINING })
    const unready = endpoint('10.1.0.2', { conditions: UNREADY })
    const ready = endpoint('10.1.0.3')
    expect(outcome({}, [draining, unready, ready])).toMatchObject({ cluster: ['10.1.0.3:8080'] })
    expect(outcome({}, [draining, unready])).toMatchObject({ cluster: ['10.1.0.1:8080'] })
    expect(outcome({}, [unready])).toMatchObject({ cluster: [], frontends: [`${ONLY_INTERNAL} reject`] })
  })
})

describe('internal traffic policy', () => {
  const spec = { internalTrafficPolicy: 'Local' }
  it.each([
    [
      'one local, one remote',
      [endpoint('10.1.0.1', HERE), endpoint('10.1.0.2', THERE)],
      'internal/local',
      ['10.1.0.1:8080 local'],
    ],
    ['none local', [endpoint('10.1.0.2', THERE)], 'drop', []],
    ['none anywhere', [], 'reject', []],
    ['none usable anywhere', [endpoint('10.1.0.1', { ...HERE, conditions: UNREADY })], 'reject', []],
    [
      'local draining, remote ready',
      [endpoint('10.1.0.1', { ...HERE, conditions: DRAINING }), endpoint('10.1.0.2', THERE)],
      'internal/local',
      ['10.1.0.1:8080 local'],
    ],
    [
      'local ready and draining',
      [endpoint('10.1.0.1', { ...HERE, conditions: DRAINING }), endpoint('10.1.0.2', HERE)],
      'internal/local',
      ['10.1.0.2:8080 local'],
    ],
    [
      'local not ready, remote ready',
      [endpoint('10.1.0.1', { ...HERE, conditions: UNREADY }), endpoint('10.1.0.2', THERE)],
      'drop',
      [],
    ],
  ])('Local with %s', (_, endpoints, route, local) => {
    expect(outcome(spec, endpoints)).toEqual({ frontends: [`${ONLY_INTERNAL} ${route}`], cluster: [], local })
  })

  it('Local takes local endpoints whatever their hints say', () => {
    const endpoints = [
      endpoint('10.1.0.1', { ...HERE, ...hints(['b']) }),
      endpoint('10.1.0.2', { ...THERE, ...hints(['a']) }),
    ]
    expect(outcome(spec, endpoints)).toMatchObject({ local: ['10.1.0.1:8080 local'] })
  })

  it('Local fills the cluster list once something outside can reach the Service', () => {
    const endpoints = [endpoint('10.1.0.1', HERE), endpoint('10.1.0.2', THERE)]
    expect(outcome({ ...NODE_PORT, internalTrafficPolicy: 'Local' }, endpoints)).toEqual({
      frontends: [`${ONLY_INTERNAL} internal/local`, '*:30080 external-cluster'],
      cluster: ['10.1.0.1:8080 local', '10.1.0.2:8080'],
      local: ['10.1.0.1:8080 local'],
    })
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

  it('of one address and two ports are two endpoints (I-40)', () => {
    const other = slice('web-2', 'web', [endpoint('10.1.0.1')], { ports: [{ name: '', port: 8081 }] })
    expect(clusterOf(slice('web-1', 'web', [endpoint('10.1.0.1')]), other)).toEqual([
      '10.1.0.1:8080',
      '10.1.0.1:8081',
    ])
  })

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
      const [port] =
        tableOf([service('web', { internalTrafficPolicy: 'Cluster' }), ...slices]).services.get('ns/web')
          ?.ports ?? []
      expect(port?.cluster).toHaveLength(1)
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

describe('ports of slices', () => {
  function clusterOf(port: Fields, ports: readonly unknown[]): string[] {
    return portShown(
      onlyPort(
        tableOf([
          service('web', { ports: [port] }),
          slice('web-1', 'web', [endpoint('10.1.0.1')], { ports }),
        ]),
      ),
    ).cluster
  }
  it.each([
    ['the same name and protocol', { name: 'a', port: 80 }, [{ name: 'a', port: 8080 }], ['10.1.0.1:8080']],
    ['another name', { name: 'a', port: 80 }, [{ name: 'b', port: 8080 }], []],
    ['another protocol', { name: 'a', port: 80 }, [{ name: 'a', port: 8080, protocol: 'UDP' }], []],
    ['no name at all', { port: 80 }, [{ port: 8080 }], []],
    [
      'the same name twice, with two protocols',
      { name: 'a', port: 80, protocol: 'UDP' },
      [
        { name: 'a', port: 1 },
        { name: 'a', port: 2, protocol: 'UDP' },
      ],
      ['10.1.0.1:2'],
    ],
    ['number 0', { port: 80 }, [{ name: '', port: 0 }], []],
    ['SCTP', { port: 80, protocol: 'SCTP' }, [{ name: '', port: 9, protocol: 'SCTP' }], ['10.1.0.1:9']],
  ])('join with Service ports: %s', (_, port, ports, cluster) => {
    expect(clusterOf(port, ports)).toEqual(cluster)
  })

  it('may have another number in each slice', () => {
    const slices = [8080, 9090].map(port =>
      slice(`web-${port}`, 'web', [endpoint(`10.1.0.${port % 7}`)], { ports: [{ name: '', port }] }),
    )
    expect(portShown(onlyPort(tableOf([service('web'), ...slices]))).cluster).toEqual([
      '10.1.0.2:8080',
      '10.1.0.4:9090',
    ])
  })
})
