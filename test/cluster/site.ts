import { homedir } from 'node:os'
import { join } from 'node:path'

/** What the addresses of a cluster are for. */
export const FAMILY_NAMES = ['ipv4', 'ipv6'] as const
export type FamilyName = (typeof FAMILY_NAMES)[number]

export const PROXY_NAMES = ['kprobe', 'kube-proxy'] as const
export type ProxyName = (typeof PROXY_NAMES)[number]

/** The parameters of a cluster, as its command line gives them. */
export interface Parameters {
  /** Names its folder and its cgroups: two clusters of different names can run at once. */
  readonly name: string
  readonly nodes: number
  /** One or two; the first one is the primary family of Services. */
  readonly families: readonly FamilyName[]
  /** Zones that the nodes are spread over, by turns. */
  readonly zones: number
  /** N of 10.N.0.0/16 and fd00:N::/32, which hold every address of the cluster, and of 198.18.N.1, which is outside. */
  readonly net: number
  /** Of etcd: one, or three, of which two may be lost with the quorum. */
  readonly members: number
}

export const DEFAULTS: Parameters = {
  name: 'kprobe',
  nodes: 3,
  families: ['ipv4', 'ipv6'],
  zones: 3,
  net: 89,
  members: 1,
}
/** Node n has the address 10.N.0.(10 + n), and pods 10.N.(128 + n).0/24. */
export const NODES_MAX = 100

/** One family's subnets and addresses. Everything in it is reachable in the cluster's own namespaces alone. */
export interface Subnets {
  readonly family: FamilyName
  /** Address of the control plane, which is the nodes' default gateway. */
  readonly gateway: string
  readonly nodeBits: number
  readonly pods: string
  readonly services: string
  readonly dns: string
  readonly apiService: string
  /** Where clients outside of the cluster come from. */
  readonly client: string
  readonly hostBits: number
  loadBalancer(index: number): string
  node(index: number): string
  podsOf(index: number): string
}

export interface NodePlan {
  readonly name: string
  /** From 1 on. */
  readonly index: number
  readonly zone: string
  readonly addresses: readonly string[]
  readonly podCidrs: readonly string[]
  readonly folder: string
  /** Below the root of each hierarchy. */
  readonly cgroup: string
}

/** A cluster as it is meant to be: pure data, from its parameters. */
export interface Site {
  readonly parameters: Parameters
  readonly folder: string
  readonly subnets: readonly Subnets[]
  readonly nodes: readonly NodePlan[]
  readonly apiUrl: string
}

export const API_PORT = 6443

/** The name of a cluster that lives as long as this process. */
export function nameOfProcess(word: 'all' | 'down', pid = process.pid): string {
  return `${word}p${pid}`
}

/** The process that such a cluster lives as long as; undefined for another name. */
export function processOfName(name: string): number | undefined {
  const [, pid] = /^(?:all|down)p([1-9]\d*)$/.exec(name) ?? []
  return pid === undefined ? undefined : Number(pid)
}

/** Everything of a cluster that runs is below it. */
export function clustersFolder(environment: NodeJS.ProcessEnv = process.env): string {
  return join(environment.XDG_CACHE_HOME || join(homedir(), '.cache'), 'kprobe/clusters')
}

export function planSite(parameters: Parameters, folder = join(clustersFolder(), parameters.name)): Site {
  const subnets = parameters.families.map(family => subnetsOf(family, parameters.net))
  const nodes = Array.from({ length: parameters.nodes }, (_, at): NodePlan => {
    const index = at + 1
    return {
      name: `n${index}`,
      index,
      zone: `zone-${(at % parameters.zones) + 1}`,
      addresses: subnets.map(each => each.node(index)),
      podCidrs: subnets.map(each => each.podsOf(index)),
      folder: join(folder, `n${index}`),
      cgroup: `${cgroupPrefix(parameters.name)}${index}`,
    }
  })
  const [primary] = subnets
  if (primary === undefined) throw new Error('a cluster needs an address family')
  const host = primary.family === 'ipv6' ? `[${primary.gateway}]` : primary.gateway
  return { parameters, folder, subnets, nodes, apiUrl: `https://${host}:${API_PORT}` }
}

/** With the number of a node behind it, the name of that node's cgroup. */
export function cgroupPrefix(name: string): string {
  return `kprobe-cluster-${name}-n`
}

function subnetsOf(family: FamilyName, net: number): Subnets {
  return family === 'ipv4' ? ipv4Subnets(net) : ipv6Subnets(`fd00:${net}`)
}

function ipv4Subnets(net: number): Subnets {
  const prefix = `10.${net}`
  return {
    family: 'ipv4',
    gateway: `${prefix}.0.1`,
    nodeBits: 24,
    pods: `${prefix}.128.0/17`,
    services: `${prefix}.16.0/20`,
    dns: `${prefix}.16.10`,
    apiService: `${prefix}.16.1`,
    // Upstream's tests take a client of the same /16 for a node.
    client: `198.18.${net}.1`,
    hostBits: 32,
    loadBalancer: index => `${prefix}.1.${index}`,
    node: index => `${prefix}.0.${10 + index}`,
    podsOf: index => `${prefix}.${128 + index}.0/24`,
  }
}

function ipv6Subnets(prefix: string): Subnets {
  return {
    family: 'ipv6',
    gateway: `${prefix}::1`,
    nodeBits: 64,
    pods: `${prefix}:1::/48`,
    services: `${prefix}:2::/112`,
    dns: `${prefix}:2::a`,
    apiService: `${prefix}:2::1`,
    client: `${prefix}:4::1`,
    hostBits: 128,
    loadBalancer: index => `${prefix}:3::${index.toString(16)}`,
    node: index => `${prefix}::${10 + index}`,
    podsOf: index => `${prefix}:1:${index}::/64`,
  }
}
