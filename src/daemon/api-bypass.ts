import { familyOf, type Ip, isLoopback } from '../base/ip.ts'
import { u16be } from '../base/octets.ts'
import {
  IPPROTO_TCP,
  NF_INET_LOCAL_OUT,
  NF_INET_PRE_ROUTING,
  NF_IP_PRI_NAT_DST,
  NF_IP_PRI_RAW,
  NFT_META_L4PROTO,
  NFT_META_OIFNAME,
  NFT_PAYLOAD_TRANSPORT_HEADER,
  NFT_TABLE_F_OWNER,
} from '../kernel/nft/constants.ts'
import type { Expression } from '../kernel/nft/expression.ts'
import type { ChainHook } from '../kernel/nft/state.ts'
import type { Operation, Transaction } from '../kernel/nft/transaction.ts'
import type { ApiEndpoint } from '../model/reserved.ts'
import {
  compare,
  destinationAddress,
  type Expressions,
  rule,
  sourceAddress,
  translateAddress,
} from '../modes/common/rules.ts'
import { type FamilyLayout, LAYOUTS, NFT_FAMILIES } from '../modes/common/tables.ts'

/**
 * A priority before every nat chain of kprobe, of kube-proxy and of other proxies. Nat chains must come
 * behind -200.
 */
const BEFORE_NAT = NF_IP_PRI_NAT_DST - 50
const LOOPBACK_DEVICE = 'lo'.padEnd(16, '\0')

/**
 * `nat` keeps connections tracked, which firewalls of the node may require, and bypasses only rules that
 * translate. `untracked` also bypasses rules that reject new connections (`ct state new`).
 */
export type BypassWay = 'nat' | 'untracked'

interface BypassQuery {
  /** The name of the table; each family has one. */
  readonly table: string
  readonly endpoints: readonly ApiEndpoint[]
  /** The local TCP port of the connection. */
  readonly localPort: number
  readonly way: BypassWay
}

/**
 * Makes the tables through which connections from one local port bypass the rules about Services, of an
 * earlier process or of another proxy. The first nat chain that translates a connection is the only one, and
 * this one translates to the destination that the packet already has. Between addresses of this node neither
 * way tracks packets, because rules that reject a Service in INPUT match only tracked ones. The kernel
 * removes the tables when the socket that wrote them is closed. The transaction is empty when no rule can
 * capture any of the endpoints.
 */
export function apiBypass(query: BypassQuery): Transaction {
  return NFT_FAMILIES.flatMap(family => {
    const layout = LAYOUTS[family]
    const endpoints = query.endpoints.filter(({ ip }) => familyOf(ip) === layout.model && !isLoopback(ip))
    return endpoints.length === 0 ? [] : tableFor(layout, { ...query, endpoints })
  })
}

function tableFor(layout: FamilyLayout, { table, endpoints, localPort, way }: BypassQuery): Transaction {
  const at = { family: layout.family, table }
  const chain = (
    name: string,
    hook: ChainHook,
    expressions: (endpoint: ApiEndpoint) => readonly Expressions[],
  ) => [
    { ...at, verb: 'add-chain', chain: { name, hook, rules: [] } } satisfies Operation,
    ...endpoints
      .flatMap(expressions)
      .map(its => ({ ...at, verb: 'add-rule', chain: name, rule: rule(its) }) satisfies Operation),
  ]
  const there = ({ ip, port }: ApiEndpoint) => packetOf(destinationAddress(layout, 0), ip, [localPort, port])
  const back = ({ ip, port }: ApiEndpoint) => packetOf(sourceAddress(layout, 0), ip, [port, localPort])
  const where = way === 'nat' ? TO_LOOPBACK : []
  const raw = (hooknum: number): ChainHook => ({ type: 'filter', hooknum, priority: NF_IP_PRI_RAW })
  const output: ChainHook = { type: 'nat', hooknum: NF_INET_LOCAL_OUT, priority: BEFORE_NAT }
  const translation = [destinationAddress(layout, 0), translateAddress(layout, 0)]
  return [
    { ...at, verb: 'add-table', flags: NFT_TABLE_F_OWNER, comment: undefined },
    ...chain('local', raw(NF_INET_LOCAL_OUT), endpoint => [
      [...where, ...there(endpoint), NOTRACK],
      [...where, ...back(endpoint), NOTRACK],
    ]),
    ...(way === 'nat'
      ? chain('output', output, endpoint => [[...there(endpoint), ...translation]])
      : chain('answers', raw(NF_INET_PRE_ROUTING), endpoint => [[...back(endpoint), NOTRACK]])),
  ]
}

const NOTRACK: Expression = { kind: 'unknown', name: 'notrack', data: '' }
const TO_LOOPBACK: Expressions = [
  { kind: 'meta', key: NFT_META_OIFNAME, dreg: 0 },
  compare('eq', 0, LOOPBACK_DEVICE),
]

/** Matches TCP packets with this address and these source and destination ports. */
function packetOf(address: Expression, ip: Ip, [from, to]: readonly [number, number]): Expressions {
  return [
    address,
    compare('eq', 0, ip),
    { kind: 'meta', key: NFT_META_L4PROTO, dreg: 0 },
    compare('eq', 0, String.fromCharCode(IPPROTO_TCP)),
    { kind: 'payload', base: NFT_PAYLOAD_TRANSPORT_HEADER, offset: 0, length: 4, dreg: 0 },
    compare('eq', 0, u16be(from) + u16be(to)),
  ]
}
