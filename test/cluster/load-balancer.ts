import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { get } from 'node:http'
import { Agent, request } from 'node:https'
import { text } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import { authoritiesFile } from './control-plane.ts'
import type { Site, Subnets } from './site.ts'

const FINALIZER = 'service.kubernetes.io/load-balancer-cleanup'
const PERIOD_MS = 700
const HEALTH_MAX_MS = 1_000
const REQUEST_MAX_MS = 10_000
const ADDRESSES_MAX = 249
const MERGE_PATCH = 'application/merge-patch+json'

/** What is read of a Service, of all that it has. */
interface Service {
  readonly metadata: {
    readonly name: string
    readonly namespace: string
    readonly uid: string
    readonly finalizers?: readonly string[]
    readonly deletionTimestamp?: string
  }
  readonly spec: {
    readonly type: string
    readonly loadBalancerClass?: string
    readonly loadBalancerIP?: string
    readonly ipFamilies?: readonly string[]
    readonly externalTrafficPolicy?: string
    readonly healthCheckNodePort?: number
    readonly sessionAffinity?: string
  }
  readonly status: { readonly loadBalancer?: { readonly ingress?: readonly { readonly ip?: string }[] } }
}

export interface ApiAccess {
  readonly url: string
  /** A file that may change. */
  readonly caFile: string
  readonly token: string
}

export function accessOf(site: Site, kubeconfig: string): ApiAccess {
  const { users }: { users: readonly { user: { token: string } }[] } = JSON.parse(
    readFileSync(kubeconfig, 'utf8'),
  )
  return { url: site.apiUrl, caFile: authoritiesFile(site), token: users[0]?.user.token ?? '' }
}

/**
 * A load balancer of layer 3: it gives Services of type LoadBalancer an address of each of their families, and routes it,
 * in the network namespace of the control plane, over the nodes that may take it. Clients there come from outside of the
 * nodes' subnet.
 */
export class LoadBalancer {
  readonly #site: Site
  readonly #access: ApiAccess
  readonly #agent = new Agent({ keepAlive: true })
  /** By Service and family. */
  readonly #given = new Map<string, string>()
  /** The next hops of each address. */
  readonly #routes = new Map<string, string>()

  constructor(site: Site, access: ApiAccess) {
    this.#site = site
    this.#access = access
  }

  /** Goes on for ever; an error is logged, and the next round tries again. */
  async run(): Promise<never> {
    for (;;) {
      await this.#round().catch(error => log(String(error)))
      await sleep(PERIOD_MS)
    }
  }

  async #round(): Promise<void> {
    const services = await this.#list()
    const wanted = services.filter(isOurs)
    for (const service of services.filter(one => !isOurs(one))) await this.#release(service)
    for (const service of wanted) await this.#serve(service)
    const live = new Set(
      wanted.flatMap(service => this.#familiesOf(service).map(each => keyOf(service, each))),
    )
    for (const [key, address] of this.#given) {
      if (live.has(key)) continue
      this.#given.delete(key)
      this.#route(address, undefined)
    }
  }

