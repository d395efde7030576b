import { PersistentMap } from '../../../src/base/collections.ts'
import { readCompiled } from '../../../src/kernel/nft/decode.ts'
import { ruleKey } from '../../../src/kernel/nft/diff.ts'
import {
  type Chain,
  type Element,
  isCompiled,
  type NftSet,
  type Ruleset,
  type Table,
} from '../../../src/kernel/nft/state.ts'
import type { Operation, Transaction } from '../../../src/kernel/nft/transaction.ts'

/**
 * nf_tables as plain values, stricter than any kernel: it refuses what some supported kernel refuses, and also what
 * every kernel accepts but a minimal transaction has no need of (adding an element that is there already).
 */
class ModelRefusal extends Error {
  override readonly name = 'ModelRefusal'
}

/** What a kernel that holds `before` holds after `transaction`. Elements end up in one group a set. */
export function applyTransaction(before: Ruleset, transaction: Transaction): Ruleset {
  const tables = new Map(before.tables.map(table => [`${table.family} ${table.name}`, thaw(table)] as const))
  for (const operation of transaction) apply(tables, operation)
  return { tables: [...tables.values()].map(freeze) }
}

/** A text that is equal for two rulesets exactly if they mean the same to the kernel; without what packets made. */
export function canonicalText(ruleset: Ruleset): string {
  return ruleset.tables.map(tableText).sort().join('\n')
}

interface ModelTable {
  readonly flags: number
  readonly comment: string | undefined
  readonly family: Table['family']
  readonly name: string
  readonly chains: Map<string, Chain>
  readonly sets: Map<string, NftSet>
  readonly elements: Map<string, Map<string, Element>>
  /** Chains that were led to when the transaction began: kernels before 6.2 still count those references. */
  readonly referencedBefore: ReadonlySet<string>
}

function thaw(table: Table): ModelTable {
  const elements = new Map<string, Map<string, Element>>()
  for (const name of table.sets.keys()) elements.set(name, new Map())
  for (const group of table.elements.values()) {
    for (const element of group) insert(elements, element)
  }
  const model = { ...table, chains: new Map(table.chains), sets: new Map(table.sets), elements }
  return { ...model, referencedBefore: references({ ...model, referencedBefore: new Set() }) }
}

function insert(elements: Map<string, Map<string, Element>>, element: Element): void {
  const set = elements.get(element.set)
  if (set === undefined) throw new ModelRefusal(`ENOENT: element of missing set ${element.set}`)
  if (set.has(element.key)) throw new ModelRefusal(`EEXIST: element twice in ${element.set}`)
  set.set(element.key, element)
}

function freeze(model: ModelTable): Table {
  const groups = [...model.elements].map(([name, set]) => [name, [...set.values()]] as const)
  const { family, name, flags, comment, chains, sets } = model
  return { family, name, flags, comment, chains, sets, elements: PersistentMap.from(groups) }
}

function references(model: ModelTable): ReadonlySet<string> {
  const found = new Set<string>()
  for (const chain of model.chains.values()) {
    for (const rule of chain.rules) {
      for (const e of rule.expressions)
        if (e.kind === 'verdict' && e.verdict.chain !== undefined) found.add(e.verdict.chain)
    }
  }
  for (const set of model.elements.values()) {
    for (const { data } of set.values())
      if (typeof data === 'object' && data.chain !== undefined) found.add(data.chain)
  }
  return found
}

function apply(tables: Map<string, ModelTable>, operation: Operation): void {
  const key = `${operation.family} ${operation.table}`
  const table = tables.get(key)
  if (operation.verb === 'add-table') {
    if (table !== undefined) return
    const { family, table: name, flags, comment } = operation
    const blank = { family, name, flags, comment, referencedBefore: new Set<string>() }
    tables.set(key, { ...blank, chains: new Map(), sets: new Map(), elements: new Map() })
    return
  }
  if (table === undefined) throw new ModelRefusal(`ENOENT: ${operation.verb} in missing table`)
  if (operation.verb === 'delete-table') tables.delete(key)
  else applyInside(table, operation)
}

type InsideOperation = Exclude<Operation, { verb: 'add-table' | 'delete-table' }>

