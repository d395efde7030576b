import type { Operation, Transaction } from '../../kernel/nft/operation.ts'
import type { Ruleset } from '../../kernel/nft/state.ts'

interface SplitTransaction {
  readonly add: Transaction
  readonly remove: Transaction
}

/** The state before the transaction. */
interface Started {
  readonly ruleset: Ruleset
  /** Whether the state was read from the kernel: sets may then be fuller than rendered ones. */
  readonly observed: boolean
}

type DeleteElements = Extract<Operation, { readonly verb: 'delete-elements' }>

/**
 * Splits a transaction into additions and removals, each in its order, so that virtual servers can be changed
 * in between. An element or chain that changes keeps its old form together with the new one. All operations
 * on a replaced table stay together as well.
 */
export function splitTransaction(transaction: Transaction, from: Started): SplitTransaction {
  const split: Split = {
    addedKeys: keysAdded(transaction),
    from,
    add: [],
    remove: [],
  }
  const { add, remove } = split
  const anew = tablesMade(transaction)
  const filled = chainsNamed(transaction, 'add-rule')
  const remade = chainsNamed(transaction, 'add-chain')
  for (const operation of transaction) {
    if (anew.has(tableKey(operation))) add.push(operation)
    else if (operation.verb === 'delete-elements') splitElements(operation, split)
    else if (operation.verb === 'flush-chain') {
      const into = filled.has(`${tableKey(operation)} ${operation.chain}`) ? add : remove
      into.push(operation)
    } else if (operation.verb === 'delete-chain') {
      const into = remade.has(`${tableKey(operation)} ${operation.chain}`) ? add : remove
      into.push(operation)
    } else if (GOING.has(operation.verb)) remove.push(operation)
    else add.push(operation)
  }
  return { add, remove }
}

const GOING: ReadonlySet<Operation['verb']> = new Set(['delete-table', 'delete-set'])

function tableKey({ family, table }: Operation): string {
  return `${family} ${table}`
}

function tablesMade(transaction: Transaction): ReadonlySet<string> {
  return new Set(transaction.filter(({ verb }) => verb === 'add-table').map(tableKey))
}

function chainsNamed(transaction: Transaction, verb: 'add-rule' | 'add-chain'): ReadonlySet<string> {
  const named = new Set<string>()
  for (const operation of transaction) {
    if (operation.verb !== verb) continue
    const { chain } = operation
    named.add(`${tableKey(operation)} ${typeof chain === 'string' ? chain : chain.name}`)
  }
  return named
}

type KeysBySet = ReadonlyMap<string, ReadonlySet<string>>

function keysAdded(transaction: Transaction): KeysBySet {
  const added = new Map<string, Set<string>>()
  const leaving = new Set<string>()
  for (const operation of transaction)
    if (operation.verb === 'delete-elements') leaving.add(setKey(operation))
  for (const operation of transaction) {
    if (operation.verb !== 'add-elements' || !leaving.has(setKey(operation))) continue
    const keys = added.get(setKey(operation)) ?? new Set<string>()
    for (const { key } of operation.elements) keys.add(key)
    added.set(setKey(operation), keys)
  }
  return added
}

function setKey(operation: Extract<Operation, { readonly set: { readonly name: string } }>): string {
  return `${tableKey(operation)} ${operation.set.name}`
}

interface Split {
  readonly addedKeys: KeysBySet
  readonly from: Started
  readonly add: Operation[]
  readonly remove: Operation[]
}

/**
 * Splits deletions. Old forms of elements that are added again are deleted first, the rest last. Where old
 * and new elements do not fit together (ENFILE), all old elements are deleted first.
 */
function splitElements(operation: DeleteElements, { addedKeys, from, add, remove }: Split): void {
  const again = addedKeys.get(setKey(operation)) ?? NO_KEYS
  const mayCrowd = from.observed || again.size * CROWD_SHARE > operation.set.size
  const isCrowded = mayCrowd && countElements(from.ruleset, operation) + again.size > operation.set.size
  const isFirst = operation.elements.map(({ key }) => isCrowded || again.has(key))
  for (const [into, first] of [
    [add, true],
    [remove, false],
  ] as const) {
    const chosen = (_: unknown, i: number): boolean => isFirst[i] === first
    const elements = operation.elements.filter(chosen)
    if (elements.length > 0) into.push({ ...operation, elements, groups: operation.groups.filter(chosen) })
  }
}

const NO_KEYS: ReadonlySet<string> = new Set()

/** If additions are less than 1/16 of a set's size, the present elements need not be counted. */
const CROWD_SHARE = 16

function countElements({ tables }: Ruleset, { family, table, set }: DeleteElements): number {
  let count = 0
  const from = tables.find(each => each.family === family && each.name === table)
  for (const group of from?.elements.values() ?? [])
    for (const element of group) if (element.set === set.name) count++
  return count
}
