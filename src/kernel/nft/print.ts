import { type Octets, readU32host } from '../../base/octets.ts'
import * as nft from './constants.ts'
import * as datatypes from './datatypes.ts'
import { readCompiled } from './decode.ts'
import {
  flagNames,
  formatComment,
  formatDuration,
  formatElement,
  formatElementData,
  formatElementKey,
  formatType,
} from './print-data.ts'
import { formatRule, metaSource } from './print-rule.ts'
import {
  type AnyTable,
  type Chain,
  type ChainHook,
  type Element,
  isCompiled,
  type NftSet,
  type Ruleset,
  type Table,
} from './state.ts'
import { addsRule, isOnElements, type Operation, wordsOf } from './transaction.ts'
import { DESTINATION, DESTINATION_PORT, DESTINATION_PORTS, decodeUserdata, SOURCE } from './userdata.ts'

/**
 * Prints lines in the syntax of `nft list ruleset` (1.0.6), without line ends, for machines without nft. Each element
 * has its own line, sorted by key, so that two listings can be compared.
 */
export function* printRuleset(ruleset: Ruleset): IterableIterator<string> {
  for (const line of printTables(ruleset.tables)) yield line
}

export function* printTables(tables: Iterable<AnyTable>): IterableIterator<string> {
  for (const table of tables) for (const line of printTable(table)) yield withoutControls(line)
}