  /** Takes back what a Service had that is being deleted, or is of another type now. */
  async #release(service: Service): Promise<void> {
    const { metadata, spec, status } = service
    const finalizers = metadata.finalizers ?? []
    if (!finalizers.includes(FINALIZER) || spec.loadBalancerClass !== undefined) return
    if (metadata.deletionTimestamp === undefined && status.loadBalancer?.ingress !== undefined)
      await this.#patch(service, '/status', { status: { loadBalancer: { ingress: null } } })
    await this.#patch(service, '', {
      metadata: { finalizers: finalizers.filter(each => each !== FINALIZER) },
    })
  }

  async #serve(service: Service): Promise<void> {
    const { metadata, spec, status } = service
    const finalizers = metadata.finalizers ?? []
    if (!finalizers.includes(FINALIZER))
      await this.#patch(service, '', { metadata: { finalizers: [...finalizers, FINALIZER] } })
    const families = this.#familiesOf(service)
    const addresses = families.map(each => this.#addressOf(service, each))
    for (const [at, subnets] of families.entries()) {
      const nodes = await this.#nodesFor(service, subnets)
      this.#route(addresses[at] ?? '', spec.sessionAffinity === 'ClientIP' ? nodes.slice(0, 1) : nodes)
    }
    const shown = (status.loadBalancer?.ingress ?? []).map(({ ip }) => ip)
    if (shown.join() !== addresses.join())
      await this.#patch(service, '/status', {
        status: { loadBalancer: { ingress: addresses.map(ip => ({ ip })) } },
      })
  }

  #familiesOf({ spec }: Service): readonly Subnets[] {
    const names = (spec.ipFamilies ?? ['IPv4']).map(family => family.toLowerCase())
    return this.#site.subnets.filter(({ family }) => names.includes(family))
  }

  #addressOf(service: Service, subnets: Subnets): string {
    const key = keyOf(service, subnets)
    const before = this.#given.get(key)
    if (before !== undefined) return before
    const isOfFamily = (ip: string | undefined): ip is string =>
      ip !== undefined && ip.includes(':') === (subnets.family === 'ipv6')
    const shown = (service.status.loadBalancer?.ingress ?? []).map(({ ip }) => ip)
    const asked = [...shown, service.spec.loadBalancerIP].find(isOfFamily)
    const address = asked ?? this.#freeAddress(subnets)
    this.#given.set(key, address)
    return address
  }

  #freeAddress(subnets: Subnets): string {
    const used = new Set(this.#given.values())
    for (let index = 1; index <= ADDRESSES_MAX; index++) {
      const address = subnets.loadBalancer(index)
      if (!used.has(address)) return address
    }
    throw new Error(`all ${ADDRESSES_MAX} addresses for load balancers are in use`)
  }

  /** All nodes, or those that say they have an endpoint. */
  async #nodesFor({ spec }: Service, subnets: Subnets): Promise<readonly string[]> {
    const all = this.#site.nodes.map(({ index }) => subnets.node(index))
    const port = spec.externalTrafficPolicy === 'Local' ? spec.healthCheckNodePort : undefined
    if (port === undefined || port === 0) return all
    const healthy = await Promise.all(all.map(host => isHealthy(host, port)))
    return all.filter((_, at) => healthy[at])
  }

  /** Without nodes the address is there and unreachable; undefined removes it. */
  #route(address: string, nodes: readonly string[] | undefined): void {
    const subnets = this.#site.subnets.find(({ family }) => address.includes(':') === (family === 'ipv6'))
    if (subnets === undefined) return
    const hops = nodes?.join(' ')
    if (this.#routes.get(address) === hops) return
    const target = `${address}/${subnets.hostBits}`
    const family = subnets.family === 'ipv6' ? '-6' : '-4'
    if (nodes === undefined) {
      execFileSync('ip', [family, 'route', 'del', target])
      this.#routes.delete(address)
    } else {
      const next =
        nodes.length === 1 ? ['via', nodes[0] ?? ''] : nodes.flatMap(node => ['nexthop', 'via', node])
      const route = nodes.length === 0 ? ['unreachable', target] : [target, 'src', subnets.client, ...next]
      if (this.#routes.has(address)) execFileSync('ip', [family, 'route', 'del', target])
      execFileSync('ip', [family, 'route', 'add', ...route])
      this.#routes.set(address, nodes.join(' '))
    }
    log(`${address} -> ${hops === '' ? 'nowhere' : (hops ?? 'gone')}`)
  }

  async #list(): Promise<readonly Service[]> {
    const { items }: { items: readonly Service[] } = JSON.parse(await this.#send('GET', '/api/v1/services'))
    return items
  }

  async #patch({ metadata }: Service, part: string, body: object): Promise<void> {
    await this.#send(
      'PATCH',
      `/api/v1/namespaces/${metadata.namespace}/services/${metadata.name}${part}`,
      body,
    )
  }

  #send(method: string, path: string, body?: object): Promise<string> {
    return new Promise((resolve, reject) => {
      const sent = request(`${this.#access.url}${path}`, {
        method,
        agent: this.#agent,
        ca: readFileSync(this.#access.caFile),
        timeout: REQUEST_MAX_MS,
        headers: { authorization: `Bearer ${this.#access.token}`, 'content-type': MERGE_PATCH },
      })
      sent.on('timeout', () => sent.destroy(new Error(`${method} ${path}: no answer`)))
      sent.on('error', reject)
      sent.on('response', response => {
        text(response).then(words => {
          if (response.statusCode === 200) resolve(words)
          else reject(new Error(`${method} ${path}: ${response.statusCode} ${words.slice(0, 300)}`))
        }, reject)
      })
      sent.end(body === undefined ? undefined : JSON.stringify(body))
    })
  }
}

function isOurs({ metadata, spec }: Service): boolean {
  return (
    spec.type === 'LoadBalancer' &&
    spec.loadBalancerClass === undefined &&
    metadata.deletionTimestamp === undefined
  )
}

function keyOf({ metadata }: Service, { family }: Subnets): string {
  return `${metadata.uid} ${family}`
}

function isHealthy(host: string, port: number): Promise<boolean> {
  return new Promise(resolve => {
    const asked = get({ host, port, path: '/healthz', timeout: HEALTH_MAX_MS, agent: false })
    asked.on('timeout', () => asked.destroy())
    asked.on('error', () => resolve(false))
    asked.on('response', response => {
      response.resume()
      resolve(response.statusCode === 200)
    })
  })
}

function log(words: string): void {
  console.log(`${new Date().toISOString()} ${words}`)
}
