import type { Octets } from '../../base/octets.ts'
import type { PersistentMap } from '../../base/persistent-map.ts'
import type { Rule, Verdict } from './expression.ts'

export type { Verdict }

export type NftFamily = 'ip' | 'ip6'

/** What nf_tables holds of ours: whole tables. A plain, immutable value; read from the kernel or computed. */
export interface Ruleset {
  readonly tables: readonly Table[]
}

export interface Table {
  readonly family: NftFamily
  readonly name: string
  /** NFT_TABLE_F_*. */
  readonly flags: number
  readonly comment: string | undefined
  /** By name. */
  readonly chains: ReadonlyMap<string, Chain>
  /** By name. */
  readonly sets: ReadonlyMap<string, NftSet>
  /**
   * Elements of all sets of the table, in groups by who they serve: equal groups are shared between versions, so a
   * comparison walks only groups that changed. The grouping itself means nothing to the kernel: comparing two tables
   * that are grouped differently gives the same difference.
   */
  readonly elements: PersistentMap<ElementGroup>
}

export interface Chain {
  readonly name: string
  readonly hook: ChainHook | undefined
  readonly rules: readonly Rule[]
}

export interface ChainHook {
  readonly type: 'nat' | 'filter' | 'route'
  /** NF_INET_*. */
  readonly hooknum: number
  readonly priority: number
  /** Only when it is not NF_ACCEPT: nothing of ours, but somebody may have changed it. */
  readonly policy?: number
}

export interface NftSet {
  readonly name: string
  /** NFT_SET_*. */
  readonly flags: number
  /** nft's number for the datatype (concatenations are 6 bits each), so that nft can list the set. */
  readonly keyType: number
  /** Bytes. */
  readonly keyLength: number
  /** Maps only; NFT_DATA_VERDICT for verdict maps. */
  readonly dataType: number | undefined
  readonly dataLength: number | undefined
  /** Number of elements at most; 0 leaves it to the kernel. */
  readonly size: number
  /** Milliseconds; 0 for none. */
  readonly timeoutMs: number
  /** Each element counts the packets that found it: NFTA_SET_EXPR. What they counted is no part of the state. */
  readonly counted?: true
  /** NFTA_SET_USERDATA: what nft needs to print the set (byte order of key and data). */
  readonly userdata: Octets
}

/** `elements` of one group, in no particular order; no key appears twice in one set of a table. */
export type ElementGroup = readonly Element[]

export interface Element {
  readonly set: string
  readonly key: Octets
  readonly data: ElementData
  /** Shown by nft beside the element; empty for none. */
  readonly comment: string
  /** Milliseconds left, of elements that packets created; 0 otherwise. */
  readonly expiresMs?: number
}

export type ElementData = Octets | Verdict | undefined

/** What a table that others use as well held when it was read, as far as it concerns us. */
export interface ObservedTable {
  /** By name: chains of ours, and the chains in which our jumps belong. */
  readonly chains: ReadonlyMap<string, ObservedChain>
}

export interface ObservedChain {
  readonly name: string
  readonly hook: ChainHook | undefined
  readonly rules: readonly ObservedRule[]
}

export interface ObservedRule {
  /** The kernel's number for it. */
  readonly handle: bigint
  /** As CompiledRule.compiled: counters at zero. */
  readonly compiled: Octets
}

/** By `ip nat`. A table that does not exist is not in it. */
export type Observed = ReadonlyMap<string, ObservedTable>