function* printTable(table: AnyTable): IterableIterator<string> {
  yield `table ${table.family} ${table.name} {`
  if (table.comment !== undefined) yield `\t${formatComment(table.comment).trimStart()}`
  const flags = tableFlags(table)
  if (flags.length > 0) yield `\tflags ${flags.join(',')}`
  const elements = elementsBySet(table)
  let first = table.comment === undefined && flags.length === 0
  for (const set of table.sets.values()) {
    if (!first) yield ''
    first = false
    for (const line of printSet(set, elements.get(set.name) ?? [])) yield line
  }
  for (const chain of table.chains.values()) {
    if (!first) yield ''
    first = false
    for (const line of printChain(chain, table)) yield line
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

function* printChain(chain: Chain, table: AnyTable): IterableIterator<string> {
  yield `\tchain ${chain.name} {`
  if (chain.hook !== undefined) yield `\t\t${formatHook(chain.hook)}`
  for (const rule of chain.rules) yield `\t\t${formatRule(rule, table)}`
  yield '\t}'
}

/** Returns the ruleset as plain values for JSON or YAML: addresses, ports and marks as text. */
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

function elementsBySet(table: AnyTable): ReadonlyMap<string, readonly Element[]> {
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
  return flagNames(set.flags, [
    [nft.NFT_SET_CONSTANT, 'constant'],
    [nft.NFT_SET_INTERVAL, 'interval'],
    [nft.NFT_SET_EVAL, 'dynamic'],
    [nft.NFT_SET_TIMEOUT, 'timeout'],
  ])
}

function tableFlags(table: AnyTable): readonly string[] {
  return flagNames(table.flags, [
    [nft.NFT_TABLE_F_DORMANT, 'dormant'],
    [nft.NFT_TABLE_F_OWNER, 'owner'],
    [nft.NFT_TABLE_F_PERSIST, 'persist'],
  ])
}

/** Names and comments come from the kernel, where any program can write them. */
function withoutControls(line: string): string {
  return line.replace(/(?!\t)[\p{Cc}\p{Cf}]/gu, c => `\\u{${(c.codePointAt(0) ?? 0).toString(16)}}`)
}

/**
 * Formats the userdata of a set as nft reads it: `ip daddr . th dport : meta priority`; undefined without a
 * description.
 */
function formatTypeof(set: Pick<NftSet, 'dataType' | 'userdata'>): string | undefined {
  const texts = [datatypes.NFTNL_UDATA_SET_KEY_TYPEOF, datatypes.NFTNL_UDATA_SET_DATA_TYPEOF]
    .slice(0, set.dataType === undefined ? 1 : 2)
    .map(type => decodeUserdata(set.userdata).find(item => item.type === type))
    .map(item => (item === undefined ? undefined : formatExpression(item.value)))
  return texts.includes(undefined) ? undefined : texts.join(' : ')
}

const HEADER_FIELDS: ReadonlyMap<Octets, string> = new Map([
  [SOURCE.ip.expression, 'ip saddr'],
  [SOURCE.ip6.expression, 'ip6 saddr'],
  [DESTINATION.ip.expression, 'ip daddr'],
  [DESTINATION.ip6.expression, 'ip6 daddr'],
  [DESTINATION_PORT.expression, 'th dport'],
  [DESTINATION_PORTS.TCP.expression, 'tcp dport'],
  [DESTINATION_PORTS.UDP.expression, 'udp dport'],
  [DESTINATION_PORTS.SCTP.expression, 'sctp dport'],
])

const BASES: ReadonlyMap<number, string> = new Map([
  [datatypes.PROTO_BASE_NETWORK_HDR, 'nh'],
  [datatypes.PROTO_BASE_TRANSPORT_HDR, 'th'],
])

function formatExpression(octets: Octets): string | undefined {
  const [kind, data] = decodeUserdata(octets).map(({ value }) => value)
  if (kind === undefined || data === undefined) return undefined
  switch (readU32host(kind)) {
    case datatypes.EXPR_VERDICT:
      return 'verdict'
    case datatypes.EXPR_META:
      return formatNumbers(data, ([key]) => (key === undefined ? undefined : metaSource(key).text))
    case datatypes.EXPR_NUMGEN:
      return formatNumbers(data, ([, modulus]) => `numgen random mod ${modulus}`)
    case datatypes.EXPR_PAYLOAD:
      return HEADER_FIELDS.get(octets) ?? formatNumbers(data, formatRaw)
    case datatypes.EXPR_CONCAT: {
      const members = decodeUserdata(data).map(({ value }) => formatExpression(value))
      return members.length < 2 || members.includes(undefined) ? undefined : members.join(' . ')
    }
    default:
      return undefined
  }
}

function formatRaw([, , base = 0, offset, length]: readonly number[]): string | undefined {
  const header = BASES.get(base)
  return header === undefined ? undefined : `@${header},${offset},${length}`
}

function formatNumbers<T>(data: Octets, format: (numbers: readonly number[]) => T): T {
  return format(decodeUserdata(data).map(({ value }) => readU32host(value)))
}

export interface DescribeOptions {
  /** Maximum number of elements to print per operation; the rest is counted. */
  readonly elements?: number
  /** Sets that the rules read, by name. */
  readonly sets?: ReadonlyMap<string, NftSet>
}

/** Formats an operation in nft's words: `add element ip kube-proxy frontends { 10.96.0.10 . tcp . 53 : 8000:2010 }`. */
export function describeOperation(operation: Operation, options: DescribeOptions = {}): string {
  const words = wordsOf(operation)
  const verb = operation.verb === 'add-set' ? `add ${setKind(operation.set)}` : words.operation
  return `${verb} ${words.object}${detailOf(operation, options)}`
}

function detailOf(operation: Operation, options: DescribeOptions): string {
  const { family, verb } = operation
  if (verb === 'add-chain') {
    const { hook } = operation.chain
    return hook === undefined ? '' : ` { ${formatHook(hook)} }`
  }
  if (addsRule(operation)) {
    const rule = isCompiled(operation.rule) ? readCompiled(operation.rule) : operation.rule
    return ` ${formatRule(rule, { family, sets: options.sets ?? new Map() })}`
  }
  if (!isOnElements(operation)) return ''
  const { set, elements } = operation
  const isAddition = verb === 'add-elements'
  const format = (each: Element) => (isAddition ? formatElement(set, each) : formatElementKey(set, each.key))
  return ` ${list(elements, options, format)}`
}

function setKind(set: NftSet): 'map' | 'set' {
  return set.dataType === undefined ? 'set' : 'map'
}

const ELEMENTS_SHOWN = 4

function list(
  elements: readonly Element[],
  options: DescribeOptions,
  format: (element: Element) => string,
): string {
  const texts = elements.slice(0, options.elements ?? ELEMENTS_SHOWN).map(format)
  const more = elements.length - texts.length
  if (more > 0) texts.push(`and ${more} more`)
  return `{ ${texts.join(', ')} }`
}

const HOOKS: readonly string[] = ['prerouting', 'input', 'forward', 'output', 'postrouting']

/** nft's names for common priorities, with the only hook of a name where it has just one. */
const PRIORITIES: readonly (readonly [priority: number, name: string, only?: string])[] = [
  [-300, 'raw'],
  [-150, 'mangle'],
  [-100, 'dstnat', 'prerouting'],
  [0, 'filter'],
  [50, 'security'],
  [100, 'srcnat', 'postrouting'],
]

function hookName(hooknum: number): string {
  return HOOKS[hooknum] ?? `hook ${hooknum}`
}

/** Formats a hook: `type nat hook prerouting priority dstnat; policy accept;`. */
function formatHook({ type, hooknum, priority, policy }: ChainHook): string {
  const hook = hookName(hooknum)
  const fate = policy === nft.NF_DROP ? 'drop' : 'accept'
  return `type ${type} hook ${hook} priority ${priorityName(priority, hook)}; policy ${fate};`
}

function priorityName(priority: number, hook: string): string {
  for (const [usual, name, only = hook] of PRIORITIES) {
    const distance = priority - usual
    // nft prints a longer distance as a number.
    if (only !== hook || Math.abs(distance) > 10) continue
    if (distance === 0) return name
    return `${name} ${distance < 0 ? '-' : '+'} ${Math.abs(distance)}`
  }
  return String(priority)
}
