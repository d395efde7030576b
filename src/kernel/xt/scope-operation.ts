import type { ChainHook, ObservedRule } from '../nft/state.ts'
import type { XtRule } from './rule.ts'
import type { XtPlace, XtTableName } from './scope.ts'

/**
 * One operation on tables that all programs share. It names a rule to delete by its content; the handle is looked up
 * when the rule is deleted.
 */
export type ScopeOperation = XtPlace & {
  /** The owner to blame when the kernel rejects the operation; undefined for shared rules. */
  readonly owner: string | undefined
} & (
    | { readonly verb: 'add-table' }
    | { readonly verb: 'add-chain'; readonly chain: string; readonly hook: ChainHook | undefined }
    /** `rules` is the number of rules in it. */
    | { readonly verb: 'flush-chain'; readonly chain: string; readonly rules: number }
    | { readonly verb: 'delete-chain'; readonly chain: string }
    /** Appends after the rules of the chain. */
    | { readonly verb: 'add-rule'; readonly chain: string; readonly rule: XtRule }
    /** Inserts before the rules of the chain. */
    | { readonly verb: 'insert-rule'; readonly chain: string; readonly rule: XtRule }
    | DeleteRule
  )

export interface DeleteRule extends XtPlace {
  readonly owner: string | undefined
  readonly verb: 'delete-rule'
  readonly chain: string
  /** The rule as kprobe wrote it, or as it was read. */
  readonly rule: XtRule | ObservedRule
}

/** Operations that lead to the wanted state, in the order of sending. */
export type ScopeOperations = readonly ScopeOperation[]

export function isObservedRule(rule: XtRule | ObservedRule): rule is ObservedRule {
  return 'handle' in rule
}

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

/** Returns a key that is equal for equal rules whose fields were created in the same order. */
export function ruleKey(rule: XtRule): string {
  return JSON.stringify(rule)
}

export function sameRules(a: readonly XtRule[], b: readonly XtRule[]): boolean {
  return a === b || (a.length === b.length && JSON.stringify(a) === JSON.stringify(b))
}
