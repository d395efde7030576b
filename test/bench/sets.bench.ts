import { type ApiProjection, NodeState, nextApiState, SharedState } from '../../src/api/next-state.ts'
import { finish } from '../../src/base/clock.ts'
import { type Resolved, resolve } from '../../src/model/resolve.ts'
import { nobodyIn } from '../../src/model/shared-view.ts'
import { applyEvents, EMPTY_SNAPSHOT, type Snapshot } from '../../src/model/snapshot.ts'
import { clusterOf, sliceOf } from '../support/apiserver/generator.ts'
import { detailed } from '../unit/api/views.ts'
import { OPTIONS } from '../unit/model/objects.ts'
import { print } from './report.ts'

/*
 * Sets of many nodes at a relay: what nodes of one zone share, and what each costs beside that; and the same nodes, each by
 * itself. The cluster has 1,000 nodes, of which some are asked for.
 */

const [SERVICES, ENDPOINTS, NODES] = [10_000, 10, 1_000]
const ASKED = [100, 1_000]
/** Of nodes by themselves a few are enough. */
const ALONE = 3
const ROUNDS = 100

const shape = { services: SERVICES, endpointsPerService: ENDPOINTS, nodes: NODES, ballast: false }
const objects = [...clusterOf(shape)].filter(({ resource }) => resource !== 'nodes')
const snapshot = applyEvents(
  EMPTY_SNAPSHOT,
  objects.map(({ object }) => detailed(object)),
)
objects.length = 0
print(
  `${SERVICES} Services with ${ENDPOINTS} endpoints each, on ${NODES} nodes; processor time, means of ${ROUNDS} changes`,
  [...ASKED.map(shared), alone()],
)

/** One Service gets other endpoints. */
function changed(before: Snapshot, round: number): Snapshot {
  const pods = Array.from({ length: ENDPOINTS }, (_, slot) => SERVICES * ENDPOINTS + round * ENDPOINTS + slot)
  return applyEvents(before, [
    detailed(sliceOf((round * 7) % SERVICES, { number: 0, nodes: NODES, pods, ballast: false })),
  ])
}

function heapMiB(): number {
  globalThis.gc?.()
  return process.memoryUsage().heapUsed / 2 ** 20 + process.memoryUsage().external / 2 ** 20
}

/** Processor time of this process, in milliseconds: others use the machine, too. */
function costOf(work: () => void): number {
  const before = process.cpuUsage()
  work()
  const { user, system } = process.cpuUsage(before)
  return (user + system) / 1_000
}

function rowOf(kind: string, nodes: number, costs: Readonly<Record<string, number>>) {
  const { zoneMs = 0, nodeMs = 0, MiB = 0, zoneUs = 0, nodeUs = 0, KiB = 0 } = costs
  return {
    nodes: `${nodes} ${kind}`,
    'first state of the zone ms': zoneMs.toFixed(0),
    'of a node ms': nodeMs.toFixed(2),
    'zone MiB': MiB.toFixed(1),
    'a node KiB': KiB.toFixed(1),
    'change: zone us': zoneUs.toFixed(0),
    'a node us': nodeUs.toFixed(2),
  }
}

function shared(nodes: number): Readonly<Record<string, string>> {
  const before = heapMiB()
  const zone = new SharedState(OPTIONS, nobodyIn('z'))
  const zoneMs = costOf(() => finish(zone.next(snapshot)))
  const withZone = heapMiB()
  const infos = Array.from({ length: nodes }, (_, index) => ({ ...nobodyIn('z'), name: `node-${index}` }))
  const views = infos.map(({ name }) => new NodeState({ ...OPTIONS, nodeName: name }))
  const follow = (): void => {
    const { step } = zone
    if (step === undefined) throw new Error('no state')
    for (const [index, view] of views.entries()) finish(view.next(step, infos[index]))
  }
  const nodesMs = costOf(follow)
  const withNodes = heapMiB()
  let [zoneUs, nodesUs] = [0, 0]
  let now = snapshot
  for (let round = 0; round < ROUNDS; round++) {
    now = changed(now, round)
    zoneUs += (costOf(() => finish(zone.next(now))) * 1_000) / ROUNDS
    nodesUs += (costOf(follow) * 1_000) / ROUNDS
  }
  return rowOf('in a zone', nodes, {
    zoneMs,
    nodeMs: nodesMs / nodes,
    MiB: withZone - before,
    KiB: ((withNodes - withZone) * 1024) / nodes,
    zoneUs,
    nodeUs: nodesUs / nodes,
  })
}

/** As `kprobe api` of each node, but with one set of objects. */
function alone(): Readonly<Record<string, string>> {
  const before = heapMiB()
  const views: { resolved: Resolved | undefined; projection: ApiProjection | undefined }[] = Array.from(
    { length: ALONE },
    () => ({ resolved: undefined, projection: undefined }),
  )
  const options = views.map((_, index) => ({ ...OPTIONS, nodeName: `node-${index}` }))
  const follow = (of: Snapshot): void => {
    for (const [index, view] of views.entries()) {
      view.resolved = finish(resolve(options[index] ?? OPTIONS, view.resolved, of))
      view.projection = finish(nextApiState(view.projection, view.resolved))
    }
  }
  const firstMs = costOf(() => follow(snapshot))
  const after = heapMiB()
  let us = 0
  let now = snapshot
  for (let round = 0; round < ROUNDS; round++) {
    now = changed(now, round)
    us += (costOf(() => follow(now)) * 1_000) / ROUNDS
  }
  return rowOf('by themselves', ALONE, {
    nodeMs: firstMs / ALONE,
    KiB: ((after - before) * 1024) / ALONE,
    nodeUs: us / ALONE,
  })
}
