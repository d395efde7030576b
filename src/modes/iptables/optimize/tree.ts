import type { XtChain } from '../../../kernel/xt/scope.ts'

/** A chain that sends each packet to the one chain whose entries may concern it, and all the chains below it. */
export interface Tree {
  readonly root: XtChain
  readonly chains: readonly XtChain[]
}
