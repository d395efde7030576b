import type { CompiledRule } from './compiled-rule.ts'
import type { Rule } from './expression.ts'
import type { Chain, Element, NftFamily, NftSet } from './state.ts'

/** One step of a transaction, in nft's verbs. The order within a transaction matters to the kernel. */
export type Operation = TableOperation &
  (
    | { readonly verb: 'add-table'; readonly flags: number; readonly comment: string | undefined }
    | { readonly verb: 'delete-table' }
    | { readonly verb: 'add-chain'; readonly chain: Chain }
    | { readonly verb: 'flush-chain'; readonly chain: string }
    | { readonly verb: 'delete-chain'; readonly chain: string }
    /** Behind the rules of the chain. */
    | (RuleAddition & { readonly verb: 'add-rule' })
    /** Before them. */
    | (RuleAddition & { readonly verb: 'insert-rule' })
    /** One rule, by the number that the kernel gave it. */
    | { readonly verb: 'delete-rule'; readonly chain: string; readonly handle: bigint }
    | { readonly verb: 'add-set'; readonly set: NftSet }
    | { readonly verb: 'delete-set'; readonly set: string }
    | (OwnedElements & { readonly verb: 'add-elements'; readonly set: NftSet })
    | (OwnedElements & { readonly verb: 'delete-elements'; readonly set: NftSet })
  )

export interface TableOperation {
  readonly family: NftFamily
  readonly table: string
}

export interface RuleAddition {
  readonly chain: string
  readonly rule: Rule | CompiledRule
  /**
   * NLM_F_ECHO: the kernel is to tell the handle that it gives the rule. It repeats the rule for that: some 3,000 of them
   * fit into the queue of a socket; of more it loses answers, and the outcome is `unknown`.
   */
  readonly echo?: true
}

/** Elements with the groups they belong to, so that an error can name the Service. A full load has 100,000 and more. */
export interface OwnedElements {
  readonly elements: readonly Element[]
  /** Of the element with the same index. */
  readonly groups: readonly string[]
}

/** One of them. */
export interface OwnedElement {
  readonly element: Element
  readonly group: string
}

/** A list of operations that the kernel applies entirely or not at all. */
export type Transaction = readonly Operation[]
