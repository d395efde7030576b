import type { ChainHook, ObservedRule } from '../nft/state.ts'
import type { XtRule } from './rule.ts'
import type { XtPlace, XtTableName } from './scope.ts'

/**
 * A step of what leads tables that are everybody's to what is wanted of them. Rules that go are named by what they
 * say: which number the kernel has for them is found out when they go.
 */
export type ScopeOperation = XtPlace & {
  /** Whom it serves, to be blamed when the kernel refuses it; undefined for what all share. */
  readonly owner: string | undefined
} & (
    | { readonly verb: 'add-table' }
    | { readonly verb: 'add-chain'; readonly chain: string; readonly hook: ChainHook | undefined }
    /** `rules` is how many were in it. */
    | { readonly verb: 'flush-chain'; readonly chain: string; readonly rules: number }
    | { readonly verb: 'delete-chain'; readonly chain: string }
    /** Behind the rules of the chain. */
    | { readonly verb: 'add-rule'; readonly chain: string; readonly rule: XtRule }
    /** Before them. */
    | { readonly verb: 'insert-rule'; readonly chain: string; readonly rule: XtRule }
    | DeleteRule
  )

export interface DeleteRule extends XtPlace {
  readonly owner: string | undefined
  readonly verb: 'delete-rule'
  readonly chain: string
  /** As we wrote it, or as it was read. */
  readonly rule: XtRule | ObservedRule
}

/** Operations that lead to what is wanted, in the order in which they are sent. */
export type ScopeOperations = readonly ScopeOperation[]

export function isObservedRule(rule: XtRule | ObservedRule): rule is ObservedRule {
  return 'handle' in rule
}

/** `ip nat`: as tables are named in Observed. */
export function tableKey({ family, table }: XtPlace): string {
  return `${family} ${table}`
}

const TABLES: Readonly<Record<string, XtTableName>> = { filter: 'filter', nat: 'nat', mangle: 'mangle' }

/** The table that tableKey names; undefined for a table that iptables does not have. */
export function placeOfTable(key: string): XtPlace | undefined {
  const [family, name = ''] = key.split(' ')
  const table = TABLES[name]
  if (table === undefined || (family !== 'ip' && family !== 'ip6')) return undefined
  return { family, table }
}

/** Tells by the name of a chain whether it is ours. */
export type IsOurs = (table: XtTableName, chain: string) => boolean

/** `ip nat KUBE-SERVICES`. */
export function chainKey({ family, table }: XtPlace, chain: string): string {
  return `${family} ${table} ${chain}`
}

/** Equal for rules that are equal and were made in the same way. */
export function ruleKey(rule: XtRule): string {
  return JSON.stringify(rule)
}

export function sameRules(a: readonly XtRule[], b: readonly XtRule[]): boolean {
  return a === b || (a.length === b.length && JSON.stringify(a) === JSON.stringify(b))
}
