import type { Operation, OwnedElement } from './operation.ts'

const VERBS: Readonly<Record<Operation['verb'], string>> = {
  'add-table': 'add table',
  'delete-table': 'delete table',
  'add-chain': 'add chain',
  'flush-chain': 'flush chain',
  'delete-chain': 'delete chain',
  'add-rule': 'add rule',
  'insert-rule': 'insert rule',
  'delete-rule': 'delete rule',
  'add-set': 'add set',
  'delete-set': 'delete set',
  'add-elements': 'add element',
  'delete-elements': 'delete element',
}

/** Returns the words for an operation in errors: `add element` and `ip kube-proxy frontends (ns1/web)`. */
export function describeOperation(operation: Operation, elements: readonly OwnedElement[]) {
  const place = `${operation.family} ${operation.table}`
  const object = [place, objectOf(operation), ownersOf(elements)].filter(part => part !== '').join(' ')
  return { operation: VERBS[operation.verb], object }
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
