import type { OwnedElement, OwnedElements } from '../../src/kernel/nft/transaction.ts'

/** Elements with their groups as an operation carries them. */
export function columns(list: readonly OwnedElement[]): OwnedElements {
  return { elements: list.map(({ element }) => element), groups: list.map(({ group }) => group) }
}
