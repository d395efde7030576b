import { FAMILIES, familyOf, type Ip } from '../../base/ip.ts'
import { entryKey } from '../../kernel/ipset/entry-key.ts'
import { serverKey } from '../../kernel/ipvs/key.ts'
import type { ServerKey, VirtualAddress } from '../../kernel/ipvs/state.ts'
import type { ServiceFrontends } from '../../model/frontend.ts'
import type { ServiceKey } from '../../model/service.ts'
import { PROTOCOL_NUMBERS } from '../common/octet-keys.ts'
import { NODE_PORT_SETS } from './layout.ts'
import type { IsTaken } from './places.ts'
import { setName } from './set-names.ts'
import type { IpvsState } from './state.ts'
import type { Surroundings } from './surroundings.ts'

/** The addresses and ports of Services at node addresses, where node ports give way, before and after a change. */
export interface Taken {
  readonly before: IsTaken
  readonly after: IsTaken
  /** The Services whose node ports become visible or hidden. */
  readonly touched: ReadonlySet<ServiceKey>
}

/** A Service before and after a change; a quarantined one is undefined. */
export interface ServiceChange {
  readonly key: ServiceKey
  readonly before: ServiceFrontends | undefined
  readonly after: ServiceFrontends | undefined
}

/** Compares the places before and after. `base` is undefined when everything is rendered again. */
export function takenBy(
  changes: Iterable<ServiceChange>,
  base: IpvsState | undefined,
  { nodePortIps }: Surroundings,
): Taken {
  const ips = new Set<Ip>(FAMILIES.flatMap(family => nodePortIps[family]))
  const gone = new Map<ServerKey, VirtualAddress>()
  const come = new Map<ServerKey, VirtualAddress>()
  if (ips.size > 0)
    for (const { before, after } of changes) {
      if (base !== undefined) collect(before, ips, gone)
      collect(after, ips, come)
    }
  const before = base === undefined ? () => false : takenIn(base)
  const after: IsTaken = key => come.has(key) || (!gone.has(key) && before(key))
  const touched = new Set<ServiceKey>()
  if (base !== undefined)
    for (const [key, address] of [...gone, ...come])
      if (before(key) !== after(key)) for (const user of nodePortUsers(base, address)) touched.add(user)
  return { before, after, touched }
}

function collect(
  service: ServiceFrontends | undefined,
  ips: ReadonlySet<Ip>,
  found: Map<ServerKey, VirtualAddress>,
): void {
  if (service === undefined) return
  for (const { protocol, frontends } of service.ports)
    for (const { ip, port } of frontends) {
      if (ip === undefined || !ips.has(ip)) continue
      const at = { protocol, ip, port }
      found.set(serverKey(at), at)
    }
}

/** Makes a check whether the Service of a virtual server has a frontend with that very address. */
function takenIn({ servers, frontends }: IpvsState): IsTaken {
  return key => {
    const placed = servers.get(key)
    if (placed === undefined) return false
    const { protocol, ip, port } = placed.server
    const ports = frontends?.services.get(placed.service)?.ports ?? []
    return ports.some(
      its => its.protocol === protocol && its.frontends.some(one => one.ip === ip && one.port === port),
    )
  }
}

function nodePortUsers(
  { entries }: IpvsState,
  { protocol, ip, port }: VirtualAddress,
): readonly ServiceKey[] {
  const set = setName(NODE_PORT_SETS[protocol].all, familyOf(ip))
  const entry = protocol === 'SCTP' ? { ip, protocol: PROTOCOL_NUMBERS[protocol], port } : { port }
  return entries.get(entryKey(set, entry))?.services ?? []
}
