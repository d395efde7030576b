import { append, PersistentMap } from '../../base/collections.ts'
import type { Family } from '../../base/ip.ts'
import { PROTOCOL_NUMBERS, portProtocolOf } from '../../base/ip-packet.ts'
import type { Octets } from '../../base/octets.ts'
import { isMissingFamily } from '../../kernel/missing-family.ts'
import type { CommitResult, NftClient } from '../../kernel/nft/client.ts'
import * as nft from '../../kernel/nft/constants.ts'
import { concatenatedType, TYPE_IP6ADDR, TYPE_IPADDR } from '../../kernel/nft/datatypes.ts'
import { sameElement } from '../../kernel/nft/diff-elements.ts'
import type { OperationFailure } from '../../kernel/nft/failures.ts'
import { describeOperation } from '../../kernel/nft/print.ts'
import { formatElementData, formatElementKey } from '../../kernel/nft/print-data.ts'
import type { Element, ElementGroup, NftFamily, NftSet, Ruleset, Table } from '../../kernel/nft/state.ts'
import {
  type ElementOperation,
  isOnElements,
  type Operation,
  type Transaction,
} from '../../kernel/nft/transaction.ts'
import type { FrontendTable, PortFrontends } from '../../model/frontend.ts'
import type { Protocol, ServiceKey } from '../../model/service.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import {
  type CommitOptions,
  generationOf,
  guardOf,
  type KernelRefusal,
  type Plan,
  type PlanLine,
  type Receipt,
} from '../../reconcile/dataplane.ts'

/** The differences between the tables of the two families. */
export interface FamilyLayout {
  readonly family: NftFamily
  readonly model: Family
  readonly nfproto: number
  /** Bytes. */
  readonly addressLength: number
  /** The number of 32-bit registers that an address takes. */
  readonly addressRegs: number
  readonly addressType: number
  /** Byte offsets in the network header. */
  readonly sourceOffset: number
  readonly destinationOffset: number
  readonly rejectCode: number
}

const IPV4: FamilyLayout = {
  family: 'ip',
  model: 'IPv4',
  nfproto: nft.NFPROTO_IPV4,
  addressLength: 4,
  addressRegs: 1,
  addressType: TYPE_IPADDR,
  sourceOffset: 12,
  destinationOffset: 16,
  rejectCode: nft.ICMP_PORT_UNREACH,
}

const IPV6: FamilyLayout = {
  family: 'ip6',
  model: 'IPv6',
  nfproto: nft.NFPROTO_IPV6,
  addressLength: 16,
  addressRegs: 4,
  addressType: TYPE_IP6ADDR,
  sourceOffset: 8,
  destinationOffset: 24,
  rejectCode: nft.ICMPV6_PORT_UNREACH,
}

/** The layout of the tables of each family. */
export const LAYOUTS: Readonly<Record<NftFamily, FamilyLayout>> = { ip: IPV4, ip6: IPV6 }
/** The families of the tables that contain Services. */
export const NFT_FAMILIES: readonly NftFamily[] = ['ip', 'ip6']

export function tableOf(ruleset: Ruleset, family: NftFamily): Table | undefined {
  return ruleset.tables.find(table => table.family === family)
}

export function forFamilies<T>(make: (family: NftFamily) => T): Readonly<Record<NftFamily, T>> {
  return { ip: make('ip'), ip6: make('ip6') }
}

export const TABLE_COMMENT = 'rules of kprobe'

const GROUP_LENGTH_MAX = 64

/**
 * Tests whether a rendered group equals the present one except for the order, which the kernel chooses. The present
 * one is then kept, so that the diff skips it. Long groups are not compared here: the diff compares them.
 */
export function sameGroup(present: ElementGroup, made: ElementGroup): boolean {
  const { length } = made
  if (present.length !== length || length > GROUP_LENGTH_MAX) return false
  for (let i = 0; i < length; i++) {
    const element = made[i]
    let j = 0
    while (j < length && !sameElement(present[j], element)) j++
    if (j === length) return false
  }
  return true
}

