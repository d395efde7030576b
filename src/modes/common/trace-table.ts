import { type Cidr, familyOf, type Ip, type IpFilter } from '../../base/ip.ts'
import { PROTOCOL_NUMBERS } from '../../base/ip-packet.ts'
import { u32host } from '../../base/octets.ts'
import * as nft from '../../kernel/nft/constants.ts'
import { TYPE_ICMP6_TYPE, TYPE_INET_PROTOCOL, TYPE_INET_SERVICE } from '../../kernel/nft/datatypes.ts'
import { constant } from '../../kernel/nft/expression-attributes.ts'
import type { Chain, Element, NftFamily, NftSet, Rule } from '../../kernel/nft/state.ts'
import type { Operation, Transaction } from '../../kernel/nft/transaction.ts'
import type { Protocol } from '../../model/service.ts'
import {
  compare,
  destinationAddress,
  type Expressions,
  end,
  goTo,
  inPrefix,
  maskBytes,
  matches,
  portOfPacket,
  rule,
  sourceAddress,
  WORK,
} from './rules.ts'
import { type FamilyLayout, LAYOUTS, NFT_FAMILIES, plainSet, portData, portKey } from './tables.ts'

/** The packets whose steps `kprobe trace` reports. Fields that are absent match every packet. */
export interface TraceMatch {
  readonly from?: IpFilter | undefined
  readonly to?: { readonly addresses: IpFilter; readonly port: number | undefined } | undefined
  /** The places of a Service; a place without an address is a node port, with every address of this node. */
  readonly places?: readonly TracePlace[] | undefined
  /** All packets of TCP, and not only those that open a connection. */
  readonly allPackets: boolean
  /** Packets a second in each address family; the kernel traces no more. */
  readonly perSecond: number
}

export interface TracePlace {
  readonly protocol: Protocol
  readonly ip: Ip | undefined
  readonly family: NftFamily
  readonly port: number
}

const PREFIX = 'kprobe-trace-'
/** The chain whose only rule counts the packets that match, and starts the trace of those within the limit. */
export const CHAIN_START = 'start'
/** These chains have no rules: a step in them shows that a packet reached a process of this node, or left it. */
export const CHAIN_DELIVERED = 'delivered'
export const CHAIN_SENT = 'sent'
const CHAIN_FIRST = 'first-packets'
/** The last priority before connection tracking confirms the connection (NF_IP_PRI_CONNTRACK_CONFIRM). */
const LAST_PRIORITY = 2 ** 31 - 2
const SET_PLACES = 'places'
const SET_NODE_PORTS = 'node-ports'
const SET_PROTOCOLS = 'with-ports'
const SET_EXCEPT = 'except'
const SET_LINK = 'link-messages'
const LEAVE = end(nft.NFT_RETURN)

/** Gives the name of the tables of the process whose socket has this port id: no two sockets of a network namespace share it. */
export function traceTableName(portId: number): string {
  return `${PREFIX}${portId >>> 0}`
}

export function isTraceTable(name: string): boolean {
  return name.startsWith(PREFIX) && /^\d+$/.test(name.slice(PREFIX.length))
}

/**
 * Makes the tables that set the trace bit of packets. The kernel (5.12) removes them when the socket that wrote them is
 * closed, also by SIGKILL. Other packets meet only the rules that select: two lookups for places, and a comparison for
 * each pair of prefixes. Families that nothing matches in have no table.
 */
export function traceTables(name: string, match: TraceMatch): Transaction {
  return NFT_FAMILIES.filter(family => concerns(family, match)).flatMap(family => {
    const layout = LAYOUTS[family]
    const at = { family, table: name }
    const sets = setsOf(layout, match)
    return [
      {
        ...at,
        verb: 'add-table',
        flags: nft.NFT_TABLE_F_OWNER,
        comment: 'removed when kprobe trace ends',
      },
      ...sets.flatMap(({ set, elements }): Operation[] => [
        { ...at, verb: 'add-set', set },
        { ...at, verb: 'add-elements', set, elements, groups: elements.map(() => '') },
      ]),
      ...chainsOf(layout, match, new Set(sets.map(({ set }) => set.name))).flatMap((chain): Operation[] => [
        { ...at, verb: 'add-chain', chain: { ...chain, rules: [] } },
        ...chain.rules.map((its): Operation => ({ ...at, verb: 'add-rule', chain: chain.name, rule: its })),
      ]),
    ] satisfies Operation[]
  })
}

