import { PROTOCOL_NUMBERS } from '../../base/ip-packet.ts'
import { u32host } from '../../base/octets.ts'
import * as nft from '../../kernel/nft/constants.ts'
import type { Chain, Rule } from '../../kernel/nft/state.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import type { Protocol } from '../../model/service.ts'
import { withLogs } from '../common/logs.ts'
import {
  CHAIN_EARLY_POSTROUTING,
  CHAIN_FIREWALL,
  CHAIN_LOCALHOST,
  CHAIN_REJECT,
  CHAIN_SERVICES,
  compare,
  contextKey,
  destinationAddress,
  dropCounted,
  type Expressions,
  end,
  goTo,
  hookChains,
  mapped,
  maskBytes,
  maskNumber,
  masquerade,
  masqueradeMarked,
  matches,
  noLocalChain,
  offClusterRules,
  portOfPacket,
  prefixMask,
  readPriority,
  rejectChain,
  rule,
  sourceAddress,
  type TableContext,
  tableContext,
  toLoopback,
  toNodePortAddress,
  translate,
  unallocatedChains,
  WORK,
  writePriority,
} from '../common/rules.ts'
import type { FamilyLayout } from '../common/tables.ts'
import {
  CLIENT_6_LENGTH,
  CODE_MASK,
  ENDPOINTS,
  ID_MASK,
  LOCAL_LIST,
  STABLE,
  STABLE_LOCAL,
  VALUE_FLAG,
} from './layout.ts'
import type { NftablesOptions } from './settings.ts'

/**
 * Fragments of rules. nft's language has no registers. It begins each statement at the first register. These
 * fragments do the same, because otherwise nft could not load the rules that it lists. One statement passes a
 * value to the next in the priority of the packet.
 */
const KEY = 0

/** The maps that decide what happens to a packet. */
type FrontendMap = 'frontends' | 'nodeports'

/** Stores V of the packet in its priority. Without a frontend at its destination, the rule ends and the priority stays. */
function findValue(layout: FamilyLayout, map: FrontendMap): Expressions {
  const addressRegs = map === 'frontends' ? layout.addressRegs : 0
  const key: Expressions = addressRegs === 0 ? [] : [destinationAddress(layout, KEY)]
  return [...key, ...portOfPacket(KEY + addressRegs), mapped(map, KEY, KEY), writePriority(KEY)]
}

function dispatch(layout: FamilyLayout, map: FrontendMap): Expressions {
  return [
    ...findValue(layout, map),
    readPriority(KEY),
    maskNumber(KEY, CODE_MASK),
    mapped('dispatch', KEY, 'verdict'),
  ]
}

/** Loads the id of the service port, with `low` in its low bits. */
function serviceWith(low: number): Expressions {
  return [readPriority(KEY), maskNumber(KEY, ID_MASK, low)]
}

function listOf({ local }: { readonly local: boolean }): Expressions {
  return serviceWith(local ? LOCAL_LIST : 0)
}

function ofProtocol(protocol: Protocol): Expressions {
  return [
    { kind: 'meta', key: nft.NFT_META_L4PROTO, dreg: KEY },
    compare('eq', KEY, String.fromCharCode(PROTOCOL_NUMBERS[protocol])),
  ]
}

/** Sends a packet of the protocol to a slot of its list. */
export function pickSlot(layout: FamilyLayout, list: ListChoice): Expressions {
  return [
    ...ofProtocol(list.protocol),
    ...listOf(list),
    ...slotOf(layout, list.choice),
    mapped(ENDPOINTS[list.protocol], KEY, KEY),
    translate(layout, KEY),
  ]
}

interface ListKind {
  readonly protocol: Protocol
  readonly local: boolean
}

interface ListChoice extends ListKind {
  readonly choice: SlotChoice
}

/** How a packet chooses one of the first `modulus` slots: at random, or of those from 1 on by a hash. */
export interface SlotChoice {
  readonly modulus: number
  readonly hash?: { readonly of: 'client' | 'connection'; readonly seed: number }
}

function slotOf(layout: FamilyLayout, { modulus, hash }: SlotChoice): Expressions {
  const dreg = KEY + 1
  if (hash === undefined) return [{ kind: 'numgen', modulus, dreg }]
  const { addressRegs: registers } = layout
  const isClient = hash.of === 'client'
  const fields: Expressions = [
    sourceAddress(layout, dreg),
    portField(SOURCE_PORT_OFFSET, dreg + registers),
    destinationAddress(layout, dreg + registers + 1),
    portField(DESTINATION_PORT_OFFSET, dreg + 2 * registers + 1),
  ]
  const length = 4 * (isClient ? registers : 2 * registers + 2)
  return [
    ...fields.slice(0, isClient ? 1 : fields.length),
    { kind: 'jhash', sreg: dreg, length, modulus, seed: hash.seed, offset: 1, dreg },
  ]
}

const SOURCE_PORT_OFFSET = 0
const DESTINATION_PORT_OFFSET = 2

function portField(offset: number, dreg: number): Expressions[number] {
  return { kind: 'payload', base: nft.NFT_PAYLOAD_TRANSPORT_HEADER, offset, length: 2, dreg }
}

/** Sends the packet to the endpoint whose number is in the packet's priority. `numgen random mod 1` is a constant. */
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
 * Sends a client to the endpoint of a slot. With a timeout, the client is remembered: the old entry is deleted
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
    ...slotOf(layout, options.choice),
    mapped('slots', KEY, KEY),
    writePriority(KEY),
    ...(timeoutMs === undefined
      ? []
      : [...changeClient(layout, 'delete', 0), ...changeClient(layout, 'update', timeoutMs)]),
    ...pickNumbered(layout, options),
  ]
}

