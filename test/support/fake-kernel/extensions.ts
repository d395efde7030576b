import {
  IPSET_DIM_MAX,
  NF_INET_FORWARD,
  NF_INET_LOCAL_IN,
  NF_INET_LOCAL_OUT,
  NF_INET_POST_ROUTING,
  NF_INET_PRE_ROUTING,
  NFPROTO_IPV4,
} from '../../../src/kernel/nft/constants.ts'
import type { ExpressionAttributes } from '../../../src/kernel/nft/schema.ts'
import { refuse } from './call.ts'
import type { FakeChain, FakeTable, Namespace } from './objects.ts'

export type Extension = Extract<ExpressionAttributes, { tag: 'match' | 'target' }>

/** A match or target of xtables, as the kernel registers it. */
interface Registered {
  /** Of its structure, bytes. */
  readonly size: number
  /** What of it the user is shown; the rest is the kernel's own, and listed as zeros. */
  readonly userSize?: number
  /** Asked of NFTA_RULE_COMPAT. */
  readonly protocol?: number
  /** The one table, and the hooks, that it works in. */
  readonly table?: string
  readonly hooks?: readonly number[]
}

const NAT_IN = { table: 'nat', hooks: [NF_INET_PRE_ROUTING, NF_INET_LOCAL_OUT] }
const NAT_OUT = { table: 'nat', hooks: [NF_INET_POST_ROUTING, NF_INET_LOCAL_IN] }
const MASQUERADE = { table: 'nat', hooks: [NF_INET_POST_ROUTING] }
const REJECT = {
  size: 4,
  table: 'filter',
  hooks: [NF_INET_LOCAL_IN, NF_INET_FORWARD, NF_INET_LOCAL_OUT],
}

/** `match NAME REVISION`; sizes are those that Linux 6.18 lists. */
const OF_BOTH: ReadonlyMap<string, Registered> = new Map([
  ['match comment 0', { size: 256 }],
  ['match tcp 0', { size: 12, protocol: 6 }],
  ['match udp 0', { size: 10, protocol: 17 }],
  ['match sctp 0', { size: 296, protocol: 132 }],
  ['match conntrack 3', { size: 168 }],
  ['match addrtype 1', { size: 8 }],
  ['match statistic 0', { size: 24, userSize: 16 }],
  ['match recent 1', { size: 232 }],
  ['match set 4', { size: 48 }],
  ['match physdev 0', { size: 72 }],
  ['match multiport 1', { size: 48 }],
  ['match nfacct 0', { size: 40, userSize: 32 }],
  ['match ipvs 0', { size: 48 }],
  ['target MARK 2', { size: 8 }],
  ['target DNAT 2', { size: 48, ...NAT_IN }],
  ['target LOG 0', { size: 32 }],
  ['target TCPMSS 0', { size: 2 }],
])
const OF_IP: ReadonlyMap<string, Registered> = new Map([
  ['target REJECT 0', REJECT],
  ['target MASQUERADE 0', { size: 20, ...MASQUERADE }],
  ['target REDIRECT 0', { size: 20, ...NAT_IN }],
  ['target SNAT 0', { size: 20, ...NAT_OUT }],
])
const OF_IP6: ReadonlyMap<string, Registered> = new Map([
  ['target REJECT 0', REJECT],
  ['target MASQUERADE 0', { size: 40, ...MASQUERADE }],
  ['target REDIRECT 0', { size: 40, ...NAT_IN }],
  ['target SNAT 1', { size: 40, ...NAT_OUT }],
])

function registered({ tag, data }: Extension, family: number): Registered {
  const key = `${tag} ${data.name} ${data.revision}`
  return OF_BOTH.get(key) ?? (family === NFPROTO_IPV4 ? OF_IP : OF_IP6).get(key) ?? refuse('ENOENT')
}

function aligned(length: number): number {
  return (length + 7) & ~7
}

export interface Surroundings {
  readonly space: Namespace
  readonly table: FakeTable
  readonly chain: FakeChain
  /** NFTA_RULE_COMPAT_PROTO. */
  readonly protocol: number
}

/** nft_match_select_ops of net/netfilter/nft_compat.c, xt_check_match of x_tables.c, and what the match itself checks. */
export function checkExtension(extension: Extension, { space, table, chain, protocol }: Surroundings): void {
  const { name, revision, info } = extension.data
  if (name === undefined || revision === undefined || info === undefined) refuse('EINVAL')
  const known = registered(extension, table.family)
  if (info.length < known.size || aligned(info.length) !== aligned(known.size)) refuse('EINVAL')
  if (known.table !== undefined && known.table !== table.name) refuse('EINVAL')
  if (chain.hook !== undefined && !worksAt(known, chain)) refuse('EINVAL')
  if (known.protocol !== undefined && known.protocol !== protocol) refuse('EINVAL')
  if (name === 'set') checkSet(space, info)
  // Nobody makes its objects here.
  if (name === 'nfacct') refuse('ENOENT')
}

/** set_match_v4_checkentry of net/netfilter/xt_set.c. */
function checkSet({ ipsets }: Namespace, info: string): void {
  if (!ipsets.has(info.charCodeAt(0) | (info.charCodeAt(1) << 8))) refuse('ENOENT')
  if (info.charCodeAt(2) > IPSET_DIM_MAX) refuse('ERANGE')
}

function worksAt({ hooks }: Registered, { hook }: FakeChain): boolean {
  return hooks === undefined || hooks.includes(hook?.hooknum ?? -1)
}

/** nft_target_validate: once more, for the base chain that leads to it; one for `nat` wants it to be of that type. */
export function checkReachable(extension: Extension, table: FakeTable, base: FakeChain): void {
  const known = registered(extension, table.family)
  if (!worksAt(known, base)) refuse('EINVAL')
  if (known.table === 'nat' && base.type !== 'nat') refuse('EINVAL')
}

/** As listed: as long as the kernel's structure is aligned to, without what is the kernel's own. */
export function dumpedExtension(extension: Extension, family: number): Extension {
  const { size, userSize = size } = registered(extension, family)
  const info = (extension.data.info ?? '').slice(0, userSize).padEnd(aligned(size), '\0')
  return { ...extension, data: { ...extension.data, info } }
}
