import { NFT_META_L4PROTO } from '../../kernel/nft/constants.ts'
import type { Protocol } from '../../model/service.ts'
import {
  compare,
  destinationAddress,
  type Expressions,
  mapped,
  maskNumber,
  portOfPacket,
  readPriority,
  sourceAddress,
  translate,
  writePriority,
} from '../common/expressions.ts'
import type { FamilyLayout } from '../common/family.ts'
import { PROTOCOL_NUMBERS } from '../common/octet-keys.ts'
import { CLIENT_6_LENGTH, CODE_MASK, ENDPOINTS, ID_MASK, LOCAL_LIST, STABLE, STABLE_LOCAL } from './layout.ts'

/**
 * Fragments of rules. nft's language has no registers. It begins each statement at the first register. These
 * fragments do the same, because otherwise nft could not load the rules that it lists. One statement passes a
 * value to the next in the priority of the packet.
 */
const KEY = 0

/** The maps that decide what happens to a packet. */
type FrontendMap = 'frontends' | 'nodeports'

/**
 * Stores V of the packet in its priority. When no frontend is at the packet's destination, the rule ends here
 * and the priority stays.
 */
function findValue(layout: FamilyLayout, map: FrontendMap): Expressions {
  const addressRegs = map === 'frontends' ? layout.addressRegs : 0
  const key: Expressions = addressRegs === 0 ? [] : [destinationAddress(layout, KEY)]
  return [...key, ...portOfPacket(KEY + addressRegs), mapped(map, KEY, KEY), writePriority(KEY)]
}

export function dispatch(layout: FamilyLayout, map: FrontendMap): Expressions {
  return [
    ...findValue(layout, map),
    readPriority(KEY),
    maskNumber(KEY, CODE_MASK),
    mapped('dispatch', KEY, 'verdict'),
  ]
}

/** Loads the id of the service port, with `low` in its low bits. */
export function serviceWith(low: number): Expressions {
  return [readPriority(KEY), maskNumber(KEY, ID_MASK, low)]
}

function listOf({ local }: { readonly local: boolean }): Expressions {
  return serviceWith(local ? LOCAL_LIST : 0)
}

function ofProtocol(protocol: Protocol): Expressions {
  return [
    { kind: 'meta', key: NFT_META_L4PROTO, dreg: KEY },
    compare('eq', KEY, String.fromCharCode(PROTOCOL_NUMBERS[protocol])),
  ]
}

/** Sends a packet of the protocol to a random one of the first `modulus` slots of its list. */
export function pickSlot(layout: FamilyLayout, list: ListChoice): Expressions {
  return [
    ...ofProtocol(list.protocol),
    ...listOf(list),
    { kind: 'numgen', modulus: list.modulus, dreg: KEY + 1 },
    mapped(ENDPOINTS[list.protocol], KEY, KEY),
    translate(layout, KEY),
  ]
}

interface ListKind {
  readonly protocol: Protocol
  readonly local: boolean
}

interface ListChoice extends ListKind {
  readonly modulus: number
}

/**
 * Sends the packet to the endpoint whose number is in the packet's priority. `numgen random mod 1` is a
 * constant.
 */
function pickNumbered(layout: FamilyLayout, { protocol, local }: ListKind): Expressions {
  return [
    readPriority(KEY),
    { kind: 'numgen', modulus: 1, offset: local ? STABLE_LOCAL : STABLE, dreg: KEY + 1 },
    mapped(ENDPOINTS[protocol], KEY, KEY),
    translate(layout, KEY),
  ]
}

/**
 * Loads a key of `affinity`. nft 1.0.6 gives an updated key four registers, whatever its length, and its data
 * the next one. The last 96 bits of an IPv6 address identify a client, so that the key fits.
 */
function clientKey(layout: FamilyLayout): Expressions {
  const address = sourceAddress(layout, KEY + 1)
  if (layout.model === 'IPv4' || address.kind !== 'payload') return [...serviceWith(0), address]
  const offset = address.offset + address.length - CLIENT_6_LENGTH
  return [...serviceWith(0), { ...address, offset, length: CLIENT_6_LENGTH }]
}
const CLIENT_DATA = 4

/** Updates or deletes the entry of a client. The kernel requires data for a map even on deletion. */
function changeClient(layout: FamilyLayout, op: 'update' | 'delete', timeoutMs: number): Expressions {
  return [
    ...clientKey(layout),
    readPriority(CLIENT_DATA),
    { kind: 'dynset', op, set: 'affinity', keyReg: KEY, dataReg: CLIENT_DATA, timeoutMs },
  ]
}

/** Sends a client to its previous endpoint if that endpoint still exists, and renews the timeout. */
export function pickKnown(
  layout: FamilyLayout,
  options: ListKind & { readonly timeoutMs: number },
): Expressions {
  return [
    ...ofProtocol(options.protocol),
    ...clientKey(layout),
    mapped('affinity', KEY, KEY),
    writePriority(KEY),
    ...changeClient(layout, 'update', options.timeoutMs),
    ...pickNumbered(layout, options),
  ]
}

/**
 * Sends a client to a random endpoint. With a timeout, the client is remembered: the old entry is deleted
 * first, because `update` alone keeps the data of a live entry. The rule ends without a translation when the
 * map is full.
 */
export function pickNew(
  layout: FamilyLayout,
  options: ListChoice & { readonly timeoutMs: number | undefined },
): Expressions {
  const { timeoutMs } = options
  return [
    ...ofProtocol(options.protocol),
    ...listOf(options),
    { kind: 'numgen', modulus: options.modulus, dreg: KEY + 1 },
    mapped('slots', KEY, KEY),
    writePriority(KEY),
    ...(timeoutMs === undefined
      ? []
      : [...changeClient(layout, 'delete', 0), ...changeClient(layout, 'update', timeoutMs)]),
    ...pickNumbered(layout, options),
  ]
}
