import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { connect, createServer, type Server } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { freshNetns } from '../support/lab/netns.ts'
import type { KubeObject } from '../support/reference/api.ts'
import type { ControlPlane } from '../support/reference/control-plane.ts'
import { LAB_NODE } from '../support/reference/lab-node.ts'
import type { Program } from '../support/reference/process.ts'
import { type ProxyName, startProxy } from './proxies.ts'

/** Where the API server answers: an address of the node that the Node object does not list. */
export const API_ADDRESS = '198.51.100.1'
const ENDPOINT = { host: '10.180.0.9', port: 8080 }
const CONNECT_MAX_MS = 1_000
const LOOK_EVERY_MS = 100
/** The heap that Node.js has in the control group of deploy/kubernetes/base/daemonset.yaml. */
const ENVIRONMENT = { NODE_OPTIONS: '--max-old-space-size=256' }

/** A node in a network namespace of its own with a way to the API server, an endpoint, and one proxy at a time. */
export class AttackSite {
  readonly plane: ControlPlane
  readonly #name: ProxyName
  readonly #servers: readonly Server[]
  readonly #folder = mkdtempSync(join(tmpdir(), 'kprobe-attacks-'))
  readonly #objects: KubeObject[] = []
  #program: Program | undefined

  private constructor(plane: ControlPlane, name: ProxyName, servers: readonly Server[]) {
    this.plane = plane
    this.#name = name
    this.#servers = servers
  }

  /** Moves this process into the namespace. */
  static async open(plane: ControlPlane, name: ProxyName): Promise<AttackSite> {
    freshNetns()
    const commands = [
      'link set lo up',
      `addr add ${API_ADDRESS}/32 dev lo`,
      `addr add ${ENDPOINT.host}/32 dev lo`,
      // Not every kernel has dummy devices.
      'link add out0 type veth peer name out1',
      'link set out1 up',
      'addr add 192.168.0.2/24 dev out0',
      'link set out0 up',
      'route add default dev out0',
    ]
    execFileSync('ip', ['-batch', '-'], { input: commands.join('\n') })
    const { way } = plane
    const relay = createServer(near => {
      const far = 'path' in way ? connect(way.path) : connect(way.port)
      near.pipe(far).pipe(near)
      near.on('error', () => far.destroy())
      far.on('error', () => near.destroy())
    })
    const endpoint = createServer(socket => socket.on('error', () => undefined).end())
    const servers = [relay.listen(plane.port, API_ADDRESS), endpoint.listen(ENDPOINT)]
    await Promise.all(servers.map(server => once(server, 'listening')))
    return new AttackSite(plane, name, servers)
  }

  async close(): Promise<void> {
    await this.stop()
    for (const server of this.#servers) server.close()
    for (const { apiVersion, kind, metadata } of this.#objects)
      await this.plane.api.remove(apiVersion, kind, metadata)
    rmSync(this.#folder, { recursive: true })
  }

  async put(...objects: readonly KubeObject[]): Promise<void> {
    this.#objects.push(...objects)
    for (const object of objects) await this.plane.api.put(object)
  }

  async start(): Promise<Program> {
    this.#program = startProxy({
      name: this.#name,
      kubeconfig: this.#kubeconfig(),
      nodeName: LAB_NODE.metadata.name,
      log: join(this.#folder, 'log'),
      environment: this.#name === 'kprobe' ? ENVIRONMENT : {},
    })
    return this.#program
  }

  async stop(): Promise<void> {
    await this.#program?.stop()
  }

  #kubeconfig(): string {
    const config = JSON.parse(readFileSync(this.plane.kubeconfig('admin'), 'utf8'))
    const { cluster } = config.clusters[0]
    cluster.server = `https://${API_ADDRESS}:${this.plane.port}`
    cluster['tls-server-name'] = '127.0.0.1'
    const file = join(this.#folder, 'kubeconfig')
    writeFileSync(file, JSON.stringify(config))
    return file
  }
}

/** A Service `ns/NAME` at 172.30.1.NUMBER:80. */
export function service(name: string, number: number, spec: object = {}): KubeObject {
  const ports = [{ name: 'http', port: 80, protocol: 'TCP' }]
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { namespace: 'ns', name },
    spec: { clusterIP: clusterIp(number), ports, ...spec },
  }
}

export function slice(of: string, ports: readonly object[], addresses: readonly string[]): KubeObject {
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: { namespace: 'ns', name: `${of}-1`, labels: { 'kubernetes.io/service-name': of } },
    addressType: 'IPv4',
    ports,
    endpoints: addresses.map(address => ({ addresses: [address], conditions: { ready: true } })),
  }
}

/** A Service that answers once it is programmed. */
export function answering(name: string, number: number): readonly KubeObject[] {
  const ports = [{ name: 'http', port: ENDPOINT.port, protocol: 'TCP' }]
  return [service(name, number), slice(name, ports, [ENDPOINT.host])]
}

function clusterIp(number: number): string {
  return `172.30.1.${number}`
}

/** Milliseconds until the Service of this number answers; undefined when it does not, or `isOver`. */
export async function untilServed(
  number: number,
  limitMs: number,
  isOver: () => boolean = () => false,
): Promise<number | undefined> {
  const beganMs = performance.now()
  while (!isOver() && performance.now() - beganMs < limitMs) {
    if (await canConnect(clusterIp(number), 80)) return performance.now() - beganMs
    await sleep(LOOK_EVERY_MS)
  }
  return undefined
}

export function canConnect(host: string, port: number): Promise<boolean> {
  return new Promise(resolve => {
    const socket = connect({ host, port, timeout: CONNECT_MAX_MS })
    const end = (isOpen: boolean) => {
      socket.destroy()
      resolve(isOpen)
    }
    socket.once('connect', () => end(true))
    socket.once('error', () => end(false))
    socket.once('timeout', () => end(false))
  })
}
