import type { Ipset, IpsetEntry } from './state.ts'

/**
 * Steps in ipset's verbs, each carried out for itself, in this order; none is undone when a later one fails.
 * add-entries and delete-entries are idempotent: an entry that is there, or gone, already is no error.
 */
export type IpsetOperation =
  | { readonly verb: 'create'; readonly set: Ipset }
  | { readonly verb: 'destroy'; readonly name: string }
  | { readonly verb: 'flush'; readonly name: string }
  /** Both exist and are of one type. Rules that refer to one of the names then see the other content. */
  | { readonly verb: 'swap'; readonly name: string; readonly with: string }
  | (GroupedEntries & { readonly verb: 'add-entries' })
  | (GroupedEntries & { readonly verb: 'delete-entries' })

export interface GroupedEntries {
  readonly set: Ipset
  readonly entries: readonly IpsetEntry[]
  /** Of the entry with the same index: whom it serves, so that an error can name the Service. */
  readonly groups: readonly string[]
}
