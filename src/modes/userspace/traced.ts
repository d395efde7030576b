import { finish } from '../../base/clock.ts'
import { PersistentMap } from '../../base/collections.ts'
import { formatIpPort, type Ip } from '../../base/ip.ts'
import { PROTOCOL_NUMBERS } from '../../base/ip-packet.ts'
import { readU16be } from '../../base/octets.ts'
import type { Config } from '../../config/config.ts'
import type { Table } from '../../kernel/nft/state.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import type { ListName } from '../common/forwarder/forwarder.ts'
import { LAYOUTS } from '../common/tables.ts'
import type { TracedListener, TracedRules } from '../common/traced-rules.ts'
import { renderUserspaceState } from './render.ts'
import { userspaceOptions } from './settings.ts'
import {
  EMPTY_STATE,
  isSymbol,
  REDIRECT_MAPS,
  readSymbol,
  resolveElement,
  type SymbolParts,
  type UserspaceState,
} from './state.ts'

/** Gives our tables and the listeners behind them. Nothing listens yet, so listeners have numbers instead of ports. */
export function tracedUserspace(state: UserspaceState): TracedRules {
  const { tables, listeners } = numbered(state)
  const at = (protocol: number, ip: Ip, port: number): TracedListener | undefined => {
    const listener = listeners.get(listenerKey(protocol, ip, port))
    const forwarder = listener === undefined ? undefined : state.forwarders.get(listener.key)
    if (listener === undefined || forwarder === undefined) return undefined
    const { key, protocol: its, displayName: name, balance } = forwarder
    const { list } = listener
    const { affinityTimeoutS } = balance
    return { key, name, protocol: its, list, endpoints: balance[list], affinityTimeoutS }
  }
  return { tables, listeners: { maps: REDIRECT_MAPS, at } }
}

export function tracedUserspaceConfig(config: Config, table: FrontendTable): TracedRules {
  const options = userspaceOptions(config)
  return tracedUserspace(
    finish(renderUserspaceState(table, { base: EMPTY_STATE, without: new Set() }, options)),
  )
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
