import { PersistentMap } from '../../base/collections.ts'
import { anyContains, type Cidr } from '../../base/ip.ts'
import { growthOf } from '../../kernel/ipset/grow.ts'
import type { GroupedEntries, Ipset, IpsetEntry } from '../../kernel/ipset/state.ts'
import {
  type IpvsOperation,
  type RealServer,
  sameDestination,
  sameSettings,
} from '../../kernel/ipvs/state.ts'
import { diffRulesets } from '../../kernel/nft/diff.ts'
import type { Operation } from '../../kernel/nft/transaction.ts'
import type { RuleCodec } from '../../kernel/xt/compile.ts'
import { staysAsIs } from '../common/tables.ts'
import { diffChains } from './chains.ts'
import { keepFamilies } from './families.ts'
import type { NftSetName } from './layout.ts'
import { groupOf, type IpvsPlan, makePlan, type Phase, type SetChange, splitTransaction } from './plan.ts'
import type { IpvsOptions } from './settings.ts'
import type { IpvsState, PlacedAddress, PlacedEntry, PlacedServer } from './state.ts'
import { countEntries } from './upkeep.ts'

export const NO_LATE_SETS = { lateSets: new Set<string>() } as const

interface DiffOptions extends Pick<IpvsOptions, 'excludeCidrs'> {
  readonly codec: RuleCodec
}

/**
 * Makes the phases that lead from one state to the other. The state afterwards includes draining real
 * servers. They cause no further commit: the upkeep removes them when their connections have ended.
 */
export function diffStates(
  from: IpvsState,
  wanted: IpvsState,
  { excludeCidrs, codec }: DiffOptions,
): IpvsPlan {
  const to = keepFamilies(from, wanted)
  const sets = diffSets(from, to)
  const servers = diffServers(from.servers, to.servers, excludeCidrs)
  const addresses = diffAddresses(from.addresses, to.addresses)
  const ruleset = diffRulesets(from.ruleset, to.ruleset, NO_LATE_SETS)
  const started = { ruleset: from.ruleset, observed: from.frontends === undefined }
  const split = (isPart: (operation: Operation) => boolean) =>
    splitTransaction(ruleset.transaction.filter(isPart), started)
  const rules = split(operation => !isRedirect(operation))
  const redirects = split(isRedirect)
  const { kind, operations } = diffChains(from.chains, to.chains, codec)
  const chains = operations.filter(({ family }) => !staysAsIs(family, to.without))
  const phases: Phase[] = [
    { kind: 'add-sets', sets: sets.add },
    { kind: 'remove-sets', names: sets.remove },
    { kind: 'add-entries', lists: sets.addEntries },
    { kind: 'remove-entries', lists: sets.removeEntries },
    { kind: 'add-rules', transaction: rules.add },
    { kind: 'remove-rules', transaction: rules.remove },
    { kind: 'add-redirects', transaction: redirects.add },
    { kind: 'remove-redirects', transaction: redirects.remove },
    { kind, operations: chains, nameOfIpset: codec.nameOfIpset },
    { kind: 'add-servers', operations: servers.add },
    { kind: 'remove-servers', operations: servers.remove },
    { kind: 'add-addresses', addresses: addresses.add },
    { kind: 'remove-addresses', addresses: addresses.remove },
  ]
  if (to.device && !from.device) phases.push({ kind: 'add-device' })
  // The sets record which objects are ours.
  const isDeviceOurs = from.device && from.sets.size > 0
  if (isDeviceOurs && isNothing(to)) phases.push({ kind: 'remove-device' })
  return makePlan(phases, {
    after: afterwards(to, {
      servers: servers.after,
      sets: sets.after,
      ruleset: ruleset.after,
      device: to.device || (from.device && !isNothing(to)),
    }),
    complete: ruleset.complete,
  })
}

/** Tests whether a state contains nothing of ours. A state without Services still has sets and the device. */
function isNothing({ sets, device }: IpvsState): boolean {
  return sets.size === 0 && !device
}

/** Maps whose elements redirect packets to another virtual server. */
const REDIRECTS: ReadonlySet<string> = new Set<NftSetName>(['cluster-lists', 'local-lists'])

