import { execFileSync } from 'node:child_process'
import { renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { type Daemon, Daemons } from '../support/daemon.ts'
import { Lab } from '../support/lab/lab.ts'
import type { Servers, TrafficClient } from '../support/lab/traffic.ts'
import { CLUSTER_CIDR, NODE_NAME } from '../support/pipeline.ts'
import { Echo, Talker } from './talkers.ts'

/* docs/decisions/0015: one mode takes the other's place under traffic. */

const CLUSTER_IP = '172.30.0.41'
const VIP = '198.51.100.7'
const PODS = ['10.180.0.1', '10.180.1.1']
const RATE = 20
const STEP_MS = 120_000

let lab: Lab
let servers: Servers
let echo: Echo
const daemons = new Daemons()

beforeAll(async () => {
  lab = await Lab.start()
  servers = await lab.servers(PODS.map(address => `${address}:8080`))
  echo = new Echo(lab.topology.pods.pid, PODS)
})

afterEach(() => daemons.end())

afterAll(async () => {
  await echo.close()
  await servers.close()
  await lab.close()
})

/** Policy Local for the address from outside: it takes the short way to the ClusterIP from the node itself. */
const OBJECTS: readonly object[] = [
  {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: NODE_NAME },
    status: { addresses: [{ type: 'InternalIP', address: '192.168.0.2' }] },
  },
  {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { namespace: 'ns1', name: 'web' },
    spec: {
      type: 'LoadBalancer',
      allocateLoadBalancerNodePorts: false,
      externalTrafficPolicy: 'Local',
      clusterIP: CLUSTER_IP,
      clusterIPs: [CLUSTER_IP],
      ipFamilies: ['IPv4'],
      ports: [
        { name: 'web', port: 80, protocol: 'TCP', targetPort: 8080 },
        { name: 'echo', port: 7, protocol: 'TCP', targetPort: Echo.port },
      ],
    },
    status: { loadBalancer: { ingress: [{ ip: VIP }] } },
  },
  {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: { namespace: 'ns1', name: 'web-a', labels: { 'kubernetes.io/service-name': 'web' } },
    addressType: 'IPv4',
    endpoints: PODS.map((address, index) => ({
      addresses: [address],
      nodeName: index === 0 ? NODE_NAME : 'other-node',
    })),
    ports: [
      { name: 'web', port: 8080, protocol: 'TCP' },
      { name: 'echo', port: Echo.port, protocol: 'TCP' },
    ],
  },
]

function configuration(mode: string): string {
  return JSON.stringify({
    apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
    kind: 'KubeProxyConfiguration',
    mode,
    clusterCIDR: CLUSTER_CIDR,
    hostnameOverride: NODE_NAME,
  })
}

function write(file: string, text: string): void {
  writeFileSync(`${file}.new`, text)
  renameSync(`${file}.new`, file)
}

/** Waits until the other mode has taken over and nothing of this one is left, or only what drains. */
async function change(daemon: Daemon, file: string, mode: string): Promise<void> {
  const before = daemon.said('another mode has taken over').length
  write(file, configuration(mode))
  await daemon.until(() => daemon.said('another mode has taken over').length > before, STEP_MS)
}

function tables(): readonly string[] {
  return execFileSync('nft', ['list', 'tables'], { encoding: 'utf8' }).trim().split('\n').sort()
}

async function untilTables(daemon: Daemon, wanted: readonly string[]): Promise<void> {
  await daemon.until(() => JSON.stringify(tables()) === JSON.stringify(wanted), STEP_MS)
}

const NFTABLES = ['table ip kube-proxy', 'table ip6 kube-proxy']
const IPVS = NFTABLES.map(table => `${table}-ipvs`)

test('from nftables to ipvs and back: no connection is lost, and none refused', async () => {
  const folder = daemons.folder()
  const [config, objects] = [join(folder, 'config.yaml'), join(folder, 'objects.json')]
  write(objects, JSON.stringify({ apiVersion: 'v1', kind: 'List', items: OBJECTS }))
  write(config, configuration('nftables'))
  const daemon = daemons.start({ source: objects, args: [`--config=${config}`] })
  await daemon.synced(STEP_MS)
  const clients = startClients()
  const talkers = startTalkers()
  try {
    await Promise.all(talkers.map(talker => talker.answers(3)))
    await change(daemon, config, 'ipvs')
    await untilTables(daemon, IPVS)
    // Connections that nf_tables has translated, and those that IPVS now has.
    talkers.push(...startTalkers())
    await Promise.all(talkers.map(talker => talker.answers(5)))
    expect(execFileSync('ipvsadm', ['-S', '-n'], { encoding: 'utf8' })).toContain(
      `-A -t ${CLUSTER_IP}:80 -s rr`,
    )
    await change(daemon, config, 'nftables')
    talkers.push(...startTalkers())
    await Promise.all(talkers.map(talker => talker.answers(5)))
    // IPVS keeps what it has for as long as somebody uses it.
    expect(tables()).toEqual([...IPVS, ...NFTABLES].sort())
    expect(execFileSync('ipvsadm', ['-S', '-n'], { encoding: 'utf8' })).not.toContain('-w 1')
  } finally {
    await Promise.all(talkers.map(talker => talker.close()))
  }
  for (const client of clients) {
    const report = await client.stop()
    expect(report).toMatchObject({ refused: 0, timeouts: 0, other: 0 })
    expect(report.ok).toBeGreaterThan(RATE)
  }
  // IPVS remembers a connection for two minutes after its end: nobody waits for that here.
  execFileSync('ipvsadm', ['-C'])
  await untilTables(daemon, NFTABLES)
  await daemon.until(
    () => daemon.said('what a mode that is not in use had left is removed').length > 1,
    STEP_MS,
  )
  expect(execFileSync('ipset', ['list', '-n'], { encoding: 'utf8' })).not.toContain('KUBE-')
  expect(execFileSync('ip', ['-br', 'link'], { encoding: 'utf8' })).not.toContain('kube-ipvs0')
}, 600_000)

function startClients(): readonly TrafficClient[] {
  const [outside, node] = ['203.0.113.9', '192.168.0.2']
  return [
    lab.client({ from: 'outside', source: outside, destination: VIP, port: 80, rate: RATE }),
    lab.client({ from: 'outside', source: '203.0.113.10', destination: CLUSTER_IP, port: 80, rate: RATE }),
    lab.client({ from: 'node', source: node, destination: CLUSTER_IP, port: 80, rate: RATE }),
    lab.client({ from: 'node', source: node, destination: VIP, port: 80, rate: RATE }),
  ]
}

function startTalkers(): Talker[] {
  const outside = lab.topology.outside.pid
  return [new Talker(outside, VIP, 7), new Talker(outside, CLUSTER_IP, 7), new Talker(undefined, VIP, 7)]
}
