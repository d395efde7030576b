import type { IpsetOperation } from './operation.ts'
import { entryText } from './print.ts'
import type { IpsetEntry } from './state.ts'

export interface IpsetFailure {
  readonly operation: IpsetOperation
  /** The entries that contain the rejected one; the entries before it in the message are in the set. */
  readonly entries: readonly { readonly entry: IpsetEntry; readonly group: string }[]
  /** Name of the errno, or of ipset's own code (IPSET_ERR_HASH_FULL). */
  readonly code: string
  readonly error: Error
}

type Entries = IpsetFailure['entries']

/** Returns the words for an operation in errors: `add` and `KUBE-CLUSTER-IP 10.96.0.1,tcp:443 (ns1/web)`. */
export function describeIpsetOperation(operation: IpsetOperation, entries: Entries) {
  switch (operation.verb) {
    case 'create':
      return { operation: 'create', object: `${operation.set.name} ${operation.set.type}` }
    case 'destroy':
      return { operation: 'destroy', object: operation.name }
    case 'swap':
      return { operation: 'swap', object: `${operation.name} ${operation.with}` }
    case 'add-entries':
    case 'delete-entries': {
      const verb = operation.verb === 'add-entries' ? 'add' : 'del'
      const object = [operation.set.name, ...entryWords(operation.set, entries)].join(' ')
      return { operation: verb, object }
    }
  }
}

/** Maximum number of groups that an error names; beyond it the error counts them. */
const OWNERS_MAX = 3

function entryWords(set: Parameters<typeof entryText>[0], entries: Entries): readonly string[] {
  const [first, second] = entries
  const what = first !== undefined && second === undefined ? [entryText(set, first.entry)] : []
  const groups = new Set(entries.map(({ group }) => group).filter(group => group !== ''))
  if (groups.size === 0) return what
  if (groups.size > OWNERS_MAX)
    return [...what, `(one of ${entries.length} entries of ${groups.size} groups)`]
  return [...what, `(${[...groups].join(', ')})`]
}