function isRedirect(operation: Operation): boolean {
  const isOfElements = operation.verb === 'add-elements' || operation.verb === 'delete-elements'
  return isOfElements && REDIRECTS.has(operation.set.name)
}

/** Gives the state after the plan: the wanted state itself where nothing differs. */
function afterwards(
  to: IpvsState,
  held: Pick<IpvsState, 'servers' | 'sets' | 'ruleset' | 'device'>,
): IpvsState {
  const isSame =
    held.servers === to.servers &&
    held.sets === to.sets &&
    held.ruleset === to.ruleset &&
    held.device === to.device
  return isSame ? to : { ...to, ...held }
}

function diffAddresses(
  from: IpvsState['addresses'],
  to: IpvsState['addresses'],
): { readonly add: readonly PlacedAddress[]; readonly remove: readonly PlacedAddress[] } {
  const add: PlacedAddress[] = []
  const remove: PlacedAddress[] = []
  for (const [, before, after] of PersistentMap.differences(from, to)) {
    if (before === undefined && after !== undefined) add.push(after)
    else if (before !== undefined && after === undefined) remove.push(before)
  }
  return { add, remove }
}

interface ServersDiff {
  readonly add: readonly IpvsOperation[]
  readonly remove: readonly IpvsOperation[]
  /** The servers of `to`, with the real servers that drain or must stay. */
  readonly after: PersistentMap<PlacedServer>
}

interface ServerPiles {
  readonly add: IpvsOperation[]
  readonly remove: IpvsOperation[]
  readonly draining: [string, PlacedServer][]
}

/**
 * Compares virtual servers. A virtual server is changed in place, because a new one would end its
 * connections. Real servers that a server loses stay with weight 0 as long as their connections last. Those
 * of UDP are deleted, because their clients would continue to send to a removed endpoint. In excludeCidrs
 * only virtual servers that this process made are deleted.
 */
function diffServers(
  from: PersistentMap<PlacedServer>,
  to: PersistentMap<PlacedServer>,
  excludeCidrs: readonly Cidr[],
): ServersDiff {
  const piles: ServerPiles = { add: [], remove: [], draining: [] }
  for (const [key, before, after] of PersistentMap.differences(from, to)) {
    if (after === undefined) {
      if (before !== undefined && !isExcluded(before, excludeCidrs))
        piles.remove.push({ verb: 'delete-server', server: before.server, group: before.service })
      continue
    }
    if (before === undefined || !sameSettings(before.server, after.server))
      piles.add.push({
        verb: 'set-server',
        server: after.server,
        isNew: before === undefined,
        group: after.service,
      })
    const drained = diffDestinations(before?.destinations ?? NONE, after, piles)
    if (drained.length > 0) piles.draining.push([key, withDrained(after, drained)])
  }
  return { add: piles.add, remove: piles.remove, after: to.with(piles.draining) }
}

/** Only virtual servers that were read from the kernel, which have no Service, are excluded. */
function isExcluded({ server, service }: PlacedServer, excludeCidrs: readonly Cidr[]): boolean {
  return service === '' && anyContains(excludeCidrs, server.ip)
}

const NONE: ReadonlyMap<string, RealServer> = new Map()

type Keyed = readonly [string, RealServer]

/** Compares real servers. Gives those that stay although they are not wanted. */
function diffDestinations(
  before: PlacedServer['destinations'],
  { server, destinations, service: group }: PlacedServer,
  { add, remove }: ServerPiles,
): readonly Keyed[] {
  if (before === destinations) return []
  for (const [key, destination] of destinations) {
    const present = before.get(key)
    if (present === undefined || !sameDestination(present, destination))
      add.push({ verb: 'set-destination', server, destination, isNew: present === undefined, group })
  }
  const drained: Keyed[] = []
  for (const [key, destination] of before) {
    if (destinations.has(key)) continue
    if (server.protocol === 'UDP') {
      remove.push({ verb: 'delete-destination', server, destination, group })
      continue
    }
    const quiet = { ...destination, weight: 0 }
    drained.push([key, quiet])
    if (destination.weight !== 0)
      remove.push({ verb: 'set-destination', server, destination: quiet, isNew: false, group })
  }
  return drained
}

