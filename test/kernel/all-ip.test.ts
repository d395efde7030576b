import { execFileSync } from 'node:child_process'
import { copyFileSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest'
import { ALL_IP, BackEnd } from '../support/back-end.ts'
import { type Daemon, Daemons } from '../support/daemon.ts'
import { type Flow, Lab, type Outcome } from '../support/lab/lab.ts'
import { inNamespace } from '../support/lab/topology.ts'

/** Of service.yaml and endpoints.yaml. */
const EXTERNAL = ['198.51.100.10', '2001:db8:100::10'] as const
const HERE = ['10.244.1.10', 'fd00:10::1:10'] as const
const ELSEWHERE = ['10.244.0.10', 'fd00:10::10'] as const
const OUTSIDE = ['203.0.113.5', '2001:db8:f::5'] as const
const POD = ['10.244.1.77', 'fd00:10::1:77'] as const
const NODE = ['192.168.0.2', '2001:db8::2'] as const
const FAMILIES = [0, 1] as const
const CLUSTER_IP = '10.96.0.7'

let lab: Lab
let allIp: BackEnd
let kprobe: Daemon
let folder: string
const daemons = new Daemons()

beforeAll(async () => {
  lab = await Lab.start()
  folder = daemons.folder()
  for (const file of ['service.yaml', 'endpoints.yaml']) copyFileSync(join(ALL_IP, file), join(folder, file))
  write('web.json', web('10.244.1.20'))
  kprobe = daemons.start({
    source: folder,
    args: ['--proxy-mode=nftables', '--hostname-override=example-node'],
  })
  allIp = startAllIp()
  await Promise.all([kprobe.synced(), allIp.says('sync complete')])
})

afterAll(async () => {
  await allIp.stop()
  await daemons.end()
  await lab.close()
})

function startAllIp(): BackEnd {
  const env = { NODE_NAME: 'example-node' }
  return new BackEnd({ script: join(ALL_IP, 'all-ip.mjs'), args: ['all-ip', folder], env })
}

function write(file: string, text: string): void {
  writeFileSync(join(folder, `${file}.new`), text)
  renameSync(join(folder, `${file}.new`), join(folder, file))
}

/** A Service of kprobe's own, with an external address, too. */
function web(endpoint: string): string {
  const metadata = { namespace: 'default', name: 'web' }
  const spec = {
    clusterIP: CLUSTER_IP,
    clusterIPs: [CLUSTER_IP],
    externalIPs: ['198.51.100.20'],
    ipFamilies: ['IPv4'],
    ports: [{ port: 80 }],
  }
  const slice = {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: { ...metadata, name: 'web-a', labels: { 'kubernetes.io/service-name': 'web' } },
    addressType: 'IPv4',
    endpoints: [{ addresses: [endpoint], nodeName: 'example-node' }],
    ports: [{ name: '', port: 8080 }],
  }
  const items = [{ apiVersion: 'v1', kind: 'Service', metadata, spec }, slice]
  return JSON.stringify({ apiVersion: 'v1', kind: 'List', items })
}

function tables(name: string): string {
  return ['ip', 'ip6'].map(family => nft('-s', 'list', 'table', family, name)).join('')
}

function nft(...words: string[]): string {
  return execFileSync('nft', words, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] })
}

const PROTOCOLS = ['TCP', 'UDP', 'SCTP'] as const
const PORTS = [1, 80, 53, 6000, 65535]

async function arrivals(flow: Flow): Promise<Pick<Outcome, 'verdict' | 'endpoints' | 'sources'>> {
  const [outcome] = await lab.trace([{ ...flow, tries: 5 }])
  const { verdict, endpoints, sources } = outcome as Outcome
  return { verdict, endpoints, sources }
}

function at(address: string, port: number): string {
  return address.includes(':') ? `[${address}]:${port}` : `${address}:${port}`
}

test('every port of TCP, UDP and SCTP goes to the endpoint of this node, from wherever, with its source', async () => {
  const places = [
    { from: 'outside', sources: OUTSIDE },
    { from: 'pod', sources: POD },
    { from: 'node', sources: NODE },
  ] as const
  const flows = places.flatMap(({ from, sources }) =>
    FAMILIES.flatMap(family =>
      PROTOCOLS.flatMap(protocol =>
        PORTS.map(port => ({
          flow: { from, source: sources[family], protocol, destination: EXTERNAL[family], port, tries: 3 },
          endpoint: at(HERE[family], port),
        })),
      ),
    ),
  )
  const outcomes = await lab.trace(flows.map(({ flow }) => flow))
  expect(outcomes).toHaveLength(3 * 2 * 3 * 5)
  for (const [index, outcome] of outcomes.entries()) {
    const { flow, endpoint } = flows[index] as (typeof flows)[number]
    expect(outcome, JSON.stringify(flow)).toMatchObject({ verdict: 'DNAT', badChecksums: 0 })
    expect([...outcome.endpoints]).toEqual([[endpoint, 3]])
    expect([...outcome.sources]).toEqual([flow.source])
  }
})

