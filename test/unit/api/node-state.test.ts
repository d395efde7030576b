import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { ApiFeed } from '../../../src/api/feed.ts'
import { NodeState, SharedState } from '../../../src/api/node-state.ts'
import { Entanglement, nodeIn } from '../../../src/api/shared-view.ts'
import { type ApiState, difference } from '../../../src/api/state.ts'
import { applyEvents, EMPTY_SNAPSHOT, type NodeInfo, type SourceEvent } from '../../../src/model/snapshot.ts'
import { ip } from '../../support/addresses.ts'
import { messageIn } from '../../support/api/states.ts'
import { runs } from '../../support/runs.ts'
import { endpoint, type Fields, OPTIONS, service, slice } from '../model/objects.ts'
import { detailed, viewOf } from './views.ts'

const NAMES = ['n1', 'n2', 'n3'] as const
const name = fc.constantFrom('a', 'b', 'c')
const policy = fc.constantFrom('Cluster', 'Local')
/** Some are addresses of nodes, or of their pods. */
const external = fc.constantFrom('192.168.0.1', '10.2.0.9', '203.0.113.6')

const anyService = fc
  .record({
    name,
    clusterIP: fc.constantFrom('10.96.0.1', '10.96.0.2', '10.96.0.3'),
    externalIPs: fc.array(external, { maxLength: 1 }),
    balanced: fc.array(external, { maxLength: 1 }),
    nodePort: fc.constantFrom(0, 80, 30_080),
    policies: fc.tuple(policy, policy),
    ranges: fc.constantFrom([], ['192.168.0.1/32']),
  })
  .map(({ balanced, policies, nodePort, ranges, ...its }) =>
    service(
      its.name,
      {
        type: 'LoadBalancer',
        clusterIP: its.clusterIP,
        externalIPs: its.externalIPs,
        loadBalancerSourceRanges: ranges,
        internalTrafficPolicy: policies[0],
        externalTrafficPolicy: policies[1],
        ports: [{ name: 'x', port: 80, nodePort }],
      },
      { status: { loadBalancer: { ingress: balanced.map(address => ({ ip: address })) } } },
    ),
  )

const anyEndpoint = fc
  .record({
    address: fc.constantFrom('10.1.0.1', '10.1.0.2', '10.1.0.3', '10.1.0.4'),
    ready: fc.boolean(),
    nodeName: fc.constantFrom(...NAMES, undefined),
    zones: fc.subarray(['z1', 'z2'], { minLength: 1 }),
    nodes: fc.subarray([...NAMES], { minLength: 1, maxLength: 2 }),
    isHinted: fc.constantFrom(true, true, true, false),
  })
  .map(({ address, ready, nodeName, zones, nodes, isHinted }) =>
    endpoint(address, {
      nodeName,
      conditions: { ready, serving: true, terminating: !ready },
      ...(isHinted
        ? { hints: { forZones: zones.map(name => ({ name })), forNodes: nodes.map(name => ({ name })) } }
        : {}),
    }),
  )

const anySlice = fc
  .record({
    name: fc.constantFrom('s1', 's2', 's3'),
    to: name,
    endpoints: fc.array(anyEndpoint, { minLength: 1, maxLength: 4 }),
  })
  .map(its => slice(its.name, its.to, its.endpoints, { ports: [{ name: 'x', port: 80 }] }))

/** The API server answers at an address that Services may want. */
const apiSlice = slice('kubernetes', 'kubernetes', [endpoint('203.0.113.6')], {
  metadata: {
    namespace: 'default',
    name: 'kubernetes',
    labels: { 'kubernetes.io/service-name': 'kubernetes' },
  },
  ports: [{ name: 'https', port: 80 }],
})