function withDrained(wanted: PlacedServer, drained: readonly Keyed[]): PlacedServer {
  const all = [...wanted.destinations, ...drained].sort(([a], [b]) => (a < b ? -1 : 1))
  return { ...wanted, destinations: new Map(all) }
}

interface SetsDiff {
  readonly add: readonly SetChange[]
  readonly addEntries: readonly GroupedEntries[]
  /** Entries to delete. Entries of a deleted set are deleted with it. */
  readonly removeEntries: readonly GroupedEntries[]
  readonly remove: readonly string[]
  /** The sets as the kernel has them afterwards: a set never becomes smaller. */
  readonly after: ReadonlyMap<string, Ipset>
}

interface EntryPile {
  readonly entries: IpsetEntry[]
  readonly groups: string[]
}

type EntryPiles = ReadonlyMap<string, EntryPile>

function diffSets(from: IpvsState, to: IpvsState): SetsDiff {
  const { added, removed } = diffEntries(from, to)
  const counts = countEntries(from)
  const after = new Map(to.sets)
  const add: SetChange[] = []
  for (const name of from.sets === to.sets ? added.keys() : to.sets.keys()) {
    const [present, wanted] = [from.sets.get(name), to.sets.get(name)]
    if (wanted === undefined) continue
    // The kernel rejects a set beside one of another type with the same name. Another program may need that set.
    if (present === undefined || !isOfOneKind(present, wanted)) {
      add.push({ set: wanted, replaces: undefined })
      continue
    }
    // The added entries are in the set beside those that are deleted later.
    const count = (counts.get(name) ?? 0) + (added.get(name)?.entries.length ?? 0)
    const maxElements = Math.max(wanted.maxElements, count)
    if (maxElements <= present.maxElements) {
      if (present.maxElements > wanted.maxElements) after.set(name, present)
      continue
    }
    const larger = { ...wanted, maxElements: 2 ** Math.ceil(Math.log2(maxElements)) }
    const growth = growthOf({ set: larger, ...entriesOf(from, name) })
    add.push({ set: growth.set, replaces: { set: present, growth } })
    after.set(name, growth.set)
  }
  return {
    add,
    addEntries: grouped(added, to.sets),
    removeEntries: grouped(removed, to.sets),
    remove: [...from.sets.keys()].filter(name => !to.sets.has(name)),
    after: [...after].every(([name, set]) => to.sets.get(name) === set) ? to.sets : after,
  }
}

function isOfOneKind(a: Ipset, b: Ipset): boolean {
  return a.type === b.type && a.family === b.family
}

function diffEntries(from: IpvsState, to: IpvsState): { added: EntryPiles; removed: EntryPiles } {
  const added = new Map<string, EntryPile>()
  const removed = new Map<string, EntryPile>()
  for (const [, before, after] of PersistentMap.differences(from.entries, to.entries)) {
    // The kernel does not hold the users of an entry. An addition makes an exception of another program an entry.
    if (before !== undefined && after === undefined) put(removed, before)
    else if (after !== undefined && (before === undefined || isException(before))) put(added, after)
  }
  return { added, removed }
}

function isException({ entry }: PlacedEntry): boolean {
  return entry.nomatch === true
}

function put(piles: Map<string, EntryPile>, { set, entry, services }: PlacedEntry): void {
  const pile = piles.get(set) ?? { entries: [], groups: [] }
  piles.set(set, pile)
  pile.entries.push(entry)
  pile.groups.push(groupOf(services))
}

function grouped(piles: EntryPiles, sets: ReadonlyMap<string, Ipset>): readonly GroupedEntries[] {
  return [...piles].flatMap(([name, pile]) => {
    const set = sets.get(name)
    return set === undefined ? [] : [{ set, ...pile }]
  })
}

function entriesOf({ entries }: IpvsState, name: string): EntryPile {
  const piles = new Map<string, EntryPile>()
  for (const placed of entries.values()) if (placed.set === name && !isException(placed)) put(piles, placed)
  return piles.get(name) ?? { entries: [], groups: [] }
}
