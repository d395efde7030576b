import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { eventually } from '../patience.ts'
import type { Api, KubeObject } from './api.ts'
import { namespaceObject } from './lab-node.ts'

const run = promisify(execFile)
const NAMESPACE = 'fence'
const SETTLE_MAX_MS = 30_000
const STEP_MS = 20

interface FenceFamily {
  readonly family: 'ip' | 'ip6'
  readonly type: 'IPv4' | 'IPv6'
  /** Where its Service is. */
  readonly service: string
  readonly endpoint: string
}

const FAMILIES: readonly FenceFamily[] = [
  { family: 'ip', type: 'IPv4', service: '172.30.254.254', endpoint: '10.254.254.254' },
  { family: 'ip6', type: 'IPv6', service: 'fd00:172:30::fefe', endpoint: 'fd00:10::fefe:fefe' },
]

/** Whether this network namespace has the port of the fence's Service and of its endpoint. */
export type FenceLook = (fence: FenceFamily, port: number) => Promise<boolean>

/**
 * Tells when a proxy has done what its API server knows. Its Service gets another port each time, and so do its
 * endpoints: once both are in the kernel, everything that came before them in the same watches is there as well.
 */
export class Fence {
  readonly #api: Api
  readonly #isIn: FenceLook
  #port = 1_000

  constructor(api: Api, isIn: FenceLook = isInNftables) {
    this.#api = api
    this.#isIn = isIn
  }

  async open(): Promise<void> {
    await this.#api.put(namespaceObject(NAMESPACE))
    await this.#put()
  }

  /** Resolves once the tables of this network namespace have everything; fails when they do not get it. */
  async passed(): Promise<void> {
    this.#port++
    await this.#put()
    const describe = () => `the proxy did not come to port ${this.#port}`
    for (const one of FAMILIES)
      await eventually(() => this.#isIn(one, this.#port), {
        limitMs: SETTLE_MAX_MS,
        stepMs: STEP_MS,
        describe,
      })
  }

  async #put(): Promise<void> {
    await this.#api.put(fenceService(this.#port))
    for (const one of FAMILIES) await this.#api.put(fenceSlice(one, this.#port))
  }
}

async function isInNftables({ family, service, endpoint }: FenceFamily, port: number): Promise<boolean> {
  const options = { maxBuffer: 1 << 28 }
  const { stdout } = await run('nft', ['-n', 'list', 'table', family, 'kube-proxy'], options).catch(() => ({
    stdout: '',
  }))
  return (
    reaches(stdout, `${service} . 6 . ${port}`, `${service} . tcp . ${port}`) &&
    // kube-proxy 1.37 has no map for a Service with one endpoint.
    reaches(
      stdout,
      `${endpoint} . ${port}`,
      `dnat to ${family === 'ip' ? endpoint : `[${endpoint}]`}:${port}`,
    )
  )
}

const PROGRAMS: Readonly<Record<FenceFamily['family'], string>> = {
  ip: 'iptables-nft-save',
  ip6: 'ip6tables-nft-save',
}

/** For a proxy that writes chains of iptables. */
export async function isInIptables(
  { family, service, endpoint }: FenceFamily,
  port: number,
): Promise<boolean> {
  const { stdout } = await run(PROGRAMS[family], ['-t', 'nat'], { maxBuffer: 1 << 28 })
  const place = family === 'ip' ? `${endpoint}:${port}` : `[${endpoint}]:${port}`
  const lines = stdout.split('\n')
  return (
    lines.some(line => line.includes(` -d ${service}/`) && line.includes(` --dport ${port} `)) &&
    lines.some(line => line.endsWith(`--to-destination ${place}`))
  )
}

function reaches(text: string, ...ways: readonly string[]): boolean {
  return ways.some(way => text.includes(way))
}

function fenceService(port: number): KubeObject {
  const clusterIPs = FAMILIES.map(({ service }) => service)
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { namespace: NAMESPACE, name: 'fence' },
    spec: {
      clusterIP: clusterIPs[0],
      clusterIPs,
      ipFamilies: FAMILIES.map(({ type }) => type),
      ipFamilyPolicy: 'RequireDualStack',
      ports: [{ name: 'fence', port, protocol: 'TCP' }],
    },
  }
}

function fenceSlice({ type, endpoint }: FenceFamily, port: number): KubeObject {
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      namespace: NAMESPACE,
      name: `fence-${type.toLowerCase()}`,
      labels: { 'kubernetes.io/service-name': 'fence' },
    },
    addressType: type,
    endpoints: [{ addresses: [endpoint] }],
    ports: [{ name: 'fence', port, protocol: 'TCP' }],
  }
}