/** The maximum length of a comment: nft keeps the length in one byte. */
const COMMENT_MAX = 250

/** Makes the comment that names the port, for nft and for later reads of the kernel. */
export function commentOf({ displayName }: PortFrontends): string {
  return displayName.length <= COMMENT_MAX ? displayName : displayName.slice(0, COMMENT_MAX)
}

/** The prefix of groups whose elements serve no single Service. Names of Services cannot begin with it. */
const SHARED = '@'

export const GROUP_NODEPORT_IPS = `${SHARED}nodeport-ips`
/** Elements in the kernel whose Service is unknown. */
export const GROUP_UNKNOWN = `${SHARED}unknown`

/** Gives the Service whose elements a group holds; undefined for a shared group. */
export function serviceOfGroup(group: string): string | undefined {
  return group.startsWith(SHARED) || group.startsWith('\0') ? undefined : group
}

/** Declares a set, not a map, whose keys are the concatenation of fields of these types. */
export function plainSet(
  name: string,
  size: number,
  key: { types: readonly number[]; length: number },
): NftSet {
  return {
    name,
    flags: 0,
    keyType: concatenatedType(...key.types),
    keyLength: key.length,
    dataType: undefined,
    dataLength: undefined,
    size,
    timeoutMs: 0,
    userdata: '',
  }
}

/** The most frequent one first. */
export const PROTOCOLS: readonly Protocol[] = ['TCP', 'UDP', 'SCTP']

/** Encodes protocol and port: the last 8 bytes of a frontends key, and all of a nodeports key. */
export function portKey(protocol: Protocol, port: number): Octets {
  return String.fromCharCode(PROTOCOL_NUMBERS[protocol], 0, 0, 0, port >>> 8, port & 255, 0, 0)
}

/** Gives the protocol of a key that ends in a portKey. */
export function protocolOfKey(key: Octets): Protocol | undefined {
  return portProtocolOf(key.charCodeAt(key.length - 8))
}

/** Encodes a port as the second half of an endpoint: two bytes and the padding of a 32-bit register. */
export function portData(port: number): Octets {
  return String.fromCharCode(port >>> 8, port & 255, 0, 0)
}

interface Growth {
  /** The minimum size of a new set, so that small clusters grow without a replacement of the table. */
  readonly min: number
  /** The share, 0 to 1, above which a set gets a new size. */
  readonly full: number
  /** The factor by which a new set is larger than its number of elements; 2 by default. */
  readonly headroom?: number
}

const HEADROOM = 2

/**
 * Gives the size of a set of `count` elements: its present size while it is not full, otherwise a larger
 * power of two.
 */
export function sizeToHold(count: number, before: number | undefined, growth: Growth): number {
  const { min, full, headroom = HEADROOM } = growth
  if (before !== undefined && before > 0 && count <= before * full) return before
  return 2 ** Math.ceil(Math.log2(Math.max(min, count * headroom)))
}

/** Every mode's state records the inputs that it was rendered from. */
interface Rendered {
  readonly frontends: FrontendTable | undefined
  readonly without: ReadonlySet<ServiceKey>
  readonly refusals: ReadonlyMap<ServiceKey, unknown>
}

/**
 * Gives the Services to render again: those that changed, those that were put into or released from
 * quarantine, and those with refusals. Gives all Services when the base was not rendered.
 */
export function changedServices(
  frontends: FrontendTable,
  base: Rendered,
  without: ReadonlySet<ServiceKey>,
): Iterable<ServiceKey> {
  if (base.frontends === undefined) return frontends.services.keys()
  const changed = new Set(PersistentMap.changes(base.frontends.services, frontends.services))
  for (const key of base.without) if (!without.has(key)) changed.add(key)
  for (const key of without) if (!base.without.has(key)) changed.add(key)
  for (const key of base.refusals.keys()) changed.add(key)
  return changed
}

/** A plan of one nf_tables transaction, with the state of the kernel after it. */
export interface TransactionPlan<State> extends Plan<State> {
  readonly transaction: Transaction
}

