import { familyOf, formatIp } from '../../base/ip.ts'
import type { Growth } from '../../kernel/ipset/grow.ts'
import { entryText, type GroupedEntries, type Ipset } from '../../kernel/ipset/state.ts'
import { describeObject } from '../../kernel/ipvs/refusals.ts'
import type { IpvsOperation } from '../../kernel/ipvs/state.ts'
import type { Ruleset } from '../../kernel/nft/state.ts'
import type { Operation, Transaction } from '../../kernel/nft/transaction.ts'
import type { RuleCodec } from '../../kernel/xt/compile.ts'
import type { ScopeOperations } from '../../kernel/xt/scope.ts'
import type { Plan, PlanLine } from '../../reconcile/dataplane.ts'
import { DUMMY_DEVICE } from '../common/kube-proxy.ts'
import { countChanges, describeTransaction, sharedFirst } from '../common/transaction-plan.ts'
import { countScopeChanges, describeScope } from '../xt-common/describe-scope.ts'
import type { IpvsState, PlacedAddress } from './state.ts'

/** The operations that one subsystem of the kernel receives at one time. */
export type Phase =
  | { readonly kind: 'add-sets'; readonly sets: readonly SetChange[] }
  | { readonly kind: 'remove-sets'; readonly names: readonly string[] }
  | { readonly kind: 'add-entries' | 'remove-entries'; readonly lists: readonly GroupedEntries[] }
  /** Elements of our own tables; `add-rules` and `remove-rules` also rules, chains and sets. */
  | {
      readonly kind: 'add-rules' | 'remove-rules' | 'add-redirects' | 'remove-redirects'
      readonly transaction: Transaction
    }
  /** kube-proxy's chains in the tables of iptables. */
  | {
      readonly kind: 'add-chains' | 'take-chains' | 'remove-chains'
      readonly operations: ScopeOperations
      /** Gives the name of an ipset whose number a rule contains. */
      readonly nameOfIpset: RuleCodec['nameOfIpset']
    }
  | { readonly kind: 'add-device' | 'remove-device' }
  | { readonly kind: 'add-servers' | 'remove-servers'; readonly operations: readonly IpvsOperation[] }
  | {
      readonly kind: 'add-addresses' | 'remove-addresses'
      readonly addresses: readonly PlacedAddress[]
    }

/**
 * The order of the phases of a plan. Additions go from the sets up to the addresses, removals the other way
 * round, so that at no moment there is an address without its server, or a server without its sets.
 */
export const PHASE_ORDER: readonly Phase['kind'][] = [
  'add-sets',
  'add-entries',
  'add-chains',
  'add-rules',
  'add-device',
  // Virtual servers and their new real servers.
  'add-servers',
  'add-addresses',
  // Elements that redirect packets to another address, which must exist before.
  'add-redirects',
  // Replaces chains of kube-proxy's iptables mode with the same names, which serve until everything else exists.
  'take-chains',
  'remove-redirects',
  'remove-addresses',
  // Only if the device has no address of another program.
  'remove-device',
  // Drains or deletes real servers, and deletes virtual servers.
  'remove-servers',
  'remove-rules',
  // Except chains that kube-proxy's iptables mode still uses.
  'remove-chains',
  'remove-entries',
  'remove-sets',
]

/** A set that is made, or that replaces a smaller one with all its entries. */
export interface SetChange {
  readonly set: Ipset
  readonly replaces: { readonly set: Ipset; readonly growth: Growth } | undefined
}

/** Makes the group of an entry. Several Services may need one entry: its group names all of them. */
export function groupOf(services: readonly string[]): string {
  return services.join(' ')
}

/** Gives the Services of a group; none for an entry that was read from the kernel. */
export function servicesOf(group: string): readonly string[] {
  return group === '' ? [] : group.split(' ')
}