function concerns(family: NftFamily, { from, to, places }: TraceMatch): boolean {
  const layout = LAYOUTS[family]
  const isOf = (filter: IpFilter | undefined) => ofFamily(layout, filter)?.length !== 0
  return (
    isOf(from) && isOf(to?.addresses) && (places === undefined || places.some(its => its.family === family))
  )
}

/** Gives the prefixes that select packets; undefined where every packet may be meant. */
function ofFamily({ model }: FamilyLayout, filter: IpFilter | undefined): readonly Cidr[] | undefined {
  return filter?.isExcept === false ? filter.cidrs.filter(({ ip }) => familyOf(ip) === model) : undefined
}

interface FilledSet {
  readonly set: NftSet
  readonly elements: readonly Element[]
}

function setsOf(layout: FamilyLayout, match: TraceMatch): readonly FilledSet[] {
  const { places = [], from, to } = match
  const { family, addressType, addressLength } = layout
  const own = places.filter(place => place.family === family)
  const at = own.flatMap(({ ip, protocol, port }) => (ip === undefined ? [] : ip + portKey(protocol, port)))
  const everywhere = own.filter(({ ip }) => ip === undefined)
  const ports = everywhere.map(({ protocol, port }) => portKey(protocol, port))
  const protocols = Object.values(PROTOCOL_NUMBERS).map(number => String.fromCharCode(number))
  const port = [TYPE_INET_PROTOCOL, TYPE_INET_SERVICE]
  const isPort = match.places !== undefined || to?.port !== undefined
  return [
    filledSet(SET_PLACES, { types: [addressType, ...port], length: addressLength + 8 }, at),
    filledSet(SET_NODE_PORTS, { types: port, length: 8 }, ports),
    filledSet(
      SET_PROTOCOLS,
      { types: [TYPE_INET_PROTOCOL], length: 1 },
      to?.port === undefined ? [] : protocols,
    ),
    filledSet(
      SET_LINK,
      { types: [TYPE_ICMP6_TYPE], length: 1 },
      isPort || family === 'ip' ? [] : LINK_MESSAGES.map(type => String.fromCharCode(type)),
    ),
    // Both sides except the same addresses.
    filledSet(
      SET_EXCEPT,
      { types: [addressType], length: addressLength },
      [from, to?.addresses].flatMap(filter => exceptedHosts(layout, filter)),
    ),
  ].filter(({ elements }) => elements.length > 0)
}

function filledSet(name: string, key: Parameters<typeof plainSet>[2], keys: readonly string[]): FilledSet {
  const unique = [...new Set(keys)]
  const elements = unique.map(its => ({ set: name, key: its, data: undefined, comment: '' }))
  return { set: plainSet(name, unique.length, key), elements }
}

function chainsOf(layout: FamilyLayout, match: TraceMatch, sets: ReadonlySet<string>): readonly Chain[] {
  const next = goTo(match.allPackets ? CHAIN_START : CHAIN_FIRST)
  const peers = peersOf(layout, match)
  const ways: Expressions[] = [
    ...(sets.has(SET_PLACES) ? [toPlace(layout)] : []),
    ...(sets.has(SET_NODE_PORTS) ? [toNodePort] : []),
    ...(match.places === undefined ? [[]] : []),
  ]
  const rules = [
    ...(sets.has(SET_LINK) ? [rule([...toLink, LEAVE])] : []),
    ...exceptions(layout, 'source', match.from),
    ...exceptions(layout, 'destination', match.to?.addresses),
    ...peers.flatMap(peer => ways.map(way => rule([...peer, ...way, next]))),
  ]
  const hook = (hooknum: number, priority: number) => ({ type: 'filter', hooknum, priority }) as const
  return [
    { name: CHAIN_START, hook: undefined, rules: [rule(startTrace(match.perSecond))] },
    ...(match.allPackets ? [] : [{ name: CHAIN_FIRST, hook: undefined, rules: FIRST_PACKETS }]),
    { name: 'arriving', hook: hook(nft.NF_INET_PRE_ROUTING, nft.NF_IP_PRI_RAW), rules },
    { name: 'made-here', hook: hook(nft.NF_INET_LOCAL_OUT, nft.NF_IP_PRI_RAW), rules },
    { name: CHAIN_DELIVERED, hook: hook(nft.NF_INET_LOCAL_IN, LAST_PRIORITY), rules: [] },
    { name: CHAIN_SENT, hook: hook(nft.NF_INET_POST_ROUTING, LAST_PRIORITY), rules: [] },
  ]
}