function applyInside(table: ModelTable, operation: InsideOperation): void {
  switch (operation.verb) {
    case 'add-chain':
      if (table.chains.has(operation.chain.name))
        throw new ModelRefusal(`EEXIST: chain ${operation.chain.name}`)
      table.chains.set(operation.chain.name, { ...operation.chain, rules: [] })
      return
    case 'flush-chain':
      table.chains.set(operation.chain, { ...chainOf(table, operation.chain), rules: [] })
      return
    case 'delete-chain':
      deleteChain(table, operation.chain)
      return
    case 'add-rule':
    case 'insert-rule': {
      const chain = chainOf(table, operation.chain)
      const rule = isCompiled(operation.rule) ? readCompiled(operation.rule) : operation.rule
      for (const e of rule.expressions) {
        if (e.kind === 'verdict' && e.verdict.chain !== undefined) chainOf(table, e.verdict.chain)
        if (e.kind === 'lookup' && !table.sets.has(e.set))
          throw new ModelRefusal(`ENOENT: lookup in ${e.set}`)
      }
      const rules = operation.verb === 'add-rule' ? [...chain.rules, rule] : [rule, ...chain.rules]
      table.chains.set(chain.name, { ...chain, rules })
      return
    }
    case 'add-set':
      if (table.sets.has(operation.set.name)) throw new ModelRefusal(`EEXIST: set ${operation.set.name}`)
      table.sets.set(operation.set.name, operation.set)
      table.elements.set(operation.set.name, new Map())
      return
    case 'delete-set':
      deleteSet(table, operation.set)
      return
    case 'add-elements':
      for (const element of operation.elements) {
        if (typeof element.data === 'object' && element.data.chain !== undefined)
          chainOf(table, element.data.chain)
        insert(table.elements, element)
      }
      return
    case 'delete-elements':
      for (const element of operation.elements) {
        if (table.elements.get(element.set)?.delete(element.key) !== true)
          throw new ModelRefusal('ENOENT: element')
      }
  }
}

function chainOf(table: ModelTable, name: string): Chain {
  const chain = table.chains.get(name)
  if (chain === undefined) throw new ModelRefusal(`ENOENT: chain ${name}`)
  return chain
}

function deleteChain(table: ModelTable, name: string): void {
  if (chainOf(table, name).rules.length > 0) throw new ModelRefusal(`EBUSY: chain ${name} has rules`)
  if (references(table).has(name)) throw new ModelRefusal(`EBUSY: chain ${name} is referenced`)
  if (table.referencedBefore.has(name))
    throw new ModelRefusal(`EBUSY before 6.2: chain ${name} was referenced`)
  table.chains.delete(name)
}

function deleteSet(table: ModelTable, name: string): void {
  if (!table.sets.delete(name)) throw new ModelRefusal(`ENOENT: set ${name}`)
  for (const chain of table.chains.values()) {
    for (const rule of chain.rules) {
      for (const e of rule.expressions) {
        if ((e.kind === 'lookup' || e.kind === 'dynset') && e.set === name)
          throw new ModelRefusal(`EBUSY: set ${name}`)
      }
    }
  }
  table.elements.delete(name)
}

const NFT_SET_EVAL = 0x20
const NFT_DATA_VERDICT = 0xffffff00

/** The length of a verdict is the kernel's own affair. */
function setText({
  name,
  flags,
  keyType,
  keyLength,
  dataType,
  dataLength,
  size,
  timeoutMs,
  userdata,
}: NftSet): string {
  const length = dataType === NFT_DATA_VERDICT ? undefined : dataLength
  return JSON.stringify([name, flags, keyType, keyLength, dataType, length, size, timeoutMs, userdata])
}

function tableText(table: Table): string {
  const lines: string[] = []
  for (const set of table.sets.values()) lines.push(`set ${setText(set)}`)
  for (const chain of table.chains.values()) {
    lines.push(
      `chain ${chain.name} ${JSON.stringify(chain.hook)} ${JSON.stringify(chain.rules.map(ruleKey))}`,
    )
  }
  for (const group of table.elements.values()) {
    for (const { set, key, data, comment } of group) {
      if (((table.sets.get(set)?.flags ?? 0) & NFT_SET_EVAL) !== 0) continue
      lines.push(`element ${JSON.stringify([set, key, data, comment])}`)
    }
  }
  return [`table ${table.family} ${table.name} ${table.flags}`, ...lines.sort()].join('\n')
}