/** The operations for four subsystems of the kernel. The subsystems are independent of each other. */
export interface IpvsPlan extends Plan<IpvsState> {
  /** The phases with operations, in the order in which they are sent. */
  readonly phases: readonly Phase[]
}

export function makePlan(
  given: readonly Phase[],
  { after, complete }: Pick<IpvsPlan, 'after' | 'complete'>,
): IpvsPlan {
  const rank = ({ kind }: Phase) => PHASE_ORDER.indexOf(kind)
  const counted = given.map(phase => ({ phase, changes: changesOf(phase) })).filter(each => each.changes > 0)
  const phases = counted.map(({ phase }) => phase).sort((a, b) => rank(a) - rank(b))
  return {
    phases,
    empty: phases.length === 0,
    changes: counted.reduce((sum, { changes }) => sum + changes, 0),
    after,
    complete,
    // IPVS keeps its own persistence, and virtual servers are changed in place.
    rebuilds: false,
    describe: () =>
      sharedFirst(
        phases.flatMap(phase => [...linesOf(phase, after.ruleset)]),
        ({ service }) => service,
      ),
  }
}

/** Counts the objects that a phase adds, changes or removes. */
function changesOf(phase: Phase): number {
  if ('sets' in phase) return phase.sets.length
  if ('names' in phase) return phase.names.length
  if ('lists' in phase) return phase.lists.reduce((count, { entries }) => count + entries.length, 0)
  if ('transaction' in phase) return countChanges(phase.transaction)
  if ('nameOfIpset' in phase) return countScopeChanges(phase.operations)
  if ('operations' in phase) return phase.operations.length
  return 'addresses' in phase ? phase.addresses.length : 1
}

function linesOf(phase: Phase, after: Ruleset): Iterable<PlanLine> {
  const verb = phase.kind.startsWith('remove-') ? 'remove' : 'add'
  const shared = (object: string): PlanLine => ({ verb, object, service: undefined })
  if ('sets' in phase) return phase.sets.map(setLine)
  if ('names' in phase) return phase.names.map(name => shared(`ipset ${name}`))
  if ('lists' in phase) return phase.lists.flatMap(list => entryLines(verb, list))
  if ('transaction' in phase) return describeTransaction(phase.transaction, after)
  if ('nameOfIpset' in phase) return describeScope(phase.operations, phase.nameOfIpset)
  if ('operations' in phase) return phase.operations.map(serverLine)
  if (!('addresses' in phase)) return [shared(`link ${DUMMY_DEVICE} type dummy`)]
  return phase.addresses.map(({ ip, services }) => {
    const prefix = familyOf(ip) === 'IPv4' ? 32 : 128
    return { verb, object: `address ${formatIp(ip)}/${prefix} dev ${DUMMY_DEVICE}`, service: services[0] }
  })
}

function setLine({ set, replaces }: SetChange): PlanLine {
  const size = replaces === undefined ? set.maxElements : `${replaces.set.maxElements} -> ${set.maxElements}`
  const object = `ipset ${set.name} ${set.type} maxelem ${size}`
  return { verb: replaces === undefined ? 'add' : 'change', object, service: undefined }
}

function entryLines(verb: PlanLine['verb'], { set, entries, groups }: GroupedEntries): readonly PlanLine[] {
  return entries.map((entry, i) => {
    const object = `entry ${set.name} ${entryText(set, entry)}`
    return { verb, object, service: servicesOf(groups[i] ?? '')[0] }
  })
}

function serverLine(operation: IpvsOperation): PlanLine {
  const verb = 'isNew' in operation ? (operation.isNew ? 'add' : 'change') : 'remove'
  const object = [describeObject(operation), ...detailOf(operation)].join(' ')
  return { verb, object, service: servicesOf(operation.group)[0] }
}

function detailOf(operation: IpvsOperation): readonly string[] {
  if (operation.verb === 'set-destination') return [`weight ${operation.destination.weight}`]
  if (operation.verb !== 'set-server') return []
  const { scheduler, timeoutS } = operation.server
  return timeoutS === 0 ? [scheduler] : [scheduler, `persistent ${timeoutS}`]
}

