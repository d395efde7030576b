import { Pauses, type Steps } from '../../base/clock.ts'
import { formatIpPort } from '../../base/ip.ts'
import type { IpvsClient } from '../../kernel/ipvs/client.ts'
import { destinationKey, type ServerKey, serverKey } from '../../kernel/ipvs/state.ts'
import type { TrafficCount } from '../../telemetry/connection-totals.ts'
import { placePorts, surroundingsOf } from './places.ts'
import type { IpvsOptions } from './settings.ts'
import type { IpvsState } from './state.ts'

interface TrafficOptions {
  readonly options: IpvsOptions
  readonly finishSteps: <T>(steps: Steps<T>) => Promise<T>
}

/** Reads the statistics of all real servers of the rendered `state` that still exist. */
export async function readTraffic(
  client: Pick<IpvsClient, 'destinations'>,
  state: IpvsState,
  { options, finishSteps }: TrafficOptions,
): Promise<readonly TrafficCount[]> {
  const ports = await finishSteps(portsByServer(state, options))
  const servers = [...ports].flatMap(([key, port]) => {
    const placed = state.servers.get(key)
    return placed === undefined ? [] : [{ key, port, server: placed.server }]
  })
  const lists = await client.destinations(servers.map(({ server }) => server))
  return servers.flatMap(({ key, port }, at) =>
    (lists[at] ?? []).map(({ destination, stats }): TrafficCount => {
      const { connections, ...volume } = stats
      return {
        element: `${key} ${destinationKey(destination)}`,
        port,
        endpoint: formatIpPort(destination.ip, destination.port),
        connections,
        volume,
      }
    }),
  )
}

/** Gives the port of each virtual server, by PortFrontends.key. A node port gives way to a Service with the address. */
function* portsByServer(
  { frontends, missingSchedulers }: IpvsState,
  options: IpvsOptions,
): Steps<ReadonlyMap<ServerKey, string>> {
  const ports = new Map<ServerKey, string>()
  if (frontends === undefined) return ports
  const surroundings = surroundingsOf(frontends, { ...options, missingSchedulers })
  const nodePorts = new Map<ServerKey, string>()
  const pauses = new Pauses()
  for (const service of frontends.services.values()) {
    for (const { port, places, privateServer } of placePorts(service, {
      surroundings,
      isTaken: () => false,
    })) {
      for (const { key, frontend } of places)
        (frontend.ip === undefined ? nodePorts : ports).set(key, port.key)
      if (privateServer !== undefined) ports.set(serverKey(privateServer), port.key)
    }
    if (pauses.due()) yield
  }
  for (const [key, port] of nodePorts) if (!ports.has(key)) ports.set(key, port)
  return ports
}
