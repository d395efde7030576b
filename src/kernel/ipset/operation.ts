import type { Ipset, IpsetEntry } from './state.ts'

/**
 * One operation in ipset's verbs. The kernel carries out each by itself and in order; a later failure undoes none of
 * them. add-entries and delete-entries are idempotent: an entry that exists, or is gone, already is no error.
 */
export type IpsetOperation =
  | { readonly verb: 'create'; readonly set: Ipset }
  | { readonly verb: 'destroy'; readonly name: string }
  /** Both sets exist and have one type. Rules that refer to one of the names then see the other content. */
  | { readonly verb: 'swap'; readonly name: string; readonly with: string }
  | (GroupedEntries & { readonly verb: 'add-entries' })
  | (GroupedEntries & { readonly verb: 'delete-entries' })

export interface GroupedEntries {
  readonly set: Ipset
  readonly entries: readonly IpsetEntry[]
  /** The group of the entry with the same index, so that an error can name the Service. */
  readonly groups: readonly string[]
}
