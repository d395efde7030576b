import { finish } from '../../base/clock.ts'
import { PersistentMap } from '../../base/collections.ts'
import { formatIp, formatIpPort, type Ip } from '../../base/ip.ts'
import { PROTOCOL_NUMBERS } from '../../base/ip-packet.ts'
import { readU16be } from '../../base/octets.ts'
import type { Config } from '../../config/config.ts'
import type { DynamicElements } from '../../kernel/evaluate/single.ts'
import { createTracer, type Trace, type TracePacket, type Tracer } from '../../kernel/evaluate/trace.ts'
import { createNftClient } from '../../kernel/nft/client.ts'
import type { Table } from '../../kernel/nft/state.ts'
import type { Backend, FrontendTable } from '../../model/frontend.ts'
import { elementExtent } from '../common/elements.ts'
import { limitsWithin } from '../common/relay/context.ts'
import { endpointText, type ListName, type Relay } from '../common/relay/relay.ts'
import { relayMetrics } from '../common/relay/relay-set.ts'
import { LAYOUTS } from '../common/tables.ts'
import { bothNamed, deleteTables, retireTables, withNftClient } from '../common/writers.ts'
import type { Mode, ModeContext, ModeTracer, OpenPlane } from '../mode.ts'
import { isOurs, UserspacePlane } from './plane.ts'
import { renderUserspaceState } from './render.ts'
import { proxyOfTable, tableNameOf, USERSPACE_SETTINGS, userspaceOptions } from './settings.ts'
import { userspaceHeld } from './show.ts'
import {
  EMPTY_STATE,
  isSymbol,
  REDIRECT_MAPS,
  readSymbol,
  resolveElement,
  type SymbolParts,
  type UserspacePlan,
  type UserspaceState,
} from './state.ts'

export const userspace: Mode = {
  name: 'userspace',
  title: 'userspace',
  purpose: 'a relay for debugging',
  settings: USERSPACE_SETTINGS,
  kernelPart: 'nf_tables',
  open: (context, use) => use(openUserspace(context)),
  retire: (context, signal) =>
    retireTables(context, signal, { name: tableNameOf(context.config.serviceProxyName), isOurs }),
  trace: userspaceTracer,
  held: userspaceHeld,
  // The process itself balances connections and remembers clients, and endpoints see its address.
  needsFeature: kind => kind !== 'numgen' && kind !== 'masquerade' && kind !== 'dynamic' && kind !== 'log',
  async cleanup(context) {
    const tables = bothNamed(tableNameOf(context.proxy))
    const removed = await withNftClient(context, client => deleteTables(client, tables, isOurs, 'clean up'))
    return { removed: removed.map(table => `table ${table}`), foreign: [] }
  },
  // Estimated: docs/decisions/0022-shares.md.
  costs: { frontend: 4_096, sliceEndpoint: 320, endpoint: 320, perFrontend: false },
  // The relay listens on one of them.
  needsAddresses: true,
  relays: true,
  tableName: tableNameOf,
  proxyOfTable,
}

const COSTS =
  "userspace mode: this process relays every connection; endpoints see its address instead of the client's, and connections end with it; use it for debugging, or if the kernel supports no other mode"

/** Opens userspace mode. Throws when nf_tables of this kernel cannot be reached. */
export function openUserspace({
  config,
  clock,
  sockets,
  tell,
}: ModeContext): OpenPlane<UserspaceState, UserspacePlan> {
  const transport = sockets.netfilter()
  const client = createNftClient({ transport, clock })
  const limits = limitsWithin(sockets.room?.())
  const options = { ...userspaceOptions(config), limits }
  const plane = new UserspacePlane({
    client,
    clock,
    options,
    writers: { openTransport: sockets.netfilter, own: transport.portId },
    report: tell,
  })
  return {
    plane,
    start() {
      const { connections, sessions } = limits
      tell?.({ kind: 'notice', level: 'warn', text: COSTS, facts: { connections, sessions } })
      plane.startRelaying()
    },
    // The kernel does not hold the endpoints of this mode.
    extent: ({ ruleset }) =>
      elementExtent(
        ruleset,
        set => REDIRECT_MAPS.has(set),
        () => false,
      ),
    unsupported: ({ refusals }) => [...refusals.values()].flat(),
    metrics: () => Promise.resolve(relayMetrics(plane.counts)),
    async close() {
      plane.release()
      await client.close()
    },
  }
}

/** The key for clients that the relays remember, among the elements that packets wrote. */
const CLIENTS = 'userspace clients'

/**
 * Traces packets in memory through our tables and on through the relay, after which the source is this node.
 * Nothing listens during a trace, so listeners have numbers instead of ports. Round robin is assumed to
 * choose any endpoint.
 */
