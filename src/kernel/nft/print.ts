import {
  NFT_SET_CONSTANT,
  NFT_SET_EVAL,
  NFT_SET_INTERVAL,
  NFT_SET_TIMEOUT,
  NFT_TABLE_F_DORMANT,
  NFT_TABLE_F_OWNER,
  NFT_TABLE_F_PERSIST,
} from './constants.ts'
import {
  formatComment,
  formatDuration,
  formatElement,
  formatElementData,
  formatElementKey,
  formatType,
} from './print-data.ts'
import { formatHook, hookName } from './print-hook.ts'
import { setKind } from './print-operation.ts'
import { formatRule } from './print-rule.ts'
import { formatTypeof } from './print-typeof.ts'
import type { Chain, Element, NftSet, Ruleset, Table } from './state.ts'

export { formatElementData, formatElementKey } from './print-data.ts'
export { describeOperation } from './print-operation.ts'

/**
 * Lines in the syntax of `nft list ruleset` (1.0.6), without line ends, for machines that do not have nft. Elements are
 * one to a line, sorted by key, so that two listings can be compared.
 */
export function* printRuleset(ruleset: Ruleset): IterableIterator<string> {
  for (const table of ruleset.tables) {
    for (const line of printTable(table)) yield withoutControls(line)
  }
}

function* printTable(table: Table): IterableIterator<string> {
  yield `table ${table.family} ${table.name} {`
  if (table.comment !== undefined) yield `\t${formatComment(table.comment).trimStart()}`
  const flags = tableFlags(table)
  if (flags.length > 0) yield `\tflags ${flags.join(',')}`
  const elements = elementsBySet(table)
  let first = table.comment === undefined && flags.length === 0
  for (const set of table.sets.values()) {
    if (!first) yield ''
    first = false
    yield* printSet(set, elements.get(set.name) ?? [])
  }
  for (const chain of table.chains.values()) {
    if (!first) yield ''
    first = false
    yield* printChain(chain, table)
  }
  yield '}'
}

function* printSet(set: NftSet, elements: readonly Element[]): IterableIterator<string> {
  yield `\t${setKind(set)} ${set.name} {`
  const described = formatTypeof(set)
  yield described === undefined ? `\t\ttype ${setType(set)}` : `\t\ttypeof ${described}`
  if (set.size > 0) yield `\t\tsize ${set.size}`
  const flags = setFlags(set)
  if (flags.length > 0) yield `\t\tflags ${flags.join(',')}`
  if (set.counted === true) yield '\t\tcounter'
  if (set.timeoutMs > 0) yield `\t\ttimeout ${formatDuration(set.timeoutMs)}`
  for (let i = 0; i < elements.length; i++) {
    const element = elements[i]
    if (element === undefined) continue
    const start = i === 0 ? '\t\telements = { ' : '\t\t\t     '
    yield `${start}${formatElement(set, element)}${i === elements.length - 1 ? ' }' : ','}`
  }
  yield '\t}'
}

function* printChain(chain: Chain, table: Table): IterableIterator<string> {
  yield `\tchain ${chain.name} {`
  if (chain.hook !== undefined) yield `\t\t${formatHook(chain.hook)}`
  for (const rule of chain.rules) yield `\t\t${formatRule(rule, table)}`
  yield '\t}'
}

/** The same as plain values for JSON or YAML: addresses, ports and marks as text. */
export function rulesetToJson(ruleset: Ruleset): unknown {
  return { tables: ruleset.tables.map(tableToJson) }
}

function tableToJson(table: Table): unknown {
  const elements = elementsBySet(table)
  return {
    family: table.family,
    name: table.name,
    ...(table.comment === undefined ? {} : { comment: table.comment }),
    flags: tableFlags(table),
    sets: [...table.sets.values()].map(set => ({
      name: set.name,
      kind: setKind(set),
      type: setType(set),
      flags: setFlags(set),
      size: set.size,
      timeoutMs: set.timeoutMs,
      ...(set.counted === true ? { counted: true } : {}),
      elements: (elements.get(set.name) ?? []).map(element => elementToJson(set, element)),
    })),
    chains: [...table.chains.values()].map(({ name, hook, rules }) => ({
      name,
      ...(hook === undefined ? {} : { hook: { ...hook, hooknum: hookName(hook.hooknum) } }),
      rules: rules.map(rule => formatRule(rule, table)),
    })),
  }
}

function elementToJson(set: NftSet, { key, data, comment, expiresMs }: Element): unknown {
  return {
    key: formatElementKey(set, key),
    ...(data === undefined ? {} : { data: formatElementData(set, data) }),
    ...(comment === '' ? {} : { comment }),
    ...(expiresMs === undefined || expiresMs === 0 ? {} : { expiresMs }),
  }
}

function elementsBySet(table: Table): ReadonlyMap<string, readonly Element[]> {
  const bySet = new Map<string, Element[]>()
  for (const name of table.sets.keys()) bySet.set(name, [])
  for (const group of table.elements.values()) {
    for (const element of group) bySet.get(element.set)?.push(element)
  }
  for (const elements of bySet.values()) elements.sort((a, b) => (a.key < b.key ? -1 : 1))
  return bySet
}

function setType(set: NftSet): string {
  const data = set.dataType === undefined ? '' : ` : ${formatType(set.dataType)}`
  return `${formatType(set.keyType)}${data}`
}

function setFlags(set: NftSet): readonly string[] {
  return named(set.flags, [
    [NFT_SET_CONSTANT, 'constant'],
    [NFT_SET_INTERVAL, 'interval'],
    [NFT_SET_EVAL, 'dynamic'],
    [NFT_SET_TIMEOUT, 'timeout'],
  ])
}

function tableFlags(table: Table): readonly string[] {
  return named(table.flags, [
    [NFT_TABLE_F_DORMANT, 'dormant'],
    [NFT_TABLE_F_OWNER, 'owner'],
    [NFT_TABLE_F_PERSIST, 'persist'],
  ])
}

function named(flags: number, names: readonly (readonly [number, string])[]): readonly string[] {
  return names.filter(([bit]) => (flags & bit) !== 0).map(([, name]) => name)
}

/** Names and comments come from the kernel, and anyone may have put them there. */
function withoutControls(line: string): string {
  return line.replace(/(?!\t)[\p{Cc}\p{Cf}]/gu, c => `\\u{${(c.codePointAt(0) ?? 0).toString(16)}}`)
}
