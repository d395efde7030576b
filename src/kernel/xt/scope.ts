import type { NftFamily } from '../nft/state.ts'
import type { XtRule } from './rule.ts'

/**
 * What is ours in tables that are everybody's: chains by name, and rules in other chains that lead to them. All else in
 * those tables is none of our business.
 */

/** Tables of iptables that Kubernetes writes to. */
export type XtTableName = 'filter' | 'nat' | 'mangle'

export interface XtPlace {
  readonly family: NftFamily
  readonly table: XtTableName
}

/** A chain of ours: nothing stands in it but what we put there. */
export interface XtChain extends XtPlace {
  readonly name: string
  /** In this order. Entries come behind them, in any order. */
  readonly rules: readonly XtRule[]
  /** Behind the entries, in any order. */
  readonly last: readonly XtRule[]
}

/** A rule of one Service in a chain that all Services share. Its place among its like means nothing. */
export interface XtEntry extends XtPlace {
  readonly chain: string
  readonly rule: XtRule
  /** Entries of one Service with the same one in the same chain stand there in the order in which they are asked for. */
  readonly sequence?: string
}

/**
 * A rule in a chain that is not ours (INPUT, or KUBE-FIREWALL, which kubelet writes as well). It is there once, put first
 * when it is not there at all; where it stands among others is theirs to say. The chain is made if there is none.
 */
export interface XtJump extends XtPlace {
  readonly chain: string
  readonly rule: XtRule
  /** False for what stays when we leave, and when it is not asked for any more. */
  readonly removed: boolean
}