export function createUserspaceTracer(state: UserspaceState): Tracer {
  const { tables, listeners } = numbered(state)
  const rules = createTracer({ tables })
  const relayOf = ({ protocol }: TracePacket, { destination: { ip, port } }: Trace): Relayed => {
    const listener = listeners.get(listenerKey(protocol, ip, port))
    const relay = listener === undefined ? undefined : state.relays.get(listener.key)
    if (listener === undefined || relay === undefined)
      throw new Error(`no relay listens at ${formatIpPort(ip, port)}`)
    return { relay, list: listener.list }
  }
  return {
    trace(packet, surroundings) {
      const found = rules.trace(packet, surroundings)
      if (found.verdict !== 'dnat') return found
      const relayed = relayOf(packet, found)
      const choices = choicesOf(relayed, packet.source, surroundings.dynamic)
      const chosen = choices[choices.length === 1 ? 0 : surroundings.random(choices.length)]
      return through(found, { ...relayed, source: packet.source, chosen })
    },
    ways: (packet, surroundings, limit) =>
      rules.ways(packet, surroundings, limit).flatMap(way => {
        if (way.trace.verdict !== 'dnat') return [way]
        const relayed = relayOf(packet, way.trace)
        const choices = choicesOf(relayed, packet.source, surroundings.dynamic)
        return choices.map(chosen => ({
          trace: through(way.trace, { ...relayed, source: packet.source, chosen }),
          probability: way.probability / choices.length,
        }))
      }),
  }
}

interface Relayed {
  readonly relay: Relay
  readonly list: ListName
}

/** Gives the endpoints that a relay may choose for a client: one, if it remembers the client. */
function choicesOf(
  { relay: { key, balance }, list }: Relayed,
  source: Ip,
  dynamic: DynamicElements | undefined,
): readonly Backend[] {
  const backends = balance[list]
  if (backends.length === 0) throw new Error(`a list without endpoints has a listener: ${key}`)
  const last = balance.affinityTimeoutS > 0 ? dynamic?.get(CLIENTS)?.get(clientOf(key, source)) : undefined
  const known = backends.find(one => endpointText(one) === last)
  return known === undefined ? backends : [known]
}

function clientOf(key: string, source: Ip): string {
  return `${key} ${formatIp(source)}`
}

/** Leads a packet that the rules sent to a listener on to an endpoint. */
function through(
  found: Trace,
  { relay, list, source, chosen }: Relayed & { readonly source: Ip; readonly chosen: Backend | undefined },
): Trace {
  if (chosen === undefined) throw new Error('a roll is below its modulus')
  const { key, protocol, displayName, balance } = relay
  const clients = new Map(found.dynamic.get(CLIENTS))
  if (balance.affinityTimeoutS > 0) clients.set(clientOf(key, source), endpointText(chosen))
  const step: Trace['steps'][number] = {
    chain: `relay ${protocol} ${displayName} (${list})`,
    rule: 1,
    text: 'round robin, from this node',
    elements: balance[list].map(endpointText),
  }
  return {
    ...found,
    destination: { ip: chosen.ip, port: chosen.port },
    masquerade: true,
    steps: [...found.steps.map(withoutNumbers), step],
    dynamic: new Map(found.dynamic).set(CLIENTS, clients),
  }
}

export function userspaceTracer(config: Config, table: FrontendTable): ModeTracer {
  const options = userspaceOptions(config)
  const state = finish(renderUserspaceState(table, { base: EMPTY_STATE, without: new Set() }, options))
  return createUserspaceTracer(state)
}

/** Removes the numbers from a step, because the port of a listener is unknown here. */
function withoutNumbers(step: Trace['steps'][number]): Trace['steps'][number] {
  const elements = step.elements.map(text =>
    REDIRECT.test(text) ? text.replace(/ \. \d+$/, ' . a port that the daemon chooses') : text,
  )
  return { ...step, elements }
}

const REDIRECT = new RegExp(`^(?:${[...REDIRECT_MAPS].join('|')}): `)

interface Numbered {
  readonly tables: readonly Table[]
  /** Listeners by listenerKey. */
  readonly listeners: ReadonlyMap<string, SymbolParts>
}

function numbered({ ruleset }: UserspaceState): Numbered {
  const listeners = new Map<string, SymbolParts>()
  const numbers = new Map<string, number>()
  const numberOf = (key: string, list: ListName): number => {
    const name = `${list} ${key}`
    const number = numbers.get(name) ?? numbers.size + 1
    numbers.set(name, number)
    return number
  }
  const tables = ruleset.tables.map(table => {
    const { addressLength } = LAYOUTS[table.family]
    const groups = new Map<string, Table['elements'] extends PersistentMap<infer G> ? G : never>()
    for (const group of table.elements.keys()) {
      const elements = (table.elements.get(group) ?? []).map(element => {
        const resolved = resolveElement(element, table.family, numberOf)
        if (isSymbol(element.data) && typeof resolved.data === 'string') {
          const parts = readSymbol(element.data, table.family)
          const port = readU16be(resolved.data, addressLength)
          listeners.set(listenerKey(PROTOCOL_NUMBERS[parts.protocol], parts.address, port), parts)
        }
        return resolved
      })
      groups.set(group, elements)
    }
    return { ...table, elements: PersistentMap.owning(groups) }
  })
  return { tables, listeners }
}

function listenerKey(protocol: number, ip: Ip, port: number): string {
  return `${protocol} ${formatIpPort(ip, port)}`
}
