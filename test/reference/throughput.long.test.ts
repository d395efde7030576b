import { afterAll, beforeAll, expect, test } from 'vitest'
import { cpuMs } from '../bench-cluster/cost.ts'
import { freshAddress, namespaces, SERVICE_CIDR, serviceOf, sliceOf } from '../bench-cluster/objects.ts'
import { differences } from '../faults/kernel.ts'
import { Daemons } from '../support/daemon.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { ip } from '../support/lab/topology.ts'
import { eventually, patientMs } from '../support/patience.ts'
import type { KubeObject } from '../support/reference/api.ts'
import { ControlPlane } from '../support/reference/control-plane.ts'
import { LAB_NODE, namespaceObject } from '../support/reference/lab-node.ts'
import { Forwarder } from '../support/reference/relay.ts'

/* As many changes of endpoints as a real API server takes from us, one after the other over eight connections. */

const SIZE = { services: 200, endpoints: 10 }
const SECONDS = 15
/** The lists of everything, read by a test that shares its processors with all the rest. */
const LAG_MAX_MS = 10_000

const daemons = new Daemons()
let plane: ControlPlane
let relay: Forwarder

beforeAll(async () => {
  plane = await ControlPlane.start({ serviceCidrs: SERVICE_CIDR })
  const { api } = plane
  await api.put(LAB_NODE)
  await api.each(namespaces(), name => api.put(namespaceObject(name)))
  await api.each(indexes(SIZE.services), async index => {
    await api.create(serviceOf(index))
    await api.create(sliceOf(index, SIZE))
  })
  freshNetns()
  ip(['link set lo up'])
  relay = await Forwarder.start({ listen: { port: plane.port }, dial: plane.way })
})

afterAll(async () => {
  await daemons.end()
  await relay?.close()
  await plane?.stop()
})

test('the kernel keeps up with every change that the API server accepts', async () => {
  const daemon = await daemons.running({ source: { kind: 'kube', kubeconfig: plane.kubeconfig('proxy') } })
  const cpuBefore = cpuMs(daemon.daemonPid)
  const bytesBefore = relay.receivedBytes
  const began = performance.now()
  const changes = await replaceEndpoints(SECONDS * 1_000)
  const tookMs = performance.now() - began
  const lagMs = await eventually(async () => (await differences(await objects())).length === 0, 60_000)
  const cpu = cpuMs(daemon.daemonPid) - cpuBefore
  const bytes = relay.receivedBytes - bytesBefore
  console.log(
    `${changes} changes in ${(tookMs / 1_000).toFixed(1)} s, ${((changes / tookMs) * 1_000).toFixed(0)}/s: ` +
      `${(cpu / changes).toFixed(2)} ms of a processor and ${(bytes / changes).toFixed(0)} bytes each; ` +
      `all of it seen in the kernel ${lagMs.toFixed(0)} ms after the last`,
  )
  expect(changes).toBeGreaterThan(0)
  expect(lagMs).toBeLessThan(patientMs(LAG_MAX_MS))
  await daemon.caughtUp()
  expect(daemon.records.filter(({ level }) => level === 'error')).toEqual([])
})

/** Gives how many there were. */
async function replaceEndpoints(durationMs: number): Promise<number> {
  const end = performance.now() + durationMs
  let changes = 0
  function* turns(): IterableIterator<number> {
    while (performance.now() < end) yield changes++
  }
  await plane.api.each(turns(), change => {
    const slice = sliceOf((change * 7_919) % SIZE.services, SIZE, freshAddress(change))
    return plane.api.patch(slice, { endpoints: slice.endpoints })
  })
  return changes
}

/** What the daemon should know of. */
async function objects(): Promise<readonly KubeObject[]> {
  const lists = await Promise.all([
    plane.api.list('v1', 'Service'),
    plane.api.list('discovery.k8s.io/v1', 'EndpointSlice'),
    plane.api.list('networking.k8s.io/v1', 'ServiceCIDR'),
    plane.api.list('v1', 'Node'),
  ])
  return lists.flat()
}

function indexes(count: number): readonly number[] {
  return Array.from({ length: count }, (_, index) => index)
}