/** A condition for each pair of a client and a destination. */
function peersOf(layout: FamilyLayout, { from, to }: TraceMatch): readonly Expressions[] {
  const within = (side: Side, filter: IpFilter | undefined): readonly Expressions[] =>
    (ofFamily(layout, filter) ?? [undefined]).map(cidr =>
      cidr === undefined || cidr.bits === 0 ? [] : inPrefix(layout, side, { ...cidr, op: 'eq' }),
    )
  const port = to?.port === undefined ? [] : toPort(to.port)
  const destinations = within('destination', to?.addresses)
  return within('source', from).flatMap(source =>
    destinations.map(destination => [...source, ...destination, ...port]),
  )
}

type Side = 'source' | 'destination'

/** Rules for packets that a side excludes. */
function exceptions(layout: FamilyLayout, side: Side, filter: IpFilter | undefined): readonly Rule[] {
  if (filter?.isExcept !== true) return []
  const load = side === 'source' ? sourceAddress : destinationAddress
  const cidrs = filter.cidrs.filter(({ ip }) => familyOf(ip) === layout.model)
  const ways = cidrs.map(cidr => inPrefix(layout, side, { ...cidr, op: 'eq' }))
  const hosts = exceptedHosts(layout, filter).length > 0 ? [[load(layout, WORK), matches(SET_EXCEPT)]] : []
  return [...ways, ...hosts].map(way => rule([...way, LEAVE]))
}

function exceptedHosts({ model }: FamilyLayout, filter: IpFilter | undefined): readonly Ip[] {
  return filter?.isExcept === true ? [...filter.ips].filter(ip => familyOf(ip) === model) : []
}

/** TCP, UDP and SCTP have their ports at the same position; packets of other protocols do not match. */
function toPort(port: number): Expressions {
  return [
    { kind: 'meta', key: nft.NFT_META_L4PROTO, dreg: WORK },
    matches(SET_PROTOCOLS),
    { kind: 'payload', base: nft.NFT_PAYLOAD_TRANSPORT_HEADER, offset: 2, length: 2, dreg: WORK },
    compare('eq', WORK, portData(port).slice(0, 2)),
  ]
}

function toPlace(layout: FamilyLayout): Expressions {
  return [destinationAddress(layout, WORK), ...portOfPacket(WORK + layout.addressRegs), matches(SET_PLACES)]
}

/** Types of ICMPv6 that find neighbors, routers and groups of a link (RFC 4861, RFC 3810): they belong to no connection. */
const LINK_MESSAGES: readonly number[] = [130, 131, 132, 133, 134, 135, 136, 137, 143]

const toLink: Expressions = [
  { kind: 'meta', key: nft.NFT_META_L4PROTO, dreg: WORK },
  compare('eq', WORK, String.fromCharCode(nft.IPPROTO_ICMPV6)),
  { kind: 'payload', base: nft.NFT_PAYLOAD_TRANSPORT_HEADER, offset: 0, length: 1, dreg: WORK },
  matches(SET_LINK),
]

const toNodePort: Expressions = [
  ...portOfPacket(WORK),
  matches(SET_NODE_PORTS),
  { kind: 'fib', flags: nft.NFTA_FIB_F_DADDR, dreg: WORK },
  compare('eq', WORK, u32host(nft.RTN_LOCAL)),
]

const TCP = String.fromCharCode(nft.IPPROTO_TCP)
const FLAGS_OFFSET = 13
const SYN = '\x02'
const SYN_AND_ACK = '\x12'

/** The first packet of a TCP connection, and every packet of other protocols. */
const FIRST_PACKETS: readonly Rule[] = [
  rule([
    { kind: 'meta', key: nft.NFT_META_L4PROTO, dreg: WORK },
    compare('eq', WORK, TCP),
    { kind: 'payload', base: nft.NFT_PAYLOAD_TRANSPORT_HEADER, offset: FLAGS_OFFSET, length: 1, dreg: WORK },
    maskBytes(WORK, SYN_AND_ACK),
    compare('eq', WORK, SYN),
    goTo(CHAIN_START),
  ]),
  rule([
    { kind: 'meta', key: nft.NFT_META_L4PROTO, dreg: WORK },
    compare('neq', WORK, TCP),
    goTo(CHAIN_START),
  ]),
]

/** Counts first: the difference between the packets that matched and those that were traced is reported. */
function startTrace(perSecond: number): Expressions {
  return [
    { kind: 'counter' },
    { kind: 'limit', perSecond, burst: perSecond },
    constant(WORK, '\x01'),
    { kind: 'meta-set', key: nft.NFT_META_NFTRACE, sreg: WORK },
  ]
}
