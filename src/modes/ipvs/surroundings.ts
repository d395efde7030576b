import { FAMILIES, type Family, familyOf, type Ip, isLinkLocal, isLoopback } from '../../base/ip.ts'
import { hex } from '../../base/octets.ts'
import type { ServerKey } from '../../kernel/ipvs/state.ts'
import type { FrontendTable, NodePortAddresses } from '../../model/frontend.ts'
import { detectorFor } from '../common/detector.ts'
import { cidrKey, detectorKey } from '../common/rules.ts'
import type { IpvsOptions } from './settings.ts'

/** The inputs that all Services are rendered with, besides themselves. */
export interface Surroundings {
  /** The addresses that serve node ports. */
  readonly nodePortIps: Readonly<Record<Family, readonly Ip[]>>
  /** The addresses of other devices, which need no binding and must not be removed from the node. */
  readonly localIps: ReadonlySet<Ip>
  readonly scheduler: string
  /** Schedulers that the kernel lacks. */
  readonly missingSchedulers: ReadonlySet<string>
  /** Virtual servers of other programs. */
  readonly occupied: ReadonlySet<ServerKey>
  /** Equal for surroundings in which every Service and every rule comes out the same. */
  readonly key: string
}

/** The places with virtual servers of other programs, as of the last read. */
export interface Occupied {
  readonly servers: ReadonlySet<ServerKey>
  /** A different number after each change. */
  readonly version: number
}

export interface SurroundingsOptions extends IpvsOptions {
  /** Schedulers that the kernel turned out to lack. */
  readonly missingSchedulers: ReadonlySet<string>
  /** Absent means none. */
  readonly occupied?: Occupied
}

const NOT_OCCUPIED: Occupied = { servers: new Set(), version: 0 }

export function surroundingsOf(frontends: FrontendTable, options: SurroundingsOptions): Surroundings {
  const { nodePorts, serviceCidrs, node } = frontends
  // Link-local addresses come and go with each pod, and belong to no Service.
  const localIps = frontends.localIps.filter(ip => !isLinkLocal(ip))
  const { scheduler, missingSchedulers, occupied = NOT_OCCUPIED } = options
  const nodePortIps = {
    IPv4: addressesOf(nodePorts.IPv4, 'IPv4', localIps),
    IPv6: addressesOf(nodePorts.IPv6, 'IPv6', localIps),
  }
  const key = JSON.stringify([
    FAMILIES.map(family => nodePortIps[family].map(hex)),
    localIps.map(hex),
    serviceCidrs.map(cidrKey),
    FAMILIES.map(family => detectorKey(detectorFor(family, options, node)) ?? null),
    [scheduler, ...[...missingSchedulers].sort()],
    [options.rules, options.tableName, options.masqueradeAll, options.masqueradeBit, occupied.version],
  ])
  const { servers } = occupied
  return { nodePortIps, localIps: new Set(localIps), scheduler, missingSchedulers, occupied: servers, key }
}

/**
 * Gives the addresses that serve node ports. A virtual server has one address. Where node ports are served on
 * all addresses, each address that other hosts can reach gets a virtual server.
 */
function addressesOf(nodePorts: NodePortAddresses, family: Family, localIps: readonly Ip[]): readonly Ip[] {
  if (nodePorts.kind === 'only') return [...new Set(nodePorts.ips.filter(ip => familyOf(ip) === family))]
  return localIps.filter(ip => familyOf(ip) === family && !isLoopback(ip))
}
