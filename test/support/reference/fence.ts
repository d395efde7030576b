import { execFile } from 'node:child_process'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import type { Api, KubeObject } from './api.ts'
import { namespaceObject } from './lab-node.ts'

const run = promisify(execFile)
const NAMESPACE = 'fence'
const SETTLE_MAX_MS = 30_000
const STEP_MS = 20

const FAMILIES = [
  { family: 'ip', type: 'IPv4', service: '172.30.254.254', endpoint: '10.254.254.254' },
  { family: 'ip6', type: 'IPv6', service: 'fd00:172:30::fefe', endpoint: 'fd00:10::fefe:fefe' },
] as const

/**
 * Tells when a proxy has done what its API server knows. Its Service gets another port each time, and so do its
 * endpoints: once both are in the kernel, everything that came before them in the same watches is there as well.
 */
export class Fence {
  readonly #api: Api
  #port = 1_000

  constructor(api: Api) {
    this.#api = api
  }

  async open(): Promise<void> {
    await this.#api.put(namespaceObject(NAMESPACE))
    await this.#put()
  }

  /** Resolves once the tables of this network namespace have everything; fails after half a minute. */
  async passed(): Promise<void> {
    this.#port++
    await this.#put()
    const end = performance.now() + SETTLE_MAX_MS
    for (const one of FAMILIES) {
      while (!(await isIn(one, this.#port))) {
        if (performance.now() > end) throw new Error(`the proxy did not come to port ${this.#port}`)
        await sleep(STEP_MS)
      }
    }
  }

  async #put(): Promise<void> {
    await this.#api.put(fenceService(this.#port))
    for (const one of FAMILIES) await this.#api.put(fenceSlice(one, this.#port))
  }
}

type FenceFamily = (typeof FAMILIES)[number]

async function isIn({ family, service, endpoint }: FenceFamily, port: number): Promise<boolean> {
  const options = { maxBuffer: 1 << 28 }
  const { stdout } = await run('nft', ['-n', 'list', 'table', family, 'kube-proxy'], options).catch(() => ({
    stdout: '',
  }))
  return (
    reaches(stdout, `${service} . 6 . ${port}`, `${service} . tcp . ${port}`) &&
    stdout.includes(`${endpoint} . ${port}`)
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
