import type { Words } from '../../netlink/conversation.ts'
import { NFPROTO_IPV4, NFPROTO_IPV6 } from './constants.ts'
import type { CompiledRule, Rule } from './expression.ts'
import type { Chain, Element, NftFamily, NftSet } from './state.ts'

/** One step of a transaction, in nft's verbs. The order within a transaction matters to the kernel. */
export type Operation = TableOperation &
  (
    | { readonly verb: 'add-table'; readonly flags: number; readonly comment: string | undefined }
    | { readonly verb: 'delete-table' }
    | { readonly verb: 'add-chain'; readonly chain: Chain }
    | { readonly verb: 'flush-chain'; readonly chain: string }
    | { readonly verb: 'delete-chain'; readonly chain: string }
    /** Appends after the rules of the chain. */
    | (RuleAddition & { readonly verb: 'add-rule' })
    /** Inserts before the rules of the chain. */
    | (RuleAddition & { readonly verb: 'insert-rule' })
    /** Deletes one rule by the kernel's handle. */
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
   * NLM_F_ECHO: the kernel reports the handle of the new rule. It repeats the rule for that. About 3,000 rules fit
   * into the queue of a socket; with more, answers are lost and the outcome is `unknown`.
   */
  readonly echo?: true
}

/**
 * Elements with the groups that they belong to, so that an error can name the Service. A full load has 100,000 and
 * more.
 */
export interface OwnedElements {
  readonly elements: readonly Element[]
  /** Group of the element with the same index. */
  readonly groups: readonly string[]
}

/** One element with its group. */
export interface OwnedElement {
  readonly element: Element
  readonly group: string
}

/** Operations that the kernel applies entirely or not at all. */
export type Transaction = readonly Operation[]

export type ElementOperation = Extract<Operation, { readonly verb: 'add-elements' | 'delete-elements' }>
type RuleOperation = Extract<Operation, { readonly verb: 'add-rule' | 'insert-rule' }>

export function isOnElements(operation: Operation): operation is ElementOperation {
  return operation.verb === 'add-elements' || operation.verb === 'delete-elements'
}

/** Returns the number of a family in struct nfgenmsg. */
export function familyNumber(family: NftFamily): number {
  return family === 'ip' ? NFPROTO_IPV4 : NFPROTO_IPV6
}

/** Returns the generation after one commit. The kernel's counter skips 0 when it wraps. */
export function nextGeneration(generation: number): number {
  return generation === 0xffff_ffff ? 1 : generation + 1
}

/** Returns whether an operation adds a rule. */
export function addsRule(operation: Operation): operation is RuleOperation {
  return operation.verb === 'add-rule' || operation.verb === 'insert-rule'
}

/** Returns the words for an operation in errors: `add element` and `ip kube-proxy frontends (ns1/web)`. */
export function errorWordsOf(operation: Operation, elements: readonly OwnedElement[]): Words {
  const words = wordsOf(operation)
  const owners = ownersOf(elements)
  return owners === '' ? words : { ...words, object: `${words.object} ${owners}` }
}

/** Returns an operation in nft's words: the verb with its noun, and the object. */
export function wordsOf(operation: Operation): Words {
  const place = `${operation.family} ${operation.table}`
  const object = objectOf(operation)
  const verb = operation.verb.replace('-', ' ').replace(/elements$/, 'element')
  return { operation: verb, object: object === '' ? place : `${place} ${object}` }
}

function objectOf(operation: Operation): string {
  switch (operation.verb) {
    case 'add-table':
    case 'delete-table':
      return ''
    case 'add-chain':
      return operation.chain.name
    case 'flush-chain':
    case 'delete-chain':
    case 'add-rule':
    case 'insert-rule':
      return operation.chain
    case 'delete-rule':
      return `${operation.chain} handle ${operation.handle}`
    case 'add-set':
      return operation.set.name
    case 'delete-set':
      return operation.set
    case 'add-elements':
    case 'delete-elements':
      return operation.set.name
  }
}

/** Maximum number of groups that an error names; beyond it the error counts them. */
const OWNERS_MAX = 3

function ownersOf(elements: readonly OwnedElement[]): string {
  const groups = new Set(elements.map(({ group }) => group).filter(group => group !== ''))
  if (groups.size === 0) return ''
  if (groups.size > OWNERS_MAX) return `(one of ${elements.length} elements of ${groups.size} groups)`
  return `(${[...groups].join(', ')})`
}
