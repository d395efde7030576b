import { execFileSync } from 'node:child_process'
import { renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect } from 'vitest'
import { assert } from '../../src/base/errors.ts'
import { type Ended, runInProcess } from './command.ts'
import { type Daemon, Daemons } from './daemon.ts'
import { Lab } from './lab/lab.ts'
import { CLUSTER_CIDR, NODE_NAME } from './pipeline.ts'
import { parseRow } from './scenario.ts'
import { expectedLine, flowAnywhere, seenLine } from './scenario-outcome.ts'

/** Of a proxy on the node; '' for the unnamed one. */
export type ProxyName = '' | 'red' | 'blue'

type Fields = Readonly<Record<string, unknown>>

const NODE: Fields = {
  apiVersion: 'v1',
  kind: 'Node',
  metadata: { name: NODE_NAME },
  status: { addresses: ['192.168.0.2', '2001:db8::2'].map(address => ({ type: 'InternalIP', address })) },
}
const RANGES: Fields = {
  apiVersion: 'networking.k8s.io/v1',
  kind: 'ServiceCIDR',
  metadata: { name: 'kubernetes' },
  spec: { cidrs: ['172.30.0.0/16', 'fd00:172:30::/112'] },
}

const PORTS = [
  { name: 'web', port: 80, protocol: 'TCP' },
  { name: 'dns', port: 53, protocol: 'UDP' },
]

export function serviceFor(proxy: ProxyName, name: string, spec: Fields): Fields {
  const labels = proxy === '' ? {} : { 'service.kubernetes.io/service-proxy-name': proxy }
  const { status, ...rest } = spec
  const metadata = { namespace: 'ns1', name, labels }
  return { apiVersion: 'v1', kind: 'Service', metadata, spec: { ports: PORTS, ...rest }, status }
}

/** Endpoints on this node: `10.180.0.1`. */
export function podsOf(name: string, ...addresses: readonly string[]): Fields {
  const family = addresses[0]?.includes(':') === true ? 'IPv6' : 'IPv4'
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      namespace: 'ns1',
      name: `${name}-${family.toLowerCase()}`,
      labels: { 'kubernetes.io/service-name': name },
    },
    addressType: family,
    endpoints: addresses.map(address => ({ addresses: [address], nodeName: NODE_NAME })),
    ports: PORTS,
  }
}

/** One Service a proxy. */
export const OBJECTS: readonly Fields[] = [
  serviceFor('', 'plain', {
    type: 'LoadBalancer',
    clusterIP: '172.30.0.41',
    ports: PORTS.map((port, index) => ({ ...port, nodePort: 30_010 + index })),
    externalTrafficPolicy: 'Local',
    healthCheckNodePort: 30_500,
    status: { loadBalancer: { ingress: [{ ip: '198.51.100.4' }] } },
  }),
  podsOf('plain', '10.180.0.1'),
  serviceFor('red', 'red', {
    type: 'LoadBalancer',
    clusterIP: '172.30.0.42',
    ports: PORTS.map((port, index) => ({ ...port, nodePort: 30_020 + index })),
    externalTrafficPolicy: 'Local',
    healthCheckNodePort: 30_501,
    status: { loadBalancer: { ingress: [{ ip: '198.51.100.5' }] } },
  }),
  podsOf('red', '10.180.0.2'),
  serviceFor('blue', 'blue', {
    clusterIP: 'None',
    ipFamilies: ['IPv4', 'IPv6'],
    externalIPs: ['198.51.100.6', '2001:db8:99::6'],
  }),
  podsOf('blue', '10.180.0.3', '10.180.0.4'),
  podsOf('blue', 'fd00:10::3'),
]

/** What becomes of packets to the Service of each proxy, as rows of a scenario. */
export const PACKETS: Readonly<Record<'plain' | 'red' | 'blue', string>> = {
  plain: `
    pod     TCP 172.30.0.41:80 -> 10.180.0.1:80 kept
    outside UDP 172.30.0.41:53 -> 10.180.0.1:53 masqueraded
    outside TCP 192.168.0.2:30010 -> 10.180.0.1:80 kept
    outside TCP 198.51.100.4:80 -> 10.180.0.1:80 kept
  `,
  red: `
    pod     TCP 172.30.0.42:80 -> 10.180.0.2:80 kept
    node    TCP 172.30.0.42:80 -> 10.180.0.2:80 masqueraded
    outside UDP 172.30.0.42:53 -> 10.180.0.2:53 masqueraded
    outside TCP 192.168.0.2:30020 -> 10.180.0.2:80 kept
    outside TCP 198.51.100.5:80 -> 10.180.0.2:80 kept
    pod 10.180.0.2 TCP 172.30.0.42:80 -> 10.180.0.2:80 hairpin
  `,
  blue: `
    outside TCP 198.51.100.6:80 -> 10.180.0.3:80 10.180.0.4:80 masqueraded
    pod     UDP 198.51.100.6:53 -> 10.180.0.3:53 10.180.0.4:53 masqueraded
    node    TCP 198.51.100.6:80 -> 10.180.0.3:80 10.180.0.4:80 masqueraded
    outside TCP [2001:db8:99::6]:80 -> [fd00:10::3]:80 masqueraded
  `,
}

