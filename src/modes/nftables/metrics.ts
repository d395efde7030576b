import { Pauses, type Steps } from '../../base/clock.ts'
import { formatIpPort } from '../../base/ip.ts'
import type { Octets } from '../../base/octets.ts'
import type { NftClient } from '../../kernel/nft/client.ts'
import type { Table } from '../../kernel/nft/state.ts'
import { ENDPOINTS_MAPS, type Ids, idOf } from './layout.ts'
import type { NftablesState } from './state.ts'

/** The number of new connections for which one element of the kernel was chosen since it exists. */
interface ConnectionCount {
  /** The key of the element as long as it exists: `ip` or `ip6`, its map, and its key in the map. */
  readonly element: string
  /** PortFrontends.key. */
  readonly port: string
  /** `10.0.0.1:8080`. */
  readonly endpoint: string
  readonly connections: bigint
}

/** Reads the counters of both tables, if they have any (NftablesOptions.connectionCounters). */
export async function readConnections(
  client: NftClient,
  state: NftablesState,
  finishSteps: <T>(steps: Steps<T>) => Promise<T>,
): Promise<readonly ConnectionCount[]> {
  const found: ConnectionCount[] = []
  for (const table of state.ruleset.tables) {
    const maps = [...table.sets.values()].filter(set => ENDPOINTS_MAPS.has(set.name) && set.counted === true)
    if (maps.length === 0) continue
    const { family, name } = table
    const ports = portsById(state.allocations[family].ids)
    const endpoints = await finishSteps(endpointsByKey(table))
    for (const { name: set } of maps)
      await client.counters({ table: { family, name }, set }, (key, connections) => {
        const element = `${set} ${key}`
        const endpoint = endpoints.get(element)
        const port = ports.get(idOf(key))
        // The kernel and the state differ here because the element is about to be removed or was just added.
        if (endpoint === undefined || port === undefined) return
        found.push({ element: `${family} ${element}`, port, endpoint, connections })
      })
  }
  return found
}

function portsById({ byPort }: Ids): ReadonlyMap<number, string> {
  return new Map(byPort.entries().map(([port, id]) => [id, port]))
}

function* endpointsByKey({ elements }: Table): Steps<ReadonlyMap<string, string>> {
  const endpoints = new Map<string, string>()
  const pauses = new Pauses()
  for (const group of elements.values()) {
    for (const { set, key, data } of group) {
      if (!ENDPOINTS_MAPS.has(set) || typeof data !== 'string') continue
      endpoints.set(`${set} ${key}`, endpointText(data))
      if (pauses.due()) yield
    }
  }
  return endpoints
}

/** Formats an address, a port, and two bytes of padding. */
function endpointText(data: Octets): string {
  const ip = data.slice(0, -4)
  return formatIpPort(ip, (data.charCodeAt(ip.length) << 8) | data.charCodeAt(ip.length + 1))
}
