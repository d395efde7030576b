import { Pauses, type Steps } from '../../base/clock.ts'
import { append, PersistentMap } from '../../base/collections.ts'
import { formatIp } from '../../base/ip.ts'
import { type Octets, readU16be } from '../../base/octets.ts'
import type { Element, Ruleset, Table } from '../../kernel/nft/state.ts'
import type { ListName, Relay } from '../common/relay/relay.ts'
import { GROUP_NODEPORT_IPS, GROUP_UNKNOWN, LAYOUTS, portData, protocolOfKey } from '../common/tables.ts'
import {
  EMPTY_STATE,
  type ListenerSymbol,
  LOCAL_SUFFIX,
  type PortOf,
  REDIRECT_MAPS,
  symbolOf,
  type UserspaceState,
} from './state.ts'

/** Listeners by `TCP` or `UDP` followed by the octets of address and port. */
type ListenerBook = ReadonlyMap<string, ListenerSymbol>

/** Makes the book of a process that has these relays open. */
export function bookOf(relays: PersistentMap<Relay>, portOf: PortOf): ListenerBook {
  const book = new Map<string, ListenerSymbol>()
  for (const relay of relays.values()) {
    for (const list of relay.lists) {
      const port = portOf(relay.key, list)
      if (port !== undefined)
        book.set(placeKey(relay.protocol, relay.address + portData(port)), symbolOf(relay, list))
    }
  }
  return book
}

function placeKey(protocol: string, place: Octets): string {
  return protocol + place
}

/**
 * Makes a state from what the kernel holds: the address and port of a listener become its symbol. Elements
 * that lead to no listener of the book stay unchanged and equal no wanted element. The diff therefore
 * replaces leftovers of a process that has ended.
 */
export function* adoptRuleset(
  ruleset: Ruleset,
  { relays, book }: { readonly relays: PersistentMap<Relay>; readonly book: ListenerBook },
): Steps<UserspaceState> {
  const tables: Table[] = []
  for (const table of ruleset.tables) {
    const { addressLength } = LAYOUTS[table.family]
    const groups = new Map<string, Element[]>()
    const pauses = new Pauses()
    for (const list of table.elements.values()) {
      for (const found of list) {
        if (pauses.due()) yield
        const element = symbolised(found, addressLength, book)
        const group = groupOf(element)
        append(groups, group, element)
      }
    }
    tables.push({ ...table, elements: PersistentMap.owning(groups) })
  }
  return { ...EMPTY_STATE, ruleset: { tables }, relays }
}

function symbolised(element: Element, addressLength: number, book: ListenerBook): Element {
  const { set, key, data } = element
  const protocol = protocolOfKey(key) ?? ''
  if (REDIRECT_MAPS.has(set) && typeof data === 'string')
    return { ...element, data: book.get(placeKey(protocol, data)) ?? data }
  if (set !== 'listeners') return element
  const place = key.slice(0, addressLength) + portData(readU16be(key, addressLength + 4))
  return { ...element, key: book.get(placeKey(protocol, place)) ?? key }
}

function groupOf({ set, comment }: Element): string {
  if (set === 'nodeport-ips') return GROUP_NODEPORT_IPS
  const name = portName(comment)
  const colon = name.indexOf(':')
  const service = colon < 0 ? name : name.slice(0, colon)
  return /^[^/@]+\/[^/]+$/.test(service) ? service : GROUP_UNKNOWN
}

/** Gives the Service port in the comment of an element of either list: `ns/web:http`. */
export function portName(comment: string): string {
  return comment.endsWith(LOCAL_SUFFIX) ? comment.slice(0, -LOCAL_SUFFIX.length) : comment
}

/** Makes the book of another process from its rules. A listener with contradictory comments is ignored. */
export function bookFromComments({ tables }: Ruleset): ListenerBook {
  const book = new Map<string, ListenerSymbol>()
  const places = new Map<ListenerSymbol, string>()
  for (const { family, elements } of tables) {
    const { addressLength, model } = LAYOUTS[family]
    for (const group of elements.values()) {
      for (const { set, key, data, comment } of group) {
        const protocol = protocolOfKey(key)
        const known = protocol === 'TCP' || protocol === 'UDP'
        if (!REDIRECT_MAPS.has(set) || typeof data !== 'string' || !known || comment === '') continue
        const address = data.slice(0, addressLength)
        const name = portName(comment)
        const list: ListName = name === comment ? 'cluster' : 'local'
        const port = name.includes(':') ? name : `${name}:`
        const relayKey = `${port}/${protocol}/${model} ${formatIp(address)}`
        const symbol = symbolOf({ key: relayKey, address, protocol }, list)
        const place = placeKey(protocol, data)
        if ((places.get(symbol) ?? place) !== place) book.delete(place)
        else book.set(place, symbol)
        places.set(symbol, place)
      }
    }
  }
  return book
}
