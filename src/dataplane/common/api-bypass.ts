import { familyOf, isLoopback } from '../../base/ip.ts'
import {
  NF_INET_LOCAL_OUT,
  NF_IP_PRI_NAT_DST,
  NF_IP_PRI_RAW,
  NFT_META_OIFNAME,
  NFT_TABLE_F_OWNER,
} from '../../kernel/nft/constants.ts'
import type { Operation, Transaction } from '../../kernel/nft/operation.ts'
import type { ChainHook } from '../../kernel/nft/state.ts'
import type { ApiEndpoint } from '../../model/api-server.ts'
import {
  compare,
  destinationAddress,
  type Expressions,
  portOfPacket,
  rule,
  translateAddress,
} from './expressions.ts'
import { type FamilyLayout, LAYOUTS, NFT_FAMILIES } from './family.ts'
import { portKey } from './octet-keys.ts'

/** Before every nat chain of kprobe, of kube-proxy and of other proxies; nat chains must come behind -200. */
const BEFORE_NAT = NF_IP_PRI_NAT_DST - 50
const LOOPBACK_DEVICE = 'lo'.padEnd(16, '\0')

/**
 * Lets processes of this node reach the endpoints past nat and filter rules about Services, which may be a former
 * process's: the first nat chain that translates a connection is the last one, and this one translates to the
 * destination that the packet has. Packets to an address of this node are not tracked, because rules that reject a
 * Service in INPUT ask for tracked ones (`ctstate NEW`). The kernel removes the tables when the socket that wrote them
 * is closed. Empty when no rule can capture any of the endpoints.
 */
export function apiBypass(table: string, endpoints: readonly ApiEndpoint[]): Transaction {
  return NFT_FAMILIES.flatMap(family => {
    const layout = LAYOUTS[family]
    const own = endpoints.filter(({ ip }) => familyOf(ip) === layout.model && !isLoopback(ip))
    return own.length === 0 ? [] : tableFor(layout, table, own)
  })
}

function tableFor(layout: FamilyLayout, table: string, endpoints: readonly ApiEndpoint[]): Transaction {
  const at = { family: layout.family, table }
  const chain = (name: string, hook: ChainHook, expressions: (endpoint: ApiEndpoint) => Expressions) => [
    { ...at, verb: 'add-chain', chain: { name, hook, rules: [] } } satisfies Operation,
    ...endpoints.map(
      endpoint =>
        ({ ...at, verb: 'add-rule', chain: name, rule: rule(expressions(endpoint)) }) satisfies Operation,
    ),
  ]
  return [
    { ...at, verb: 'add-table', flags: NFT_TABLE_F_OWNER, comment: undefined },
    ...chain('local', { type: 'filter', hooknum: NF_INET_LOCAL_OUT, priority: NF_IP_PRI_RAW }, endpoint => [
      { kind: 'meta', key: NFT_META_OIFNAME, dreg: 0 },
      compare('eq', 0, LOOPBACK_DEVICE),
      ...toEndpoint(layout, endpoint),
      { kind: 'unknown', name: 'notrack', data: '' },
    ]),
    ...chain('output', { type: 'nat', hooknum: NF_INET_LOCAL_OUT, priority: BEFORE_NAT }, endpoint => [
      ...toEndpoint(layout, endpoint),
      destinationAddress(layout, 0),
      translateAddress(layout, 0),
    ]),
  ]
}

function toEndpoint(layout: FamilyLayout, { ip, port }: ApiEndpoint): Expressions {
  return [
    destinationAddress(layout, 0),
    compare('eq', 0, ip),
    ...portOfPacket(0),
    compare('eq', 0, portKey('TCP', port)),
  ]
}
