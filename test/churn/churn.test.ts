import { afterEach, beforeEach, expect, test } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { cpuMs } from '../bench-cluster/cost.ts'
import { Cluster } from '../faults/cluster.ts'
import { descriptorsOf, memoryOf } from '../faults/cluster-process.ts'
import { drive, replacements } from '../support/apiserver/churn.ts'
import { clusterOf, type Placed } from '../support/apiserver/generator.ts'
import { createRandom } from '../support/apiserver/random.ts'
import type { Servers, TrafficClient } from '../support/lab/traffic.ts'
import { PodAddresses, UdpPeer } from './pods.ts'
import { POD_PORT, Rotation, rotatedService, SERVICE_PORT } from './rotation.ts'

/* Endpoints come and go a hundred times a second, clients open connections and ask by datagrams, and none of them fails. */

const SECONDS = Number(process.env.KPROBE_CHURN_SECONDS ?? '300')
const PER_SECOND = 100
const CHANGES_MIN = PER_SECOND * SECONDS * 0.8
const BACKGROUND = { services: 1_000, endpointsPerService: 10, nodes: 3 }
/** Of five changes one is of a Service that is being used. */
const EVERY = 5
const TCP_SERVICES = 4
const UDP_SERVICES = 2
const TCP_RATE = 30
const UDP_RATE = 20
const SAMPLE_MS = 1_000
const DESCRIPTORS_MORE_MAX = 5
/** Beyond what the beginning of a run took, which a heap may grow by without a leak. */
const MEMORY_MORE_MAX = 32 << 20

const cluster = Cluster.ofEachTest()
let addresses: PodAddresses
let tcpServers: Servers
let udpServers: UdpPeer

beforeEach(() => cluster.open({ packets: true, server: { relay: false } }))

afterEach(async () => {
  await udpServers?.stop()
  await tcpServers?.close()
  await addresses?.close()
})

test(`${PER_SECOND} endpoint changes a second for ${SECONDS} s, and no request fails`, async () => {
  const rotations = await openServices()
  for (const { resource, object } of clusterOf(BACKGROUND)) cluster.server.store.create(resource, object)
  const daemon = await cluster.running()
  await cluster.converged()
  const clients = startClients(rotations)
  const cpuBefore = cpuMs(daemon.daemonPid)
  const began = performance.now()
  const { changes, samples } = await churn(rotations, daemon.daemonPid)
  const tookMs = performance.now() - began
  const cpu = cpuMs(daemon.daemonPid) - cpuBefore
  const seen = await clients.stop()
  const memory = growth(samples)
  console.log(
    [
      `${changes} changes in ${(tookMs / 1_000).toFixed(0)} s, ${((cpu / tookMs) * 100).toFixed(1)} % of a processor`,
      `TCP: ${seen.tcp.ok} connections, slowest ${seen.tcp.slowestMs} ms, ${seen.tcp.failed} failed`,
      `UDP: ${seen.udp.ok} requests, ${seen.udp.again} asked again, ${seen.udp.failed} failed`,
      `passing endpoints that served: ${seen.passing}`,
      `memory ${memory.firstMiB.toFixed(0)} to ${memory.lastMiB.toFixed(0)} MiB, ${memory.slopeMiBPerHour.toFixed(1)} MiB/h`,
      `descriptors ${samples.at(0)?.descriptors} to ${samples.at(-1)?.descriptors}`,
    ].join('\n'),
  )
  expect(seen.tcp.failed).toBe(0)
  expect(seen.udp.failed).toBe(0)
  expect(seen.tcp.ok).toBeGreaterThan(TCP_SERVICES * TCP_RATE * SECONDS * 0.5)
  expect(seen.udp.ok).toBeGreaterThan(UDP_SERVICES * UDP_RATE * SECONDS * 0.5)
  expect(seen.passing).toBeGreaterThan(rotations.length)
  const [first] = samples
  for (const { descriptors } of samples)
    expect(descriptors).toBeLessThanOrEqual((first?.descriptors ?? 0) + DESCRIPTORS_MORE_MAX)
  expect((memory.lastMiB - memory.firstMiB) * 2 ** 20).toBeLessThan(MEMORY_MORE_MAX)
  await cluster.converged()
})

async function openServices(): Promise<readonly Rotation[]> {
  const services = Array.from({ length: TCP_SERVICES + UDP_SERVICES }, (_, index) =>
    rotatedService(index, index < TCP_SERVICES ? 'TCP' : 'UDP'),
  )
  const pods = services.flatMap(({ protocol, lasting, passing }) =>
    [...lasting, ...passing].map(address => ({ protocol, address, name: `${address}:${POD_PORT}` })),
  )
  const named = (protocol: string): readonly string[] =>
    pods.filter(pod => pod.protocol === protocol).map(({ name }) => name)
  const { topology } = cluster.lab
  // Makes the way back to the clients, and the addresses of its own.
  tcpServers = await cluster.lab.servers([...named('TCP'), ...named('UDP')])
  udpServers = await UdpPeer.serve(topology, named('UDP'))
  addresses = new PodAddresses(
    topology,
    pods.map(({ address }) => address),
  )
  const random = createRandom(7)
  const rotations = services.map(service => new Rotation(service, addresses, random.fork()))
  for (const rotation of rotations) cluster.put(rotation.serviceObject(), rotation.sliceObject())
  return rotations
}