/** Makes a plan. `ruleset` is the part of `after` that the transaction changes. */
export function transactionPlan<State>({
  transaction,
  after,
  complete,
  ruleset,
}: Pick<TransactionPlan<State>, 'transaction' | 'after' | 'complete'> & {
  readonly ruleset: Ruleset
}): TransactionPlan<State> {
  return {
    transaction,
    after,
    complete,
    empty: transaction.length === 0,
    changes: countChanges(transaction),
    rebuilds: transaction.some(({ verb }) => verb === 'delete-table'),
    describe: () => describeTransaction(transaction, ruleset),
  }
}

/** Counts the changes of a transaction. An element that is deleted and added again is one change. */
export function countChanges(transaction: Transaction): number {
  let changes = 0
  for (const operation of transaction) changes += isOnElements(operation) ? operation.elements.length : 1
  for (const again of replacements(transaction).values()) changes -= again.size
  return changes
}

/** Elements that are deleted and added again, by set and key. */
type Replacements = ReadonlyMap<string, ReadonlyMap<string, Element>>

function replacements(transaction: Transaction): Replacements {
  const gone = byKey(transaction, 'delete-elements', () => true)
  const added = gone.size === 0 ? gone : byKey(transaction, 'add-elements', set => gone.has(set))
  const replaced = new Map<string, Map<string, Element>>()
  for (const [set, elements] of gone) {
    const again = added.get(set)
    if (again === undefined) continue
    replaced.set(set, new Map([...elements].filter(([key]) => again.has(key))))
  }
  return replaced
}

function byKey(
  transaction: Transaction,
  verb: ElementOperation['verb'],
  isAsked: (set: string) => boolean,
): ReadonlyMap<string, ReadonlyMap<string, Element>> {
  const sets = new Map<string, Map<string, Element>>()
  for (const operation of transaction) {
    if (operation.verb !== verb || !isAsked(setName(operation))) continue
    const elements = sets.get(setName(operation)) ?? new Map<string, Element>()
    for (const element of operation.elements) elements.set(element.key, element)
    sets.set(setName(operation), elements)
  }
  return sets
}

function setName({ family, table, set }: ElementOperation): string {
  return `${family} ${table} ${set.name}`
}

/**
 * Describes a transaction: shared objects first, then one Service after the other. `after` is the result of
 * the transaction; its set declarations define how elements are printed.
 */
export function describeTransaction(transaction: Transaction, after: Ruleset): readonly PlanLine[] {
  return sharedFirst(linesOf(transaction, after), ({ service }) => service)
}

/** Gives what concerns shared objects first, then what concerns one Service after the other. */
export function sharedFirst<T>(items: Iterable<T>, serviceOf: (item: T) => string | undefined): readonly T[] {
  const shared: T[] = []
  const byService = new Map<string, T[]>()
  for (const item of items) {
    const service = serviceOf(item)
    if (service === undefined) shared.push(item)
    else append(byService, service, item)
  }
  const sorted = [...byService].sort(([a], [b]) => (a < b ? -1 : 1))
  return [...shared, ...sorted.flatMap(([, its]) => its)]
}

function* linesOf(transaction: Transaction, after: Ruleset): IterableIterator<PlanLine> {
  const replaced = replacements(transaction)
  for (const operation of transaction) {
    if (!isOnElements(operation)) {
      const line = describeShared(operation, after)
      if (line !== undefined) yield line
      continue
    }
    const again = replaced.get(setName(operation))
    for (const [i, element] of operation.elements.entries()) {
      const old = again?.get(element.key)
      if (operation.verb === 'delete-elements' && old !== undefined) continue
      const service = serviceOfGroup(operation.groups[i] ?? '')
      yield { ...describeElement(operation, element, old), service }
    }
  }
}

function describeShared(operation: Operation, after: Ruleset): PlanLine | undefined {
  const sets = tableOf(after, operation.family)?.sets
  const text = describeOperation(operation, sets === undefined ? {} : { sets })
  const [verb = '', ...object] = text.split(' ')
  const change = { add: 'add', delete: 'remove', flush: 'change' } as const
  return verb === 'add' || verb === 'delete' || verb === 'flush'
    ? { verb: change[verb], object: object.join(' '), service: undefined }
    : undefined
}

