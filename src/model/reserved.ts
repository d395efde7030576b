import { anyContains, type Cidr, compareIps, formatIpPort, type Ip } from '../base/ip.ts'
import { u16be } from '../base/octets.ts'
import type { Protocol, SliceList } from './service.ts'

/** An address and a TCP port at which an API server is reached. */
export interface ApiEndpoint {
  readonly ip: Ip
  readonly port: number
}

/** The Service whose endpoints are the API servers of the cluster. */
export const API_SERVICE = 'default/kubernetes'
/** Key of the slice that API servers write themselves. Any writer of slices in the namespace may add others of API_SERVICE. */
const OWN_SLICE = API_SERVICE
/** Maxima of what each pass reads of these slices: more than any control plane has, and little of a hostile slice. */
const SLICES_MAX = 4
const PORTS_MAX = 4
const ENDPOINTS_MAX = 64

/** The addresses of API servers. A Service that captures one of these cuts kprobe off from the API server. */
export interface ApiServers {
  /** Sorted by address and port, without duplicates. */
  readonly endpoints: readonly ApiEndpoint[]
  readonly keys: ReadonlySet<string>
  /** Addresses that are captured with all their ports, because the mode gives them to a device of this node. */
  readonly boundIps: ReadonlySet<Ip>
  /** Equal for equal values. */
  readonly fingerprint: string
}

interface ApiServersQuery {
  readonly dialed: readonly ApiEndpoint[]
  /** The slices of API_SERVICE. */
  readonly slices: SliceList
  /** The mode gives addresses to a device of this node: all but those that this node has anyway. */
  readonly binds: boolean
  readonly localIps: readonly Ip[]
}

/** The endpoints that this process dials, and those of default/kubernetes. */
export function apiServersOf({ dialed, slices, binds, localIps }: ApiServersQuery): ApiServers {
  const endpoints = sortedEndpoints([...dialed, ...endpointsIn(slices)])
  const boundIps = binds ? endpoints.map(({ ip }) => ip).filter(ip => !localIps.includes(ip)) : []
  return {
    endpoints,
    keys: new Set(endpoints.map(({ ip, port }) => keyOf(ip, port))),
    boundIps: new Set(boundIps),
    fingerprint: `${endpoints.map(({ ip, port }) => formatIpPort(ip, port))} ${boundIps.map(ip => formatIpPort(ip, 0))}`,
  }
}

/** Addresses of which one captures something that the other does not. */
export function changedApiIps(one: ApiServers, other: ApiServers): readonly Ip[] {
  if (one.fingerprint === other.fingerprint) return []
  return [...lackedBy(one, other), ...lackedBy(other, one)]
}

function lackedBy({ keys, boundIps }: ApiServers, its: ApiServers): readonly Ip[] {
  const lacked = its.endpoints.filter(({ ip, port }) => !keys.has(keyOf(ip, port))).map(({ ip }) => ip)
  return [...lacked, ...[...its.boundIps].filter(ip => !boundIps.has(ip))]
}

/** Sorted by address and port, without duplicates. */
export function sortedEndpoints(endpoints: readonly ApiEndpoint[]): readonly ApiEndpoint[] {
  const unique = new Map(endpoints.map(its => [keyOf(its.ip, its.port), its]))
  return [...unique.values()].sort((a, b) => compareIps(a.ip, b.ip) || a.port - b.port)
}

/** Says what a Service at this address and port would take from an API server: its port, its whole address, or nothing. */
export function apiConflict(
  { keys, boundIps }: ApiServers,
  ip: Ip,
  { protocol, port }: { readonly protocol: Protocol; readonly port: number },
): 'port' | 'address' | undefined {
  if (protocol === 'TCP' && keys.has(keyOf(ip, port))) return 'port'
  return boundIps.has(ip) ? 'address' : undefined
}

/** Tests whether an API server answers at any port of the address. */
export function isApiAddress({ endpoints }: ApiServers, ip: Ip): boolean {
  return endpoints.some(its => its.ip === ip)
}

function keyOf(ip: Ip, port: number): string {
  return u16be(port) + ip
}

function endpointsIn(slices: SliceList): readonly ApiEndpoint[] {
  const own = slices.filter(({ key }) => key === OWN_SLICE)
  return (own.length > 0 ? own : slices.slice(0, SLICES_MAX)).flatMap(({ ports, endpoints }) => {
    const tcp = ports.filter(({ protocol }) => protocol === 'TCP').slice(0, PORTS_MAX)
    return endpoints.slice(0, ENDPOINTS_MAX).flatMap(({ ip }) => tcp.map(({ port }) => ({ ip, port })))
  })
}

/** The ports of a Service's external addresses that processes of this node use. */
export interface ServiceListeners {
  /** Ports at addresses of this node at which a process of it listens. */
  readonly taken: readonly TakenPort[]
}

export interface TakenPort {
  readonly ip: Ip
  readonly protocol: Protocol
  readonly port: number
}

/** Makes the keys for isTaken; undefined when no port is taken. */
export function takenKeys(found: ServiceListeners | undefined): ReadonlySet<string> | undefined {
  return found && new Set(found.taken.map(takenKey))
}

/**
 * Tests whether a process of this node keeps the port from the Service. At addresses that the operator allows, the
 * Service gets it.
 */
export function isTaken(
  keys: ReadonlySet<string> | undefined,
  port: TakenPort,
  allowed: readonly Cidr[],
): boolean {
  return keys?.has(takenKey(port)) === true && !anyContains(allowed, port.ip)
}

export function takenKey({ ip, protocol, port }: TakenPort): string {
  return protocol + u16be(port) + ip
}
