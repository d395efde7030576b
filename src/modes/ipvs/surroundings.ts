import { FAMILIES, type Family, familyOf, type Ip, isLinkLocal, isLoopback } from '../../base/ip.ts'
import { hex } from '../../base/octets.ts'
import type { ServerKey } from '../../kernel/ipvs/state.ts'
import type { FrontendTable, NodePortAddresses } from '../../model/frontend.ts'
import { detectorFor } from '../common/detector.ts'
import { cidrKey, detectorKey } from '../common/rules.ts'
import type { IpvsOptions } from './options.ts'

/** What all Services are rendered by, besides themselves. */
export interface Surroundings {
  /** Where NodePorts answer. */
  readonly nodePortIps: Readonly<Record<Family, readonly Ip[]>>
  /** Addresses that other devices have: they need not be bound to ours, and must not be taken from the node with it. */
  readonly localIps: ReadonlySet<Ip>
  readonly scheduler: string
  /** Schedulers that the kernel does not have. */
  readonly missingSchedulers: ReadonlySet<string>
  /** Virtual servers of somebody else's. */
  readonly occupied: ReadonlySet<ServerKey>
  /** Equal for surroundings by which every Service and every rule comes out the same. */
  readonly key: string
}

/** Which places have somebody else's virtual servers, as they were last seen. */
export interface Occupied {
  readonly servers: ReadonlySet<ServerKey>
  /** Another one whenever they change. */
  readonly version: number
}

export interface SurroundingsOptions extends IpvsOptions {
  /** Schedulers that the kernel turned out not to have. */
  readonly missingSchedulers: ReadonlySet<string>
  /** None unless told. */
  readonly occupied?: Occupied
}

const NOT_OCCUPIED: Occupied = { servers: new Set(), version: 0 }

export function surroundingsOf(frontends: FrontendTable, options: SurroundingsOptions): Surroundings {
  const { nodePorts, serviceCidrs, node } = frontends
  // Link-local addresses, which come and go with each pod, are no Service's.
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

/** A virtual server has one address: where NodePorts answer everywhere that is each address that can be reached from elsewhere. */
function addressesOf(nodePorts: NodePortAddresses, family: Family, localIps: readonly Ip[]): readonly Ip[] {
  if (nodePorts.kind === 'only') return [...new Set(nodePorts.ips.filter(ip => familyOf(ip) === family))]
  return localIps.filter(ip => familyOf(ip) === family && !isLoopback(ip))
}
