import { IP_VS_CONN_F_MASQ, IP_VS_SVC_F_PERSISTENT, IP_VS_SVC_F_SCHED2 } from '../../kernel/ipvs/constants.ts'
import {
  destinationKey,
  sameDestination,
  sameSettings,
  serverKey,
  WHOLE_ADDRESS,
} from '../../kernel/ipvs/key.ts'
import type { RealServer, ServerKey, VirtualAddress, VirtualServer } from '../../kernel/ipvs/state.ts'
import type { Backend, PortFrontends } from '../../model/frontend.ts'
import { objectText, type Refusal } from '../../model/refusal.ts'
import type { ServiceKey } from '../../model/service.ts'
import type { PlacedPort } from './places.ts'
import type { PlacedServer } from './state.ts'
import type { Surroundings } from './surroundings.ts'

const SCHEDULER_FIELD = 'metadata.annotations[kprobe.io/ipvs-scheduler]'

/** IP_VS_SVC_F_SCHED_MH_PORT (linux/ip_vs.h): maglev hashing includes the client's port, as in kube-proxy. */
const MAGLEV_BY_PORT = IP_VS_SVC_F_SCHED2

/** Makes the virtual servers of a port. */
export function serversOf(
  { port, places, privateServer }: PlacedPort,
  surroundings: Surroundings,
): ReadonlyMap<ServerKey, PlacedServer> {
  const servers = new Map<ServerKey, PlacedServer>()
  const rest = restOf(port, surroundings)
  // Several servers share each list.
  const lists: { [name in 'cluster' | 'local']?: ReadonlyMap<string, RealServer> } = {}
  const listOf = (backends: readonly Backend[]) => {
    if (backends.length === 0) return NONE
    const name = backends === port.cluster ? 'cluster' : 'local'
    const list = lists[name] ?? destinationsOf(backends)
    lists[name] = list
    return list
  }
  const add = (
    { protocol, ip, port: number }: VirtualAddress,
    key: ServerKey,
    backends: readonly Backend[],
  ) =>
    servers.set(key, {
      server: { protocol, ip, port: number, ...rest },
      destinations: listOf(backends),
      drainMs: port.tcpDrainMs,
      service: port.service,
    })
  for (const place of places) if (!place.hidden) add(place, place.key, place.backends)
  if (privateServer !== undefined) add(privateServer, serverKey(privateServer), port.cluster)
  return servers
}

function restOf(port: PortFrontends, surroundings: Surroundings): Omit<VirtualServer, keyof VirtualAddress> {
  const { family, affinityTimeoutS: timeoutS } = port
  const scheduler = schedulerOf(port, surroundings)
  const persistent = timeoutS > 0 ? IP_VS_SVC_F_PERSISTENT : 0
  const flags = persistent | (scheduler === 'mh' ? MAGLEV_BY_PORT : 0)
  return { scheduler, flags, timeoutS, netmask: WHOLE_ADDRESS[family] }
}

function schedulerOf({ scheduler }: PortFrontends, surroundings: Surroundings): string {
  if (scheduler === undefined || surroundings.missingSchedulers.has(scheduler)) return surroundings.scheduler
  return scheduler
}

/** Makes one refusal for each Service that configures a scheduler which this kernel lacks. */
export function schedulerRefusal(
  service: ServiceKey,
  ports: readonly PortFrontends[],
  { scheduler, missingSchedulers }: Surroundings,
): Refusal | undefined {
  const asked = ports.find(port => port.scheduler !== undefined && missingSchedulers.has(port.scheduler))
  if (asked?.scheduler === undefined) return undefined
  return {
    object: objectText('Service', service),
    field: SCHEDULER_FIELD,
    value: asked.scheduler,
    reason: `this kernel has no such scheduler (module ip_vs_${asked.scheduler}); kprobe uses ${scheduler}`,
  }
}

const NONE: ReadonlyMap<string, RealServer> = new Map()

/** Makes the real servers of endpoints. IPVS has each address and port once. */
function destinationsOf(backends: readonly Backend[]): ReadonlyMap<string, RealServer> {
  const destinations = new Map<string, RealServer>()
  for (const { ip, port } of backends)
    destinations.set(destinationKey({ ip, port }), { ip, port, weight: 1, forwarding: IP_VS_CONN_F_MASQ })
  return destinations
}

export function sameServer(a: PlacedServer, b: PlacedServer): boolean {
  if (a === b) return true
  if (a.service !== b.service || a.drainMs !== b.drainMs || !sameSettings(a.server, b.server)) return false
  if (a.destinations === b.destinations) return true
  if (a.destinations.size !== b.destinations.size) return false
  for (const [key, destination] of a.destinations) {
    const other = b.destinations.get(key)
    if (other === undefined || !sameDestination(destination, other)) return false
  }
  return true
}
