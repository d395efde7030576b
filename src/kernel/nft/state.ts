import type { PersistentMap } from '../../base/collections.ts'
import type { Octets } from '../../base/octets.ts'
import type { Rule, Verdict } from './expression.ts'

export type NftFamily = 'ip' | 'ip6'

export interface TableName {
  readonly family: NftFamily
  readonly name: string
}

/** The kprobe tables of nf_tables, whole: a plain, immutable value, read from the kernel or computed. */
export interface Ruleset {
  readonly tables: readonly Table[]
}

export interface Table extends TableName {
  /** NFT_TABLE_F_*. */
  readonly flags: number
  readonly comment: string | undefined
  /** By name. */
  readonly chains: ReadonlyMap<string, Chain>
  /** By name. */
  readonly sets: ReadonlyMap<string, NftSet>
  /**
   * Elements of all sets of the table, grouped by Service. Versions share equal groups, so a comparison walks only
   * groups that changed. The kernel does not know the groups: comparing two tables with different groups gives the
   * same difference.
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
  /** Set only when it is not NF_ACCEPT: kprobe writes no other policy, but another program may have changed it. */
  readonly policy?: number
}

export interface NftSet {
  readonly name: string
  /** NFT_SET_*. */
  readonly flags: number
  /** nft's number for the datatype (6 bits per field of a concatenation), so that nft can list the set. */
  readonly keyType: number
  /** Bytes. */
  readonly keyLength: number
  /** For maps only; NFT_DATA_VERDICT for verdict maps. */
  readonly dataType: number | undefined
  readonly dataLength: number | undefined
  /** Maximum number of elements; 0 leaves it to the kernel. */
  readonly size: number
  /** Milliseconds; 0 for none. */
  readonly timeoutMs: number
  /** Whether each element counts the packets that matched it: NFTA_SET_EXPR. The counts are not part of the state. */
  readonly counted?: true
  /** NFTA_SET_USERDATA: the byte order of key and data, which nft needs to print the set. */
  readonly userdata: Octets
}

/** The elements of one group, in no particular order; each key appears once in a set of a table. */
export type ElementGroup = readonly Element[]

export interface Element {
  readonly set: string
  readonly key: Octets
  readonly data: ElementData
  /** Shown by nft beside the element; empty for none. */
  readonly comment: string
  /** Remaining milliseconds of an element that packets created; 0 otherwise. */
  readonly expiresMs?: number
}

export type ElementData = Octets | Verdict | undefined

/** The observed state of a table that other programs use as well, limited to the chains that concern kprobe. */
export interface ObservedTable {
  /** By name: chains of ours, and the chains that contain our jumps. */
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
  /** As CompiledRule.compiled: counters are zero. */
  readonly compiled: Octets
}

/** Tables by name, as `ip nat`; a table that does not exist is absent. */
export type Observed = ReadonlyMap<string, ObservedTable>
