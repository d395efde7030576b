import * as nft from '../nft/constants.ts'
import type { ChainHook, NftFamily, ObservedRule } from '../nft/state.ts'
import type { XtRule } from './rule.ts'

/*
 * The part of shared tables that belongs to kprobe: chains by name, and rules in other chains that lead to them.
 * kprobe does not touch the rest of those tables.
 */

/** The iptables tables that Kubernetes writes to. */
export type XtTableName = 'filter' | 'nat' | 'mangle'

export interface XtPlace {
  readonly family: NftFamily
  readonly table: XtTableName
}

/** A chain of ours: it contains only rules of ours. */
export interface XtChain extends XtPlace {
  readonly name: string
  /** The rules in this order. Entries come after them, in any order. */
  readonly rules: readonly XtRule[]
  /** The rules after the entries, in any order. */
  readonly last: readonly XtRule[]
  /** Other owners may want the same chain with the same rules. It is removed with the last of them. */
  readonly shared?: true
}

/** A rule of one Service in a chain that all Services share. Its order among other entries has no meaning. */
export interface XtEntry extends XtPlace {
  readonly chain: string
  readonly rule: XtRule
  /** Entries of one Service with the same sequence in the same chain keep the order in which they are listed. */
  readonly sequence?: string
}

export interface ServiceRules {
  readonly chains: readonly XtChain[]
  readonly entries: readonly XtEntry[]
}

/** The chains and jumps that are wanted without any Service. */
export interface FixedRules {
  /** The chains by chainKey. Entries of Services go into these. */
  readonly chains: ReadonlyMap<string, XtChain>
  readonly jumps: readonly XtJump[]
}

export const NO_FIXED_RULES: FixedRules = { chains: new Map(), jumps: [] }

/** Creates the fixed rules. Jumps that were wanted `before` stay: others may use them too. */
export function fixedRules(
  chains: readonly XtChain[],
  jumps: readonly XtJump[],
  before: readonly XtJump[] = [],
): FixedRules {
  const wanted = new Set(jumps.map(jump => JSON.stringify(jump)))
  const staying = before.filter(jump => !wanted.has(JSON.stringify(jump)))
  return {
    chains: new Map(chains.map(chain => [chainKey(chain, chain.name), chain])),
    jumps: staying.length === 0 ? jumps : [...jumps, ...staying],
  }
}

/**
 * A rule in a chain that is not ours (INPUT, or KUBE-FIREWALL, which kubelet writes as well). It exists once. If it
 * is missing, it is inserted first; an existing one keeps its position. The chain is created if it does not exist.
 */
export interface XtJump extends XtPlace {
  readonly chain: string
  readonly rule: XtRule
  /** False for a jump that stays after cleanup, and after it is no longer wanted. */
  readonly removed: boolean
}

/** One operation on tables that all programs share. */
export type ScopeOperation = XtPlace & {
  /** The owner to blame when the kernel rejects the operation; undefined for shared rules. */
  readonly owner: string | undefined
} & (
    | { readonly verb: 'add-table' }
    | { readonly verb: 'add-chain'; readonly chain: string; readonly hook: ChainHook | undefined }
    /** `rules` is the number of rules in it. */
    | { readonly verb: 'flush-chain'; readonly chain: string; readonly rules: number }
    | { readonly verb: 'delete-chain'; readonly chain: string }
    | { readonly verb: 'add-rule'; readonly chain: string; readonly rule: XtRule }
    | { readonly verb: 'insert-rule'; readonly chain: string; readonly rule: XtRule }
    /** Deletes a rule of ours from a chain of another program, by the handle with which it was read. */
    | { readonly verb: 'delete-rule'; readonly chain: string; readonly rule: ObservedRule }
  )

/** Operations that lead to the wanted state, in the order of sending. */
export type ScopeOperations = readonly ScopeOperation[]

/** Returns the name of a table in Observed: `ip nat`. */
export function tableKey({ family, table }: XtPlace): string {
  return `${family} ${table}`
}

const TABLES: Readonly<Record<string, XtTableName>> = { filter: 'filter', nat: 'nat', mangle: 'mangle' }

/** Returns the table that tableKey names; undefined for a table that iptables does not have. */
export function placeOfTable(key: string): XtPlace | undefined {
  const [family, name = ''] = key.split(' ')
  const table = TABLES[name]
  if (table === undefined || (family !== 'ip' && family !== 'ip6')) return undefined
  return { family, table }
}

/** Returns, by the name of a chain, whether it is ours. */
export type IsOurs = (table: XtTableName, chain: string) => boolean

/** Returns `ip nat KUBE-SERVICES`. */
export function chainKey({ family, table }: XtPlace, chain: string): string {
  return `${family} ${table} ${chain}`
}

/** linux/netfilter_ipv4.h, the same in both families. */
const NF_IP_PRI_MANGLE = -150
const NF_IP_PRI_FILTER = 0

const { NF_INET_PRE_ROUTING, NF_INET_LOCAL_IN, NF_INET_FORWARD, NF_INET_LOCAL_OUT, NF_INET_POST_ROUTING } =
  nft

function hook(type: ChainHook['type'], hooknum: number, priority: number): ChainHook {
  return { type, hooknum, priority }
}

/** Chains that packets enter without a jump, as iptables-nft creates them: policy ACCEPT. */
const BUILTIN: Readonly<Record<XtTableName, ReadonlyMap<string, ChainHook>>> = {
  filter: new Map([
    ['INPUT', hook('filter', NF_INET_LOCAL_IN, NF_IP_PRI_FILTER)],
    ['FORWARD', hook('filter', NF_INET_FORWARD, NF_IP_PRI_FILTER)],
    ['OUTPUT', hook('filter', NF_INET_LOCAL_OUT, NF_IP_PRI_FILTER)],
  ]),
  nat: new Map([
    ['PREROUTING', hook('nat', NF_INET_PRE_ROUTING, nft.NF_IP_PRI_NAT_DST)],
    ['INPUT', hook('nat', NF_INET_LOCAL_IN, nft.NF_IP_PRI_NAT_SRC)],
    ['OUTPUT', hook('nat', NF_INET_LOCAL_OUT, nft.NF_IP_PRI_NAT_DST)],
    ['POSTROUTING', hook('nat', NF_INET_POST_ROUTING, nft.NF_IP_PRI_NAT_SRC)],
  ]),
  mangle: new Map([
    ['PREROUTING', hook('filter', NF_INET_PRE_ROUTING, NF_IP_PRI_MANGLE)],
    ['INPUT', hook('filter', NF_INET_LOCAL_IN, NF_IP_PRI_MANGLE)],
    ['FORWARD', hook('filter', NF_INET_FORWARD, NF_IP_PRI_MANGLE)],
    ['OUTPUT', hook('route', NF_INET_LOCAL_OUT, NF_IP_PRI_MANGLE)],
    ['POSTROUTING', hook('filter', NF_INET_POST_ROUTING, NF_IP_PRI_MANGLE)],
  ]),
}

/** Returns the hook of a chain; undefined for a chain that packets reach only by jumps. */
export function builtinHook(table: XtTableName, chain: string): ChainHook | undefined {
  return BUILTIN[table].get(chain)
}

export function builtinChains(table: XtTableName): readonly string[] {
  return [...BUILTIN[table].keys()]
}
