import { finish } from '../../base/clock.ts'
import { PersistentMap } from '../../base/collections.ts'
import { formatIp, formatIpPort, type Ip } from '../../base/ip.ts'
import { readU16be } from '../../base/octets.ts'
import type { Config } from '../../config/config.ts'
import type { Table } from '../../kernel/nft/state.ts'
import { allWays, createTracer, type Trace, type Tracer } from '../../kernel/nft/trace.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import { endpointText, type ListName } from '../common/relay/balancer.ts'
import type { Relay } from '../common/relay/relay.ts'
import { LAYOUTS, PROTOCOL_NUMBERS } from '../common/tables.ts'
import type { ModeTracer } from '../mode.ts'
import { REDIRECT_MAPS } from './layout.ts'
import { renderUserspaceState } from './render.ts'
import { userspaceOptions } from './settings.ts'
import {
  EMPTY_STATE,
  isSymbol,
  readSymbol,
  resolveElement,
  type SymbolParts,
  type UserspaceState,
} from './state.ts'

const WAYS_MAX = 100_000
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
  const trace: Tracer['trace'] = (packet, surroundings) => {
    const found = rules.trace(packet, surroundings)
    if (found.verdict !== 'dnat') return found
    const { ip, port } = found.destination
    const listener = listeners.get(listenerKey(packet.protocol, ip, port))
    const relay = listener === undefined ? undefined : state.relays.get(listener.key)
    if (listener === undefined || relay === undefined)
      throw new Error(`no relay listens at ${formatIpPort(ip, port)}`)
    const clients = new Map(surroundings.dynamic?.get(CLIENTS))
    const chosen = choose(relay, listener.list, {
      source: packet.source,
      clients,
      random: surroundings.random,
    })
    const step: Trace['steps'][number] = {
      chain: `relay ${relay.protocol} ${relay.displayName} (${listener.list})`,
      rule: 1,
      text: 'round robin, from this node',
      elements: relay.balance[listener.list].map(endpointText),
    }
    const { ip: to, port: toPort } = chosen
    return {
      ...found,
      destination: { ip: to, port: toPort },
      masquerade: true,
      steps: [...found.steps.map(withoutNumbers), step],
      dynamic: new Map(found.dynamic).set(CLIENTS, clients),
    }
  }
  return {
    trace,
    ways: (packet, surroundings, limit = WAYS_MAX) =>
      allWays((random, forget) => trace(packet, { ...surroundings, random, forget }), limit),
  }
}

export function userspaceTracer(config: Config, table: FrontendTable): ModeTracer {
  const options = userspaceOptions(config)
  const state = finish(renderUserspaceState(table, { base: EMPTY_STATE, without: new Set() }, options))
  return { ...createUserspaceTracer(state), ownSource: () => undefined }
}

/** Removes the numbers from a step, because the port of a listener is unknown here. */
function withoutNumbers(step: Trace['steps'][number]): Trace['steps'][number] {
  const elements = step.elements.map(text =>
    REDIRECT.test(text) ? text.replace(/ \. \d+$/, ' . a port that the daemon chooses') : text,
  )
  return { ...step, elements }
}

const REDIRECT = new RegExp(`^(?:${[...REDIRECT_MAPS].join('|')}): `)

interface Choice {
  readonly source: Ip
  /** Endpoints by relay and client. */
  readonly clients: Map<string, string | undefined>
  readonly random: (modulus: number) => number
}

function choose({ key, balance }: Relay, list: ListName, { source, clients, random }: Choice) {
  const backends = balance[list]
  const client = `${key} ${formatIp(source)}`
  const isSticky = balance.affinityTimeoutS > 0
  const known = isSticky ? backends.find(one => endpointText(one) === clients.get(client)) : undefined
  const chosen = known ?? backends[random(backends.length)]
  if (chosen === undefined) throw new Error(`a list without endpoints has a listener: ${key}`)
  if (isSticky) clients.set(client, endpointText(chosen))
  return chosen
}

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
