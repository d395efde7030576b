import type { IpsetFailure } from './failure.ts'
import type { IpsetOperation } from './operation.ts'
import { entryText } from './print.ts'

type Entries = IpsetFailure['entries']

/** The words for an operation in errors: `add` and `KUBE-CLUSTER-IP 10.96.0.1,tcp:443 (ns1/web)`. */
export function describeIpsetOperation(operation: IpsetOperation, entries: Entries) {
  switch (operation.verb) {
    case 'create':
      return { operation: 'create', object: `${operation.set.name} ${operation.set.type}` }
    case 'destroy':
    case 'flush':
      return { operation: operation.verb, object: operation.name }
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

/** Names of groups that an error spells out; of more it gives the number. */
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