function describeElement(
  operation: ElementOperation,
  element: Element,
  old: Element | undefined,
): Pick<PlanLine, 'verb' | 'object'> {
  const { set, family, table } = operation
  const key = formatElementKey(set, element.key)
  const shift = old === undefined ? dataText(set, element) : ` : ${bare(set, old)} -> ${bare(set, element)}`
  return {
    verb: old !== undefined ? 'change' : operation.verb === 'add-elements' ? 'add' : 'remove',
    object: `element ${family} ${table} ${set.name} { ${key}${shift} }`,
  }
}

function dataText(set: NftSet, element: Element): string {
  return element.data === undefined ? '' : ` : ${bare(set, element)}`
}

function bare(set: NftSet, { data }: Element): string {
  return formatElementData(set, data)
}

/** The kernel's errors for lack of room. The element at which it stopped is not the cause. */
const NO_ROOM: ReadonlySet<string> = new Set(['ENFILE', 'ENOMEM', 'ENOSPC', 'ENOBUFS'])

/** Makes the receipt of a commit whose operations are those of one transaction. */
export function receiptOf(result: CommitResult): Receipt {
  const { outcome, foreign, bytes, messages, durationMs } = result
  const generation = generationOf(result.generation)
  const refusals = result.failures.map(refusalOf)
  return { outcome, generation, foreign, refusals, bytes, messages, durationMs }
}

/** Commits plans through the client, each in one transaction. */
export function commitWith(
  client: NftClient,
): (plan: { readonly transaction: Transaction }, options: CommitOptions) => Promise<Receipt> {
  return async ({ transaction }, options) => {
    const guard = options.generation === undefined ? undefined : guardOf(options)
    return receiptOf(await client.commit(transaction, guard))
  }
}

/** Makes a refusal from one rejected message of an nf_tables batch. */
export function refusalOf({ elements, operation, ...words }: OperationFailure): KernelRefusal {
  const services = elements.flatMap(({ group }) => serviceOfGroup(group) ?? [])
  // The kernel rejected the batch as a whole, not this operation.
  const isOfWhole = words.error instanceof NetlinkError && words.error.operation === 'commit'
  return refusalTo(services, words, isOfWhole ? undefined : operation.family)
}

/** Makes a refusal for an object that serves these Services, or all of its family. The error names the Services. */
export function refusalTo(
  suspects: readonly string[],
  { code, error }: Pick<OperationFailure, 'code' | 'error'>,
  family?: NftFamily,
): KernelRefusal {
  if (NO_ROOM.has(code)) return { services: [], error }
  const services = new Set(suspects)
  if (services.size > 0) return { services: [...services], error: named(error, services) }
  const isLacking = family !== undefined && isMissingFamily('nftables', code)
  return { services: [], error, family: isLacking ? LAYOUTS[family].model : undefined }
}

/** Tests whether the objects of a family stay as they are: see RenderOptions.without. */
export function staysAsIs(family: NftFamily, without: ReadonlySet<string>): boolean {
  return without.has(LAYOUTS[family].model)
}

/** Gives the wanted ruleset with the tables of `from` in the families that stay as they are. */
export function keptFrom(from: Ruleset, to: Ruleset, without: ReadonlySet<string>): Ruleset {
  if (without.size === 0) return to
  const kept = from.tables.filter(({ family }) => staysAsIs(family, without))
  return { tables: [...to.tables.filter(({ family }) => !staysAsIs(family, without)), ...kept] }
}

const SERVICES_NAMED_MAX = 3

function named(error: Error, services: ReadonlySet<string>): Error {
  const first = [...services].slice(0, SERVICES_NAMED_MAX).join(', ')
  const more = services.size > SERVICES_NAMED_MAX ? ` and ${services.size - SERVICES_NAMED_MAX} more` : ''
  const noun = services.size === 1 ? 'Service' : 'Services'
  return new Error(`${noun} ${first}${more}: ${error.message}`, { cause: error })
}
