import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import { COMMAND, type Daemon, Daemons } from '../support/daemon.ts'
import { Lab } from '../support/lab/lab.ts'
import type { Servers } from '../support/lab/traffic.ts'
import { CLUSTER_CIDR, NODE_NAME } from '../support/pipeline.ts'
import type { KubeObject } from '../support/reference/api.ts'
import { ControlPlane } from '../support/reference/control-plane.ts'
import { KubeProxyPeer, type ProxyConfig } from '../support/reference/kube-proxy-peer.ts'
import { LAB_NODE, namespaceObject } from '../support/reference/lab-node.ts'
import { Forwarder } from '../support/reference/relay.ts'
import { Clients, NODE_PORT, VIP, VIP6 } from './hand-over-clients.ts'

export const ENDPOINTS = ['10.0.1.1:8080', '10.0.1.2:8080', '10.0.1.3:8080']
const ENDPOINTS6 = ['[fd00:10::1:1]:8080', '[fd00:10::1:2]:8080']

export const HAS_IPTABLES = ['iptables-nft', 'ip6tables-nft'].every(name => existsSync(`/usr/sbin/${name}`))

export const IPTABLES_MODE: ProxyConfig = {
  mode: 'iptables',
  iptables: { minSyncPeriod: '10ms', syncPeriod: '30s' },
}

/** One node with a Service of three endpoints, for the real kube-proxy and kprobe to take turns at. */
export class HandOver {
  readonly plane: ControlPlane
  readonly lab: Lab
  readonly #relay: Forwarder
  readonly #servers: Servers
  readonly #daemons = new Daemons()
  readonly #running: Clients[] = []
  readonly #peers: KubeProxyPeer[] = []
  readonly #path = process.env.PATH

  private constructor(parts: { plane: ControlPlane; lab: Lab; relay: Forwarder; servers: Servers }) {
    this.plane = parts.plane
    this.lab = parts.lab
    this.#relay = parts.relay
    this.#servers = parts.servers
  }

  /** Moves this process into a network namespace of its own, the node's. */
  static async open(): Promise<HandOver> {
    const plane = await ControlPlane.start()
    await plane.api.put(LAB_NODE)
    await plane.api.put(namespaceObject('ns'))
    for (const object of OBJECTS) await plane.api.put(object)
    const lab = await Lab.start()
    const relay = await Forwarder.start({ listen: { port: plane.port }, dial: plane.way })
    const servers = await lab.servers([...ENDPOINTS, ...ENDPOINTS6])
    return new HandOver({ plane, lab, relay, servers })
  }

  async close(): Promise<void> {
    process.env.PATH = this.#path
    await this.#servers.close()
    await this.#relay.close()
    await this.lab.close()
    await this.plane.stop()
  }

  /** Whoever is still at work ends; the kernel keeps what they left. */
  async rest(): Promise<void> {
    await Promise.all(this.#running.splice(0).map(clients => clients.stop()))
    await this.#daemons.end()
    await Promise.all(this.#peers.splice(0).map(peer => peer.stop()))
  }

  /** kube-proxy takes whatever `iptables` is: that of nf_tables from now on. */
  useIptablesNft(): void {
    const folder = join(this.plane.folder, 'iptables')
    mkdirSync(folder)
    for (const family of ['iptables', 'ip6tables'])
      for (const suffix of ['', '-save', '-restore'])
        symlinkSync(`/usr/sbin/${family}-nft${suffix}`, join(folder, `${family}${suffix}`))
    process.env.PATH = `${folder}:${this.#path}`
  }

  /** kube-proxy, once it has programmed both families. */
  async startKubeProxy(config: ProxyConfig = {}): Promise<KubeProxyPeer> {
    const kubeconfig = this.plane.kubeconfig('proxy')
    const peer = new KubeProxyPeer({
      kubeconfig,
      nodeName: NODE_NAME,
      config: { clusterCIDR: CLUSTER_CIDR, ...config },
    })
    this.#peers.push(peer)
    await peer.synced()
    return peer
  }

  async startKprobe(args: readonly string[] = []): Promise<Daemon> {
    const kubeconfig = this.plane.kubeconfig('proxy')
    return await this.#daemons.running({ source: { kind: 'kube', kubeconfig }, args })
  }

  async startClients(): Promise<Clients> {
    const clients = await Clients.start(this.lab)
    this.#running.push(clients)
    return clients
  }

  /** Whoever is at work now serves everybody. */
  async expectGood(): Promise<void> {
    // What began in a window stays untranslated, and so does what comes from the same port within two minutes.
    this.lab.topology.node.forgetConnections()
    await this.lab.topology.node.sync()
    const clients = await this.startClients()
    await clients.work()
    await clients.work()
    await clients.expectNothingNoticed()
  }

  /** Replaces the IPv4 endpoints of the Service. */
  async setEndpoints(endpoints: readonly string[]): Promise<void> {
    await this.plane.api.put(slice('web-4', 'IPv4', endpoints))
  }
}

export function kprobe(...args: readonly string[]): { readonly code: number | null; readonly out: string } {
  const { status, stdout } = spawnSync(process.execPath, [COMMAND, ...args], { encoding: 'utf8' })
  return { code: status, out: stdout }
}

export function nft(...args: readonly string[]): string {
  return execFileSync('nft', args, { encoding: 'utf8' })
}

const OBJECTS: readonly KubeObject[] = [
  {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { namespace: 'ns', name: 'web' },
    spec: {
      type: 'NodePort',
      clusterIP: VIP,
      clusterIPs: [VIP, VIP6],
      ipFamilyPolicy: 'RequireDualStack',
      ports: [{ name: 'http', port: 80, nodePort: NODE_PORT, protocol: 'TCP' }],
    },
  },
  slice('web-4', 'IPv4', ENDPOINTS),
  slice('web-6', 'IPv6', ENDPOINTS6),
]

function slice(name: string, addressType: string, endpoints: readonly string[]): KubeObject {
  const addresses = endpoints.map(text => text.slice(0, text.lastIndexOf(':')).replace(/[[\]]/g, ''))
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: { namespace: 'ns', name, labels: { 'kubernetes.io/service-name': 'web' } },
    addressType,
    ports: [{ name: 'http', port: 8080, protocol: 'TCP' }],
    endpoints: addresses.map(address => ({ addresses: [address], conditions: { ready: true } })),
  }
}
