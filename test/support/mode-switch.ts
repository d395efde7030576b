import { execFileSync } from 'node:child_process'
import { renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect } from 'vitest'
import { type Daemon, Daemons } from './daemon.ts'
import { Lab } from './lab/lab.ts'
import type { Servers, TrafficClient } from './lab/traffic.ts'
import { CLUSTER_CIDR, NODE_NAME } from './pipeline.ts'
import { Echo, Talker } from './talkers.ts'

export const CLUSTER_IP = '172.30.0.41'
const VIP = '198.51.100.7'
const PODS = ['10.180.0.1', '10.180.1.1']
const RATE = 20
export const STEP_MS = 120_000

/** For the proxy of that name. Policy Local for the address from outside: it takes the short way to the ClusterIP from the node itself. */
const objectsFor = (proxyName: string | undefined): readonly object[] => [
  {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: NODE_NAME },
    status: { addresses: [{ type: 'InternalIP', address: '192.168.0.2' }] },
  },
  {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: {
      namespace: 'ns1',
      name: 'web',
      labels: proxyName === undefined ? {} : { 'service.kubernetes.io/service-proxy-name': proxyName },
    },
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

function configuration(mode: string, more: Readonly<Record<string, unknown>> = {}): string {
  return JSON.stringify({
    apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
    kind: 'KubeProxyConfiguration',
    mode,
    clusterCIDR: CLUSTER_CIDR,
    hostnameOverride: NODE_NAME,
    ...more,
  })
}

function write(file: string, text: string): void {
  writeFileSync(`${file}.new`, text)
  renameSync(`${file}.new`, file)
}

const NAME_FLAG = '--service-proxy-name='

/** A daemon that is told to change its mode, with clients that must not notice. */
export class ModeSwitch {
  readonly lab: Lab
  readonly #servers: Servers
  readonly #echo: Echo
  readonly #daemons = new Daemons()

  private constructor(parts: { lab: Lab; servers: Servers; echo: Echo }) {
    this.lab = parts.lab
    this.#servers = parts.servers
    this.#echo = parts.echo
  }

  static async open(): Promise<ModeSwitch> {
    const lab = await Lab.start()
    const servers = await lab.servers(PODS.map(address => `${address}:8080`))
    return new ModeSwitch({ lab, servers, echo: new Echo(lab.topology.pods.pid, PODS) })
  }

  async close(): Promise<void> {
    await this.#echo.close()
    await this.#servers.close()
    await this.lab.close()
  }

  endDaemons(): Promise<void> {
    return this.#daemons.end()
  }

  async start(mode: string, ...flags: readonly string[]): Promise<SwitchedDaemon> {
    const proxyName = flags.find(flag => flag.startsWith(NAME_FLAG))?.slice(NAME_FLAG.length)
    const folder = this.#daemons.folder()
    const [config, objects] = [join(folder, 'config.yaml'), join(folder, 'objects.json')]
    write(objects, JSON.stringify({ apiVersion: 'v1', kind: 'List', items: objectsFor(proxyName) }))
    write(config, configuration(mode))
    const daemon = await this.#daemons.running({ source: objects, args: [`--config=${config}`, ...flags] })
    return { daemon, config }
  }

  startClients(): readonly TrafficClient[] {
    const { lab } = this
    const [outside, node] = ['203.0.113.9', '192.168.0.2']
    return [
      lab.client({ from: 'outside', source: outside, destination: VIP, port: 80, rate: RATE }),
      lab.client({ from: 'outside', source: '203.0.113.10', destination: CLUSTER_IP, port: 80, rate: RATE }),
      lab.client({ from: 'node', source: node, destination: CLUSTER_IP, port: 80, rate: RATE }),
      lab.client({ from: 'node', source: node, destination: VIP, port: 80, rate: RATE }),
    ]
  }

  /** Connections that last. */
  startTalkers(): Talker[] {
    const outside = this.lab.topology.outside.pid
    return [new Talker(outside, VIP, 7), new Talker(outside, CLUSTER_IP, 7), new Talker(undefined, VIP, 7)]
  }
}

export interface SwitchedDaemon {
  readonly daemon: Daemon
  readonly config: string
}

export function writeMode(config: string, mode: string): void {
  write(config, configuration(mode))
}

/** Resolves when the other mode has taken over. */
export async function changeMode({ daemon, config }: SwitchedDaemon, mode: string): Promise<void> {
  await daemon.loggedAfter('switched from', () => writeMode(config, mode), STEP_MS)
}

/** Resolves when the same mode has been begun anew, with other fields of the configuration. */
export async function beginAnew(
  { daemon, config }: SwitchedDaemon,
  mode: string,
  fields: Readonly<Record<string, unknown>>,
): Promise<void> {
  await daemon.loggedAfter('committed', () => write(config, configuration(mode, fields)), STEP_MS)
}

/** No request failed since the clients were started. */
export async function expectAllAnswered(clients: readonly TrafficClient[]): Promise<void> {
  for (const client of clients) {
    const report = await client.stop()
    expect(report).toMatchObject({ refused: 0, timeouts: 0, other: 0 })
    expect(report.ok).toBeGreaterThan(RATE)
  }
}

export function tables(): readonly string[] {
  return execFileSync('nft', ['list', 'tables'], { encoding: 'utf8' }).trim().split('\n').sort()
}