/** The state before the transaction. */
interface Started {
  readonly ruleset: Ruleset
  /** The state was read from the kernel. Its sets may be fuller than rendered ones. */
  readonly observed: boolean
}

type ElementOperation = Extract<Operation, { readonly verb: 'add-elements' | 'delete-elements' }>

interface Split {
  readonly add: Operation[]
  readonly remove: Operation[]
}

/**
 * Splits a transaction into additions and removals, each in its order, so that virtual servers can be changed
 * in between. An element or chain that changes keeps its old form together with the new one. All operations
 * on a replaced table stay together as well.
 */
export function splitTransaction(
  transaction: Transaction,
  from: Started,
): Readonly<Record<keyof Split, Transaction>> {
  const split: Split = { add: [], remove: [] }
  const additions = new Set(transaction.map(additionOf))
  const addedKeys = keysAdded(transaction)
  for (const operation of transaction) {
    const isOfNewTable = additions.has(tableKey(operation))
    if (operation.verb === 'delete-elements' && !isOfNewTable)
      splitElements(operation, { again: addedKeys.get(setKey(operation)) ?? NO_KEYS, from, ...split })
    else (isOfNewTable || goesFirst(operation, additions) ? split.add : split.remove).push(operation)
  }
  return split
}

/** Names the table or chain that an operation makes or fills. */
function additionOf(operation: Operation): string | undefined {
  const table = tableKey(operation)
  if (operation.verb === 'add-table') return table
  if (operation.verb === 'add-rule') return `rules of ${table} ${operation.chain}`
  return operation.verb === 'add-chain' ? `chain ${table} ${operation.chain.name}` : undefined
}

function goesFirst(operation: Operation, additions: ReadonlySet<string | undefined>): boolean {
  switch (operation.verb) {
    case 'flush-chain':
      return additions.has(`rules of ${tableKey(operation)} ${operation.chain}`)
    case 'delete-chain':
      return additions.has(`chain ${tableKey(operation)} ${operation.chain}`)
    default:
      return operation.verb !== 'delete-table' && operation.verb !== 'delete-set'
  }
}

function tableKey({ family, table }: Operation): string {
  return `${family} ${table}`
}

function setKey(operation: ElementOperation): string {
  return `${tableKey(operation)} ${operation.set.name}`
}

/** Gives the keys of added elements, by set, of the sets that also lose elements. */
function keysAdded(transaction: Transaction): ReadonlyMap<string, ReadonlySet<string>> {
  const added = new Map<string, Set<string>>()
  for (const operation of transaction)
    if (operation.verb === 'delete-elements') added.set(setKey(operation), new Set())
  for (const operation of transaction) {
    const keys = operation.verb === 'add-elements' ? added.get(setKey(operation)) : undefined
    if (operation.verb === 'add-elements') for (const { key } of operation.elements) keys?.add(key)
  }
  return added
}

interface Splitting extends Split {
  /** The keys of elements that the transaction also adds. */
  readonly again: ReadonlySet<string>
  readonly from: Started
}

/**
 * Splits deletions. Old forms of elements that are added again are deleted first, the rest last. Where old
 * and new elements do not fit together (ENFILE), all old elements are deleted first.
 */
function splitElements(operation: ElementOperation, { again, from, add, remove }: Splitting): void {
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

/** Additions of less than 1/16 of a set's size need no count of its elements, which takes 1 ms at 10,000 Services. */
const CROWD_SHARE = 16

function countElements({ tables }: Ruleset, { family, table, set }: ElementOperation): number {
  let count = 0
  const from = tables.find(each => each.family === family && each.name === table)
  for (const group of from?.elements.values() ?? [])
    for (const element of group) if (element.set === set.name) count++
  return count
}
