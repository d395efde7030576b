import type { Words } from '../../netlink/conversation.ts'
import type { Operation, OwnedElement } from './operation.ts'

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