const anyEvent: fc.Arbitrary<SourceEvent> = fc.oneof(
  { weight: 4, arbitrary: anyService.map(detailed) },
  { weight: 6, arbitrary: anySlice.map(detailed) },
  { weight: 2, arbitrary: fc.constant(detailed(apiSlice)) },
  {
    weight: 1,
    arbitrary: name.map(key => ({ kind: 'Service', key: `ns/${key}`, value: undefined }) as const),
  },
  {
    weight: 1,
    arbitrary: fc
      .constantFrom('s1', 's2')
      .map(key => ({ kind: 'EndpointSlice', key: `ns/${key}`, value: undefined }) as const),
  },
)

/** Objects that change, and a node that moves to a zone, or gets other addresses. */
const anyStep = fc.record({
  events: fc.array(anyEvent, { maxLength: 3 }),
  moves: fc.option(
    fc.record({
      node: fc.constantFrom(...NAMES),
      zone: fc.constantFrom('', 'z1', 'z2'),
      ips: fc.constantFrom([], ['192.168.0.1'], ['192.168.0.2']),
      podCidrs: fc.constantFrom(0, 1),
    }),
    { nil: undefined },
  ),
})

const AT_ONCE = { sliceMs: Number.POSITIVE_INFINITY, nowMs: () => 0, breathe: () => Promise.resolve() }

/** The point of view of one node, beside those of others that share with it. */
class Shared {
  readonly #shared = new Map<string, SharedState>()
  readonly #nodes = new Map<string, NodeState>(
    NAMES.map(nodeName => [nodeName, new NodeState({ ...OPTIONS, nodeName })]),
  )
  readonly #entanglements = new Map<NodeInfo, Entanglement>()
  snapshot = EMPTY_SNAPSHOT

  take(events: Iterable<SourceEvent>): void {
    this.snapshot = applyEvents(this.snapshot, events)
  }

  async stateOf(node: NodeInfo): Promise<ApiState | undefined> {
    const zone = await this.#of(`zone ${node.zone}`, nodeIn(node.zone))
    const resolved = zone.step?.now.resolved
    const entanglement = this.#entanglements.get(node) ?? new Entanglement(node)
    this.#entanglements.set(node, entanglement)
    const isAlone = resolved !== undefined && entanglement.in(resolved)
    const { step } = isAlone ? await this.#of(`node ${JSON.stringify(node)}`, node) : zone
    const its = this.#nodes.get(node.name)
    if (step !== undefined) await its?.next(step, node, AT_ONCE)
    return its?.state
  }

  async #of(key: string, node: NodeInfo): Promise<SharedState> {
    const [lender] = this.#shared.values()
    const shared = this.#shared.get(key) ?? new SharedState(OPTIONS, node, lender)
    this.#shared.set(key, shared)
    await shared.next(this.snapshot, AT_ONCE)
    return shared
  }
}

type Content = ReadonlyMap<string, string>

/** A back end that is told of differences alone. */
function applied(
  before: Map<string, string>,
  operations: ReturnType<typeof difference>,
): Map<string, string> {
  for (const operation of operations)
    if (operation.kind === 'delete')
      expect(before.delete(`${operation.set} ${operation.path}`), operation.path).toBe(true)
    else before.set(`${operation.set} ${operation.object.path}`, messageIn(operation.object).toString('hex'))
  return before
}

const sorted = (content: Content): object => [...content].sort(([a], [b]) => (a < b ? -1 : 1))