/** The inputs of the fixed chains of one table. */
export interface Skeleton extends TableContext {
  readonly natPriority: number
  /** The lengths of the source ranges in use, longest first. */
  readonly prefixLengths: readonly number[]
  /** A forwarder of the daemon serves node ports at localhost. */
  readonly localhost: boolean
  readonly logGroup: number
}

export function skeletonOf(
  layout: FamilyLayout,
  options: NftablesOptions,
  { frontends, prefixLengths }: { frontends: FrontendTable; prefixLengths: readonly number[] },
): Skeleton {
  return {
    ...tableContext(layout, options, frontends),
    natPriority: options.natPriority,
    prefixLengths,
    localhost: frontends.forwardedAtLocalhost?.includes(layout.model) === true,
    logGroup: options.logGroup,
  }
}

/** Gives equal keys for skeletons with equal chains and sets, including on-demand chains. */
export function skeletonKey(skeleton: Skeleton): string {
  const { prefixLengths, localhost, logGroup } = skeleton
  return JSON.stringify([...contextKey(skeleton), prefixLengths, localhost, logGroup])
}

export function fixedChains(skeleton: Skeleton): readonly Chain[] {
  const chains = [
    ...hookChains([masqueradeMarked(skeleton), hairpinRule(skeleton)], skeleton.natPriority),
    earlyPostrouting,
    ...unallocatedChains(skeleton),
    { name: CHAIN_SERVICES, hook: undefined, rules: servicesRules(skeleton) },
    rejectChain(skeleton.layout),
    noLocalChain,
    { name: CHAIN_FIREWALL, hook: undefined, rules: firewallRules(skeleton) },
    ...(skeleton.localhost ? [localhostChain(skeleton)] : []),
  ]
  return chains.map(chain => withLogs(chain, skeleton))
}

/**
 * Removes V from the packet's priority before a queueing discipline reads it. The chain runs before nat
 * chains of other programs that translate the source, because a packet that they translate does not reach
 * ours. A priority that another program or the packet's type of service set stays.
 */
const earlyPostrouting: Chain = {
  name: CHAIN_EARLY_POSTROUTING,
  hook: { type: 'nat', hooknum: nft.NF_INET_POST_ROUTING, priority: nft.NF_IP_PRI_NAT_SRC - 1 },
  rules: [
    rule([
      readPriority(WORK),
      maskNumber(WORK, VALUE_FLAG),
      compare('neq', WORK, u32host(0)),
      readPriority(WORK),
      maskNumber(WORK, 0),
      writePriority(WORK),
    ]),
  ],
}

function servicesRules(skeleton: Skeleton): readonly Rule[] {
  const { layout, localhost } = skeleton
  const toClusterIp: Expressions = [destinationAddress(layout, WORK), matches('cluster-ips')]
  return [
    ...offClusterRules(skeleton, toClusterIp),
    rule(dispatch(layout, 'frontends')),
    rule([...toNodePortAddress(skeleton), ...dispatch(layout, 'nodeports')]),
    ...(localhost ? [rule([...toLoopback(layout, 'eq'), goTo(CHAIN_LOCALHOST)])] : []),
    rule([...toClusterIp, { kind: 'counter' }, goTo(CHAIN_REJECT)], 'no such port'),
  ]
}

/**
 * Rejects packets to node ports at localhost that the forwarders cannot serve, and counts them. TCP and UDP packets continue
 * to their listeners. In the kernel, the chain shows that there are forwarders.
 */
function localhostChain({ layout }: Skeleton): Chain {
  const isNodePort: Expressions = [...ofProtocol('SCTP'), ...findValue(layout, 'nodeports')]
  const refuse: Expressions = [{ kind: 'counter' }, { kind: 'reject', code: layout.rejectCode }]
  return {
    name: CHAIN_LOCALHOST,
    hook: undefined,
    rules: [rule([...isNodePort, ...refuse], 'the relay has no SCTP')],
  }
}

/**
 * Matches the source with the ranges of the packet's service port. A plain hash holds the ranges by their
 * length. One rule for each length in use replaces an interval set, which takes milliseconds to change.
 */
function firewallRules({ layout, prefixLengths }: Skeleton): readonly Rule[] {
  const rules = prefixLengths.map(bits => {
    const mask = prefixMask(bits, layout.addressLength)
    const masked = bits === layout.addressLength * 8 ? [] : [maskBytes(WORK + 1, mask)]
    return rule([
      ...serviceWith(bits),
      sourceAddress(layout, WORK + 1),
      ...masked,
      matches('ranges'),
      end(nft.NFT_RETURN),
    ])
  })
  return [...rules, rule(dropCounted, 'source not in loadBalancerSourceRanges')]
}

function hairpinRule({ layout }: Skeleton): Rule {
  const hairpin: Expressions = [
    { kind: 'ct', key: nft.NFT_CT_STATUS, dreg: WORK },
    maskNumber(WORK, nft.IPS_DST_NAT),
    compare('neq', WORK, u32host(0)),
    sourceAddress(layout, WORK),
    destinationAddress(layout, WORK + layout.addressRegs),
    matches('hairpin'),
  ]
  return rule([...hairpin, masquerade], 'endpoint to itself')
}
