import type { XtChain, XtEntry } from '../../kernel/xt/scope.ts'

/** What one Service asks of the tables of both families. A pure function of the Service and of what all Services share. */
export interface ServiceRules {
  readonly chains: readonly ServiceChain[]
  readonly entries: readonly XtEntry[]
}

export interface ServiceChain extends XtChain {
  /** Other Services may ask for the same chain with the same rules: it goes with the last of them. */
  readonly shared?: true
}