describe('the state of a node that shares with others of its zone', () => {
  it('is what the node publishes itself, wherever it moves, whole and as differences', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(anyStep, { minLength: 1, maxLength: 14 }), async steps => {
        const shared = new Shared()
        const infos = new Map<string, NodeInfo>(
          NAMES.map(node => [
            node,
            { ...nodeIn('z1'), name: node, ips: node === 'n1' ? [ip('192.168.0.1')] : [] },
          ]),
        )
        const feeds = new Map<string, ApiFeed>(
          NAMES.map(node => [node, new ApiFeed({ clock: { nowMs: () => 0 }, source: () => undefined })]),
        )
        const told = new Map<string, Map<string, string>>(NAMES.map(node => [node, new Map()]))
        const held = new Map<string, ApiState>()
        for (const [at, { events, moves }] of steps.entries()) {
          shared.take(events)
          const info = moves && infos.get(moves.node)
          if (info !== undefined && moves !== undefined)
            infos.set(moves.node, {
              ...info,
              zone: moves.zone,
              ips: moves.ips.map(ip),
              podCidrs: moves.podCidrs === 0 ? [] : [{ ip: ip('10.2.0.0'), bits: 24 }],
            })
          for (const [node, its] of infos) {
            // This node is asked for at some steps only.
            if (node === 'n3' && at % 3 !== 0) continue
            const state = await shared.stateOf(its)
            const feed = feeds.get(node)
            const content = told.get(node)
            if (state === undefined || feed === undefined || content === undefined) continue
            feed.offer(state)
            const wanted = viewOf({ ...shared.snapshot, node: its }, { nodeName: node })
            const whole = sorted(applied(new Map(), difference(undefined, state)))
            expect(whole).toEqual(sorted(applied(new Map(), difference(undefined, wanted))))
            if (node === 'n2' && at % 2 !== 0) continue
            const from = held.get(node)
            expect(sorted(applied(content, difference(from, state)))).toEqual(whole)
            feed.hold(state)
            if (from !== undefined) feed.release(from)
            held.set(node, state)
          }
        }
      }),
      { numRuns: runs(500) },
    )
  })

  it('reads the addresses of Services that have changed alone', async () => {
    const many = Array.from({ length: 100 }, (_, index) =>
      balanced(`s${index}`, `203.0.113.${index}`, { clusterIP: `10.96.1.${index}` }),
    )
    let reads = 0
    const pods = [{ ip: ip('10.2.0.0'), bits: 24 }]
    const podCidrs = Object.assign([...pods], {
      [Symbol.iterator]: () => {
        reads++
        return pods[Symbol.iterator]()
      },
    })
    const node = { ...nodeIn('z1'), name: 'n1', podCidrs }
    const shared = new Shared()
    const readsOf = async (objects: readonly Fields[]): Promise<number> => {
      reads = 0
      shared.take(objects.map(detailed))
      await shared.stateOf(node)
      return reads
    }
    expect(await readsOf(many)).toBe(100)
    expect(await readsOf([balanced('s3', '203.0.113.200', { clusterIP: '10.96.1.3' })])).toBe(1)
    expect(await readsOf([service('other', { clusterIP: '10.96.2.1' })])).toBe(0)
  })

  const balanced = (name: string, address: string, spec: Fields = {}): Fields =>
    service(
      name,
      { type: 'LoadBalancer', clusterIP: '10.96.0.2', ...spec },
      { status: { loadBalancer: { ingress: [{ ip: address }] } } },
    )

  it.each([
    [
      'the number of a port is the node port of another Service, at an address of the node',
      [
        service('a', { type: 'NodePort', ports: [{ port: 443, nodePort: 80 }] }),
        balanced('b', '192.168.0.1'),
      ],
    ],
    [
      'the API server answers at the address, and the source ranges include the node',
      [
        apiSlice,
        balanced('b', '203.0.113.6', { loadBalancerSourceRanges: ['192.168.0.1/32'] }),
        slice('s', 'b', [endpoint('10.1.0.1')]),
      ],
    ],
  ])('differs where %s', async (_, objects) => {
    const node = { ...nodeIn('z1'), name: 'n1', ips: [ip('192.168.0.1')] }
    const shared = new Shared()
    shared.take(objects.map(detailed))
    const [its, other] = [node, { ...node, ips: [] }].map(each =>
      viewOf({ ...shared.snapshot, node: each }, { nodeName: 'n1' }),
    )
    const state = await shared.stateOf(node)
    const contentOf = (of: ApiState | undefined): object =>
      of === undefined ? {} : sorted(applied(new Map(), difference(undefined, of)))
    expect(contentOf(state)).toEqual(contentOf(its))
    expect(contentOf(state)).not.toEqual(contentOf(other))
  })
})