test('an endpoint that connects to its own external address is masqueraded', async () => {
  for (const family of FAMILIES) {
    const [source, destination] = [HERE[family], EXTERNAL[family]]
    const { endpoints, sources } = await arrivals({
      from: 'pod',
      source,
      protocol: 'TCP',
      destination,
      port: 443,
    })
    expect([...endpoints.keys()]).toEqual([at(source, 443)])
    expect([...sources]).toEqual([family === 0 ? '10.255.255.254' : 'fd00:10::fffe'])
  }
})

test('connections and ICMP echo are answered', async () => {
  const servers = await lab.servers(HERE.map(address => at(address, 7000)))
  onTestFinished(() => servers.close())
  for (const family of FAMILIES) {
    const [source, destination] = [OUTSIDE[family], EXTERNAL[family]]
    const client = lab.client({ from: 'outside', source, destination, port: 7000, rate: 100 })
    await expect.poll(async () => (await client.report()).ok).toBeGreaterThan(10)
    const report = await client.stop()
    expect(report).toMatchObject({ refused: 0, timeouts: 0, other: 0 })
    expect([...report.endpoints.keys()]).toEqual([at(HERE[family], 7000)])
    const words = ['busybox', 'ping', family === 0 ? '-4' : '-6', '-c', '3', '-i', '0.2', '-W', '5']
    const answers = inNamespace(lab.topology.outside.pid, [...words, '-I', source, destination])
    expect(answers).toContain('3 packets transmitted, 3 packets received')
    expect(answers).toContain(`from ${destination}`)
  }
  // Without the proxy nobody would answer: the endpoint has no such address.
  const nobody = ['busybox', 'ping', '-c', '1', '-W', '1', '198.51.100.11']
  expect(() => inNamespace(lab.topology.outside.pid, nobody)).toThrow()
})

test("a running kprobe's Services are served beside it, and neither touches the other's tables", async () => {
  const reach = (destination: string) =>
    arrivals({ from: 'outside', source: OUTSIDE[0], protocol: 'TCP', destination, port: 80 })
  expect([...(await reach('198.51.100.20')).endpoints.keys()]).toEqual(['10.244.1.20:8080'])
  const before = { allIp: tables('all-ip'), kprobe: tables('kube-proxy') }
  expect(before.kprobe).not.toContain(EXTERNAL[0])
  expect(before.allIp).not.toContain('198.51.100.20')
  write('web.json', web('10.244.1.21'))
  await expect
    .poll(async () => [...(await reach('198.51.100.20')).endpoints.keys()])
    .toEqual(['10.244.1.21:8080'])
  expect(tables('all-ip')).toBe(before.allIp)
  const changed = tables('kube-proxy')
  const slices = readFileSync(join(folder, 'endpoints.yaml'), 'utf8')
  write('endpoints.yaml', slices.replaceAll('nodeName: example-node', 'nodeName: gone-node'))
  const gateway = { from: 'outside', protocol: 'UDP', port: 53 } as const
  for (const family of FAMILIES) {
    const flow = { ...gateway, source: OUTSIDE[family], destination: EXTERNAL[family] }
    await expect
      .poll(async () => [...(await arrivals(flow)).endpoints.keys()])
      .toEqual([at(ELSEWHERE[family], 53)])
    // From another node answers would not come back here.
    expect([...(await arrivals(flow)).sources]).toEqual([family === 0 ? '10.255.255.254' : 'fd00:10::fffe'])
  }
  expect(tables('kube-proxy')).toBe(changed)
  write('endpoints.yaml', slices)
  await expect.poll(() => tables('all-ip')).toBe(before.allIp)
  await kprobe.caughtUp()
  expect(kprobe.said('repaired')).toEqual([])
  expect(allIp.said).not.toContain('another program')
})

test('what others do to its tables is repaired; a restart writes nothing', async () => {
  const before = tables('all-ip')
  nft('flush', 'chain', 'ip', 'all-ip', 'prerouting')
  nft('delete', 'table', 'ip6', 'all-ip')
  await expect.poll(() => tables('all-ip')).toBe(before)
  await allIp.says('repaired changes of another program')
  expect(await allIp.stop()).toBe(0)
  const handles = nft('-a', 'list', 'table', 'ip', 'all-ip')
  allIp = startAllIp()
  await allIp.says('sync complete')
  expect(nft('-a', 'list', 'table', 'ip', 'all-ip')).toBe(handles)
})

test('a second one of the same name does not start', async () => {
  const second = startAllIp()
  await expect(second.says('sync complete')).rejects.toThrow('runs the plane all-ip')
  expect(await second.stop()).toBe(1)
})
