import { execFileSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { expect, it, onTestFinished } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { parseIp } from '../../src/base/ip.ts'
import { type ConntrackClient, createConntrackClient } from '../../src/kernel/conntrack/client.ts'
import type { Flow } from '../../src/kernel/conntrack/flow.ts'
import { inNamespace, type Topology } from '../support/lab/topology.ts'
import { startClient, type TrafficClient, type TrafficReport } from '../support/lab/traffic.ts'
import { serviceOf, sliceOf } from '../support/objects.ts'
import { eventually, patientMs } from '../support/patience.ts'
import { entry, inject } from '../unit/kernel/conntrack/flows.ts'
import { Cluster } from './cluster.ts'
import { frontendNames, openNetfilter } from './kernel.ts'
import { nameOf, service, services } from './objects.ts'
import { CLIENT, NODE, NODE_PORT, nodePorted, POD, VIP } from './web.ts'

const cluster = Cluster.ofEachTest()

const CONNECTS = 20_000
/** So that each port is used several times. */
const PORTS = '20000 23999'

it('F81: 20,000 connections from one source, masqueraded or to their own pod, fail no more than untranslated ones', async () => {
  await cluster.open({ packets: true })
  const { lab } = cluster
  const { topology } = lab
  const servers = await lab.servers([`${POD}:8080`])
  onTestFinished(() => servers.close())
  for (const { pid } of [topology.outside, topology.pods])
    inNamespace(pid, ['sysctl', '-qw', `net.ipv4.ip_local_port_range=${PORTS}`])
  const fromPods = { ...topology, outside: topology.pods }
  const bare = await connects(topology, { source: CLIENT, destination: POD, port: 8080 })
  cluster.put(nodePorted, sliceOf('web', [POD]))
  await cluster.running()
  const nodePort = await connects(topology, { source: CLIENT, destination: NODE, port: NODE_PORT })
  const hairpin = await connects(fromPods, { source: POD, destination: VIP, port: 80 })
  for (const report of [nodePort, hairpin]) {
    expect(failures(report)).toBeLessThanOrEqual(failures(bare) + CONNECTS / 10_000)
    expect([...report.endpoints.keys()]).toEqual([`${POD}:8080`])
  }
})

async function connects(
  topology: Topology,
  to: { readonly source: string; readonly destination: string; readonly port: number },
): Promise<TrafficReport> {
  const client = startClient(topology, { from: 'outside', ...to, rate: 4_000 })
  await eventually(async () => {
    const report = await client.report()
    return report.ok + failures(report) >= CONNECTS
  })
  return await client.stop()
}

function failures({ refused, timeouts, other }: TrafficReport): number {
  return refused + timeouts + other
}

/** More than the sets of a small cluster are declared for. */
const MANY = 5_000
const STICKY = '172.30.0.81'
/** Clients with an affinity each; all kept by chance, of four endpoints, is out of the question. */
const SOURCES = ['203.0.113.5', '203.0.113.6', '203.0.113.7', '203.0.113.8']

it('F87: a layout that changes and changes back under traffic fails no request, keeps affinity and leaves nothing', async () => {
  await cluster.open({ packets: true })
  const pods = [POD, '10.180.0.2', '10.180.0.3', '10.180.0.4']
  const servers = await cluster.lab.servers(pods.map(pod => `${pod}:8080`))
  onTestFinished(() => servers.close())
  cluster.put(nodePorted, sliceOf('web', pods))
  cluster.put(serviceOf('sticky', STICKY, { sessionAffinity: 'ClientIP' }), sliceOf('sticky', pods))
  const old = await cluster.running()
  const [tables, counted] = [nftTables(), hasCounters()]
  const { lab } = cluster
  const sticky = SOURCES.map(source =>
    lab.client({ from: 'outside', source, destination: STICKY, port: 80, rate: 100 }),
  )
  const plain = lab.client({ from: 'node', source: NODE, destination: VIP, port: 80, rate: 200 })
  await Promise.all([...sticky, plain].map(client => served(client)))
  await old.stop()
  const newer = await cluster.running({ args: ['--connection-metrics-max=1000'] })
  expect([counted, hasCounters()]).toEqual([false, true])
  // Sets are outgrown and made anew.
  const size = sizeOf('frontends')
  const many = services(MANY).slice(400)
  cluster.put(...many)
  await eventually(() => frontendNames().has(nameOf(MANY - 1)))
  expect(sizeOf('frontends')).toBeGreaterThan(size)
  cluster.remove(...many)
  await newer.stop()
  await cluster.running()
  await cluster.converged()
  expect([nftTables(), hasCounters()]).toEqual([tables, false])
  const reports = await Promise.all([plain, ...sticky].map(client => client.stop()))
  expect(lab.repeatedSyns()).toBe(0)
  for (const report of reports) {
    expect(failures(report)).toBe(0)
    expect(report.ok).toBeGreaterThan(100)
  }
  expect(reports.map(({ endpoints }) => endpoints.size)).toEqual([pods.length, ...SOURCES.map(() => 1)])
})

/** Waits until the client has been answered. */
async function served(client: TrafficClient): Promise<void> {
  await eventually(async () => (await client.report()).ok > 0)
}

/** Size that a map was declared with. */
function sizeOf(map: string): number {
  const text = execFileSync('nft', ['-t', 'list', 'map', 'ip', 'kube-proxy', map], { encoding: 'utf8' })
  return Number(/^\s*size (\d+)$/m.exec(text)?.[1])
}

function nftTables(): string {
  return execFileSync('nft', ['list', 'tables'], { encoding: 'utf8' })
}

function hasCounters(): boolean {
  return / counter packets|counter$/m.test(
    execFileSync('nft', ['list', 'map', 'ip', 'kube-proxy', 'endpoints-tcp'], { encoding: 'utf8' }),
  )
}

const ENTRIES = 200_000
const STALE = 100_000
const RSS_KIB_MAX = 64 * 1024
/** Without a cleanup it is some tens of milliseconds; others run on this machine, too. */
const SYNC_MS_MAX = 1_000
const SYNCS_MAX = 500
/** Flows of the daemon and of this test. */
const OTHERS_MAX = 100

it('F76: 200,000 flows, half of them stale, neither hold up rules nor take memory, and what is stale goes', async () => {
  await cluster.open()
  const ports = [{ name: 'dns', port: 53, protocol: 'UDP' }]
  const dnsSlice = (...pods: readonly string[]) =>
    sliceOf('dns', pods, { ports: [{ name: 'dns', port: 1053, protocol: 'UDP' }] })
  cluster.put(serviceOf('dns', '172.30.0.53', { ports }), dnsSlice(POD, '10.180.0.2'), ...services(30))
  const daemon = await cluster.running()
  const openTransport = openNetfilter
  const client = createConntrackClient({ openTransport, clock: systemClock })
  const injector = openTransport()
  onTestFinished(() => Promise.all([client.close(), injector.close()]).then(() => undefined))
  expect(inject(injector, flowsOfDns())).toBe(ENTRIES)
  expect(await answeredBy(client, POD)).toBe(STALE)
  const before = await syncMs(cluster, 40)
  const { daemonPid } = daemon
  writeFileSync(`/proc/${daemonPid}/clear_refs`, '5')
  const rss = memoryKiB(daemonPid, 'VmRSS')
  cluster.put(dnsSlice('10.180.0.2'))
  const during: number[] = []
  while (during.length < SYNCS_MAX && (await client.statistics()).entries > ENTRIES - STALE + OTHERS_MAX)
    during.push(await syncMs(cluster, 41 + during.length))
  const growth = memoryKiB(daemonPid, 'VmHWM') - rss
  const [median = 0] = during.sort((one, other) => one - other).slice(during.length >> 1)
  console.log(
    `rules took ${before.toFixed(0)} ms before, ${median.toFixed(0)} ms in most of ${during.length} changes meanwhile; ` +
      `memory grew by ${(growth / 1024).toFixed(0)} MiB`,
  )
  expect(await answeredBy(client, POD)).toBe(0)
  expect((await client.statistics()).entries).toBeGreaterThanOrEqual(ENTRIES - STALE)
  expect(during.length).toBeGreaterThan(1)
  expect(median).toBeLessThan(patientMs(SYNC_MS_MAX))
  expect(growth).toBeLessThanOrEqual(RSS_KIB_MAX)
})

function* flowsOfDns() {
  for (let n = 0; n < ENTRIES; n++) {
    const from = `10.${1 + (n >> 16)}.${(n >> 8) & 255}.${n & 255}:4000`
    yield n % 2 === 0 ? entry(from, '172.30.0.53:53', `${POD}:1053`) : entry(from, `10.97.0.${n & 255}:53`)
  }
}

/** Milliseconds until a Service that is new is in the kernel. */
async function syncMs(cluster: Cluster, number: number): Promise<number> {
  cluster.put(...service(number))
  return await eventually(() => frontendNames().has(nameOf(number)))
}

function memoryKiB(pid: number, field: 'VmRSS' | 'VmHWM'): number {
  const value = new RegExp(`^${field}:\\s+(\\d+) kB`, 'm').exec(
    readFileSync(`/proc/${pid}/status`, 'utf8'),
  )?.[1]
  return Number(value)
}

async function answeredBy(client: ConntrackClient, pod: string): Promise<number> {
  let count = 0
  const ip = parseIp(pod)
  const visit = (flow: Flow) => {
    if (flow.answerer === ip && flow.answererPort === 1053) count++
  }
  await client.dump({ family: 'IPv4', protocol: 'UDP' }, { isWanted: () => true, visit })
  return count
}