/** Health and metrics have ports of their own, as on every node that several proxies share. */
const LISTENING: Readonly<Record<ProxyName, number>> = { '': 10_256, red: 20_256, blue: 30_256 }

/** A node on which proxies of several names serve the same objects. */
export class SharedNode {
  readonly lab: Lab
  readonly folder: string
  readonly #daemons = new Daemons()
  /** The last one of each name that was started. */
  readonly #running = new Map<ProxyName, Daemon>()
  readonly #all: Daemon[] = []

  private constructor(lab: Lab) {
    this.lab = lab
    this.folder = this.#daemons.folder()
  }

  static async open(): Promise<SharedNode> {
    return new SharedNode(await Lab.start())
  }

  async close(): Promise<void> {
    await this.#daemons.end()
    await this.lab.close()
  }

  /** Ends all daemons and removes all tables. */
  async clear(): Promise<void> {
    this.#running.clear()
    await Promise.all(this.#all.splice(0).map(daemon => daemon.stop('SIGKILL')))
    execFileSync('nft', ['flush', 'ruleset'])
    this.write(OBJECTS)
  }

  get #objects(): string {
    return join(this.folder, 'objects.json')
  }

  write(objects: readonly Fields[]): void {
    const text = JSON.stringify({ apiVersion: 'v1', kind: 'List', items: [NODE, RANGES, ...objects] })
    writeFileSync(`${this.folder}/new`, text)
    renameSync(`${this.folder}/new`, this.#objects)
  }

  socketOf(name: ProxyName): string {
    return join(this.folder, `${name}.sock`)
  }

  async start(name: ProxyName, ...args: readonly string[]): Promise<Daemon> {
    const daemon = this.launch(name, ...args)
    this.#running.set(name, daemon)
    await daemon.synced()
    return daemon
  }

  /** Without waiting for it, or counting it as the one of its name. */
  launch(name: ProxyName, ...args: readonly string[]): Daemon {
    const port = LISTENING[name]
    const daemon = this.#daemons.start({
      source: this.#objects,
      args: [
        ...nameFlags(name),
        `--healthz-bind-address=127.0.0.1:${port}`,
        `--metrics-bind-address=127.0.0.1:${port + 1}`,
        `--admin-socket=${this.socketOf(name)}`,
        ...args,
      ],
    })
    this.#all.push(daemon)
    return daemon
  }

  daemon(name: ProxyName): Daemon {
    const daemon = this.#running.get(name)
    assert(daemon !== undefined, `no daemon ${name}`)
    return daemon
  }

  /** A command about the objects, or the kernel, of one of the proxies. */
  command(name: ProxyName, command: string, ...args: readonly string[]): Promise<Ended> {
    const model = ['plan', 'verify', 'explain', 'doctor'].includes(command)
    const source = [`--source=file:${this.#objects}`, `--hostname-override=${NODE_NAME}`]
    return runInProcess([
      command,
      ...nameFlags(name),
      ...(model ? [...source, `--cluster-cidr=${CLUSTER_CIDR}`] : []),
      ...args,
    ])
  }

  /** Sends what the rows of a packet table (test/scenarios/README.md) say, and expects what they say. */
  async expectPackets(table: string): Promise<void> {
    const rows = table.split('\n').flatMap(line => parseRow('packets', line))
    const outcomes = await this.lab.trace(rows.map(flowAnywhere))
    const seen = rows.flatMap((row, index) => {
      const outcome = outcomes[index]
      return outcome === undefined ? [] : [seenLine(row, outcome, new Map())]
    })
    expect(seen).toEqual(rows.map(expectedLine))
  }
}

function nameFlags(name: ProxyName): readonly string[] {
  return name === '' ? [] : [`--service-proxy-name=${name}`]
}

/** `table ip kube-proxy`, sorted. */
export function tableNames(): readonly string[] {
  return execFileSync('nft', ['list', 'tables'], { encoding: 'utf8' }).trim().split('\n').sort()
}

/** A table as nft lists it, without what counts packets. */
export function listing(family: 'ip' | 'ip6', name: string): string {
  return execFileSync('nft', ['--stateless', 'list', 'table', family, name], { encoding: 'utf8' })
}
