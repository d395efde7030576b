import type { Ip } from '../../base/ip.ts'
import type { Octets } from '../../base/octets.ts'
import type { Operation, Transaction } from '../../kernel/nft/operation.ts'
import type { Element, ElementData, NftFamily } from '../../kernel/nft/state.ts'
import { LAYOUTS } from '../common/family.ts'
import { portData, portKey } from '../common/octet-keys.ts'
import type { ListName } from './relay/balancer.ts'
import type { Relay, RelayKey } from './relay.ts'

/**
 * A placeholder for the address and port of a listener. The port is known only once the listener is open, and
 * rendering is pure, so states contain a symbol instead. A symbol begins with a character that is no octet,
 * so that it equals no value that was read. The address follows, and then a text that identifies the
 * listener.
 */
export type ListenerSymbol = string

const ARROW = '\u2192'

export function symbolOf(
  { address, key, protocol }: Pick<Relay, 'address' | 'key' | 'protocol'>,
  list: ListName,
): ListenerSymbol {
  return `${ARROW}${address}${list} ${protocol} ${key}`
}

export function isSymbol(data: ElementData): data is ListenerSymbol {
  return typeof data === 'string' && data.startsWith(ARROW)
}

/** The listener of a symbol. */
export interface SymbolParts {
  readonly address: Ip
  readonly list: ListName
  readonly protocol: 'TCP' | 'UDP'
  readonly key: RelayKey
}

export function readSymbol(symbol: ListenerSymbol, family: NftFamily): SymbolParts {
  const { addressLength } = LAYOUTS[family]
  const address = symbol.slice(1, 1 + addressLength)
  const [list = '', protocol = '', ...rest] = symbol.slice(1 + addressLength).split(' ')
  return {
    address,
    list: list === 'local' ? 'local' : 'cluster',
    protocol: protocol === 'UDP' ? 'UDP' : 'TCP',
    key: rest.join(' '),
  }
}

/** The port of a listener; undefined when it is not open. */
export type PortOf = (key: RelayKey, list: ListName) => number | undefined

/** Replaces every symbol by address and port; port 0, on which no process listens, where none is open. */
export function resolveTransaction(transaction: Transaction, portOf: PortOf): Transaction {
  return transaction.map((operation): Operation => {
    if (operation.verb !== 'add-elements' && operation.verb !== 'delete-elements') return operation
    const { family } = operation
    const elements = operation.elements.map(element => resolveElement(element, family, portOf))
    return { ...operation, elements }
  })
}

export function resolveElement(element: Element, family: NftFamily, portOf: PortOf): Element {
  const { key, data } = element
  const keyed = isSymbol(key) ? { ...element, key: keyOctets(key, family, portOf) } : element
  return isSymbol(data) ? { ...keyed, data: dataOctets(data, family, portOf) } : keyed
}

function dataOctets(symbol: ListenerSymbol, family: NftFamily, portOf: PortOf): Octets {
  const { address, key, list } = readSymbol(symbol, family)
  return address + portData(portOf(key, list) ?? 0)
}

function keyOctets(symbol: ListenerSymbol, family: NftFamily, portOf: PortOf): Octets {
  const { address, key, list, protocol } = readSymbol(symbol, family)
  return address + portKey(protocol, portOf(key, list) ?? 0)
}
