import type { NftFamily } from '../nft/state.ts'
import type { XtRule } from './rule.ts'

/**
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
  /** In this order. Entries come after them, in any order. */
  readonly rules: readonly XtRule[]
  /** After the entries, in any order. */
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