interface Seen {
  readonly tcp: { ok: number; failed: number; slowestMs: number }
  readonly udp: { ok: number; again: number; failed: number }
  passing: number
}

function startClients(rotations: readonly Rotation[]): { stop(): Promise<Seen> } {
  const { topology } = cluster.lab
  const tcp: TrafficClient[] = []
  const udp: UdpPeer[] = []
  for (const [index, { service }] of rotations.entries()) {
    const { address, protocol } = service
    if (protocol === 'TCP') {
      const to = { destination: address, port: SERVICE_PORT, rate: TCP_RATE / 2 }
      tcp.push(cluster.lab.client({ from: 'outside', source: `203.0.113.${10 + index}`, ...to }))
      tcp.push(cluster.lab.client({ from: 'node', source: '192.168.0.2', ...to }))
    } else {
      const to = { address, port: SERVICE_PORT, rate: UDP_RATE / 2 }
      udp.push(UdpPeer.ask(topology, { kind: 'fresh', ...to }))
      udp.push(UdpPeer.ask(topology, { kind: 'sticky', ...to }))
    }
  }
  const isPassing = new Set(rotations.flatMap(({ service }) => service.passing))
  return {
    async stop() {
      const seen: Seen = {
        tcp: { ok: 0, failed: 0, slowestMs: 0 },
        udp: { ok: 0, again: 0, failed: 0 },
        passing: 0,
      }
      const met = new Set<string>()
      for (const report of await Promise.all(tcp.map(client => client.stop()))) {
        seen.tcp.ok += report.ok
        seen.tcp.failed += report.refused + report.timeouts + report.other
        seen.tcp.slowestMs = Math.max(seen.tcp.slowestMs, report.slowestMs)
        for (const endpoint of report.endpoints.keys()) met.add(endpoint)
      }
      for (const report of await Promise.all(udp.map(client => client.stop()))) {
        seen.udp.ok += report.ok
        seen.udp.again += report.again
        seen.udp.failed += report.failed
        for (const endpoint of Object.keys(report.endpoints)) met.add(endpoint)
      }
      seen.passing = [...met].filter(endpoint => isPassing.has(endpoint.split(':')[0] ?? '')).length
      return seen
    },
  }
}

interface Sample {
  readonly atMs: number
  readonly bytes: number
  readonly descriptors: number
}

async function churn(rotations: readonly Rotation[], pid: number) {
  const samples: Sample[] = []
  let changes = 0
  const options = { store: cluster.server.store, clock: systemClock, perSecond: PER_SECOND }
  const stop = drive(mixed(rotations), { ...options, made: () => changes++ })
  const end = performance.now() + SECONDS * 1_000
  // A machine that is busy with other things takes longer to make them.
  while (performance.now() < end || changes < CHANGES_MIN) {
    await new Promise(resolve => setTimeout(resolve, SAMPLE_MS))
    samples.push({ atMs: performance.now(), bytes: memoryOf(pid), descriptors: descriptorsOf(pid) })
  }
  stop()
  return { changes, samples }
}

/** Of the Services that are used by turns, and of all others at random in between. */
function* mixed(rotations: readonly Rotation[]): Generator<Placed, undefined> {
  const others = replacements({ shape: BACKGROUND, random: createRandom(3) })
  for (let count = 0; ; count++) {
    const nowMs = performance.now()
    for (const rotation of rotations) rotation.pass(nowMs)
    const rotation = rotations[Math.floor(count / EVERY) % rotations.length]
    if (count % EVERY === 0 && rotation?.step(nowMs) === true) {
      yield { resource: 'endpointslices', object: rotation.sliceObject() }
    } else {
      const next = others.next()
      if (next.done !== true) yield next.value
    }
  }
}

/** Of the time after the first fifth: a heap finds its size first. */
function growth(samples: readonly Sample[]) {
  const later = samples.slice(Math.floor(samples.length / 5))
  const mean = (values: readonly number[]): number =>
    values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length)
  const third = Math.ceil(later.length / 3)
  const atMs = mean(later.map(sample => sample.atMs))
  const bytes = mean(later.map(sample => sample.bytes))
  const covariance = mean(later.map(sample => (sample.atMs - atMs) * (sample.bytes - bytes)))
  const variance = mean(later.map(sample => (sample.atMs - atMs) ** 2))
  return {
    firstMiB: mean(later.slice(0, third).map(sample => sample.bytes)) / 2 ** 20,
    lastMiB: mean(later.slice(-third).map(sample => sample.bytes)) / 2 ** 20,
    slopeMiBPerHour: ((covariance / Math.max(1, variance)) * 3_600_000) / 2 ** 20,
  }
}
