import { stepsOver } from '../../base/clock.ts'
import { PersistentMap } from '../../base/collections.ts'
import { FAMILIES } from '../../base/ip.ts'
import type { Ipset } from '../../kernel/ipset/state.ts'
import type { ServerKey } from '../../kernel/ipvs/state.ts'
import { sameDeclaration } from '../../kernel/nft/diff.ts'
import type { Chain, NftFamily, Ruleset, Table } from '../../kernel/nft/state.ts'
import type { Refusal } from '../../model/fields.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import type { ServiceKey } from '../../model/service.ts'
import type { RenderOptions } from '../../reconcile/dataplane.ts'
import { tableContext } from '../common/rules.ts'
import {
  changedServices,
  type FamilyLayout,
  forFamilies,
  LAYOUTS,
  NFT_FAMILIES,
  TableDraft,
  tableOf,
} from '../common/tables.ts'
import { wantedChains } from './chains.ts'
import { leavesSameFamilies, servedPart } from './families.ts'
import { declareIpset, declareNftSet, NFT_SET_NAMES, SET_STEMS, setName, sizeOfNftSet } from './layout.ts'
import {
  type ServiceChange,
  type Surroundings,
  type SurroundingsOptions,
  surroundingsOf,
  type Taken,
  takenBy,
} from './places.ts'
import { renderService, type ServiceRendering, sameServer } from './render-service.ts'
import { chainKey, rulesOf } from './rules.ts'
import type { IpvsState, PlacedAddress, PlacedEntry, PlacedServer, Rendering } from './state.ts'
import { countEntries } from './upkeep.ts'

/**
 * Renders the kernel state that the mode wants. If the base was rendered in the same surroundings, only
 * Services that changed are rendered again. Otherwise all are, and only sizes of the base are used. An equal
 * result is the base's own object in any case.
 */
export function renderIpvsState(
  frontends: FrontendTable,
  { base, without }: RenderOptions<IpvsState>,
  options: SurroundingsOptions,
) {
  const surroundings = surroundingsOf(frontends, options)
  const continuing =
    base.frontends !== undefined &&
    base.rendering?.surroundings === surroundings.key &&
    leavesSameFamilies(base.without, without)
  const servedIn = (table: FrontendTable | undefined, key: ServiceKey) =>
    servedPart(table?.services.get(key), without)
  const draft = new StateDraft({ base, continuing, options, surroundings })
  const changes = new Map<ServiceKey, ServiceChange>()
  const change = (key: ServiceKey, before: ServiceChange['before'] | 'same') => {
    const after = without.has(key) ? undefined : servedIn(frontends, key)
    changes.set(key, { key, before: before === 'same' ? after : before, after })
  }
  for (const key of continuing ? changedServices(frontends, base, without) : frontends.services.keys()) {
    const wasIn = continuing && !base.without.has(key)
    change(key, wasIn ? servedIn(base.frontends, key) : undefined)
  }
  const taken = takenBy(changes.values(), continuing ? base : undefined, surroundings)
  // Services that did not change themselves, but whose neighbors did.
  for (const key of taken.touched) if (!changes.has(key)) change(key, 'same')
  return stepsOver(changes.values(), {
    each: its => draft.replace(its, taken),
    result: () => draft.finish(frontends, without),
  })
}

interface DraftOptions {
  readonly base: IpvsState
  readonly continuing: boolean
  readonly options: SurroundingsOptions
  readonly surroundings: Surroundings
}

class StateDraft {
  readonly #given: DraftOptions
  readonly #removed = new Set<ServerKey>()
  readonly #servers = new Map<ServerKey, PlacedServer>()
  readonly #entries: UsersDraft<PlacedEntry>
  readonly #addresses: UsersDraft<PlacedAddress>
  readonly #tables: Readonly<Record<NftFamily, TableDraft>>
  readonly #refusals: Map<ServiceKey, readonly Refusal[]>

  constructor(given: DraftOptions) {
    const { base, continuing, options } = given
    this.#given = given
    this.#entries = new UsersDraft(base.entries, continuing)
    this.#addresses = new UsersDraft(base.addresses, continuing)
    this.#tables = forFamilies(
      family =>
        new TableDraft({
          family,
          name: options.tableName,
          base: tableOf(base.ruleset, family),
          counts: continuing ? base.rendering?.elements[family] : undefined,
        }),
    )
    this.#refusals = new Map(continuing ? base.refusals : [])
  }

  replace({ key, before, after }: ServiceChange, taken: Taken): void {
    const { surroundings } = this.#given
    const old = renderService(before, { surroundings, isTaken: taken.before })
    const now = renderService(after, { surroundings, isTaken: taken.after })
    for (const server of old.servers.keys()) if (!now.servers.has(server)) this.#removed.add(server)
    for (const [server, placed] of now.servers) this.#servers.set(server, placed)
    this.#replaceEntries(key, old, now)
    for (const ip of old.addresses) if (!now.addresses.has(ip)) this.#addresses.remove(ip, key)
    for (const ip of now.addresses)
      if (!old.addresses.has(ip)) this.#addresses.add(ip, key, { ip, services: [key] })
    for (const family of NFT_FAMILIES) this.#tables[family].put(key, now.elements[family])
    if (now.refusals.length > 0) this.#refusals.set(key, now.refusals)
    else this.#refusals.delete(key)
  }

  #replaceEntries(service: ServiceKey, old: ServiceRendering, now: ServiceRendering): void {
    for (const key of old.entries.keys()) if (!now.entries.has(key)) this.#entries.remove(key, service)
    for (const [key, its] of now.entries)
      if (!old.entries.has(key)) this.#entries.add(key, service, { ...its, services: [service] })
  }

  finish(frontends: FrontendTable, without: ReadonlySet<ServiceKey>): IpvsState {
    const { base, continuing, options, surroundings } = this.#given
    const servers = this.#finishServers()
    const entries = this.#entries.finish()
    const counts = this.#countEntries(entries)
    const { ruleset, elements } = this.#finishTables(frontends)
    const textOf = (refusals: IpvsState['refusals']) => JSON.stringify([...refusals])
    const isSame = continuing && textOf(base.refusals) === textOf(this.#refusals)
    const rendering: Rendering = { surroundings: surroundings.key, entries: counts, elements }
    return {
      servers,
      sets: finishSets(base.sets, counts),
      entries,
      addresses: this.#addresses.finish(),
      device: true,
      ruleset,
      chains: continuing ? base.chains : wantedChains(options, frontends, base.chains),
      frontends,
      without,
      missingSchedulers: surroundings.missingSchedulers,
      refusals: isSame ? base.refusals : this.#refusals,
      rendering,
    }
  }

  #finishServers(): PersistentMap<PlacedServer> {
    const { base, continuing } = this.#given
    const changes = new Map<ServerKey, PlacedServer | undefined>()
    const gone = continuing ? this.#removed : base.servers.keys()
    for (const key of gone) if (!this.#servers.has(key)) changes.set(key, undefined)
    for (const [key, server] of this.#servers) {
      const there = base.servers.get(key)
      changes.set(key, there !== undefined && sameServer(there, server) ? there : server)
    }
    return base.servers.withOwn(changes)
  }

  #countEntries(entries: PersistentMap<PlacedEntry>): ReadonlyMap<string, number> {
    const { base, continuing } = this.#given
    if (!continuing) return countEntries({ entries })
    const counts = new Map(countEntries(base))
    const count = (placed: PlacedEntry | undefined, by: 1 | -1) => {
      if (placed !== undefined) counts.set(placed.set, (counts.get(placed.set) ?? 0) + by)
    }
    for (const [, before, after] of PersistentMap.differences(base.entries, entries)) {
      count(before, -1)
      count(after, 1)
    }
    return counts
  }

  #finishTables(frontends: FrontendTable): {
    readonly ruleset: Ruleset
    readonly elements: Rendering['elements']
  } {
    const { continuing, options, surroundings } = this.#given
    const before = this.#given.base.ruleset
    const tables = NFT_FAMILIES.map(family => {
      const [draft, layout, base] = [this.#tables[family], LAYOUTS[family], tableOf(before, family)]
      if (!continuing) draft.putNodePortIps(surroundings.nodePortIps[layout.model])
      const chains =
        continuing && base !== undefined
          ? base.chains
          : chainsFrom(base, rulesOf(options.rules, tableContext(layout, options, frontends)))
      return draft.finish({ chains, sets: setsFrom(base, layout, draft.counts) })
    })
    const isSame =
      before.tables.length === tables.length && tables.every((table, i) => table === before.tables[i])
    const { ip, ip6 } = this.#tables
    return { ruleset: isSame ? before : { tables }, elements: { ip: ip.counts, ip6: ip6.counts } }
  }
}

/** Makes all 17 sets in both families, including empty ones. */
function finishSets(
  base: ReadonlyMap<string, Ipset>,
  counts: ReadonlyMap<string, number>,
): ReadonlyMap<string, Ipset> {
  const sets = FAMILIES.flatMap(family =>
    SET_STEMS.map(stem => {
      const name = setName(stem, family)
      return declareIpset(stem, family, { count: counts.get(name) ?? 0, before: base.get(name) })
    }),
  )
  const isSame = base.size === sets.length && sets.every(set => base.get(set.name) === set)
  return isSame ? base : new Map(sets.map(set => [set.name, set]))
}

function chainsFrom(base: Table | undefined, made: readonly Chain[]): Table['chains'] {
  const chains = made.map(chain => {
    const there = base?.chains.get(chain.name)
    return there !== undefined && chainKey(there) === chainKey(chain) ? there : chain
  })
  return keptOr(base?.chains, chains)
}

function setsFrom(
  base: Table | undefined,
  layout: FamilyLayout,
  counts: ReadonlyMap<string, number>,
): Table['sets'] {
  const sets = NFT_SET_NAMES.map(name => {
    const before = base?.sets.get(name)
    const size = sizeOfNftSet(name, counts.get(name) ?? 0, before?.size)
    const declared = declareNftSet(name, size, layout)
    return before !== undefined && sameDeclaration(before, declared) ? before : declared
  })
  return keptOr(base?.sets, sets)
}

/** Gives the map `before` where it holds exactly these objects. */
function keptOr<T extends { readonly name: string }>(
  before: ReadonlyMap<string, T> | undefined,
  made: readonly T[],
): ReadonlyMap<string, T> {
  const isSame = before?.size === made.length && made.every(each => before.get(each.name) === each)
  return isSame ? before : new Map(made.map(each => [each.name, each]))
}

/** An object of the kernel that several Services may need. */
interface Used {
  /** The users, sorted. */
  readonly services: readonly ServiceKey[]
}

/** The objects in use during one render: each exists as long as one Service uses it. Unchanged ones stay identical. */
class UsersDraft<T extends Used> {
  readonly #base: PersistentMap<T>
  readonly #continuing: boolean
  readonly #changes = new Map<string, T | undefined>()

  /** Unless `continuing`, no object of the base is in use. */
  constructor(base: PersistentMap<T>, continuing: boolean) {
    this.#base = base
    this.#continuing = continuing
  }

  #get(key: string): T | undefined {
    const changed = this.#changes.get(key)
    if (changed !== undefined || !this.#continuing || this.#changes.has(key)) return changed
    return this.#base.get(key)
  }

  /** Adds a user. `made` is the object with this user alone. */
  add(key: string, service: ServiceKey, made: T): void {
    const there = this.#get(key)
    if (there === undefined) this.#changes.set(key, made)
    else {
      const services = withUser(there.services, service)
      if (services !== there.services) this.#changes.set(key, { ...there, services })
    }
  }

  remove(key: string, service: ServiceKey): void {
    const there = this.#get(key)
    if (there === undefined || !there.services.includes(service)) return
    const services = there.services.filter(its => its !== service)
    this.#changes.set(key, services.length === 0 ? undefined : { ...there, services })
  }

  finish(): PersistentMap<T> {
    const base = this.#base
    if (!this.#continuing)
      for (const key of base.keys()) if (!this.#changes.has(key)) this.#changes.set(key, undefined)
    if (base.size > 0)
      for (const [key, after] of this.#changes) this.#changes.set(key, kept(base.get(key), after))
    return base.withOwn(this.#changes)
  }
}

/** Gives the present object where it has the same users: an object depends on its key alone. */
function kept<T extends Used>(before: T | undefined, after: T | undefined): T | undefined {
  if (before === undefined || after === undefined || before === after) return after
  const { services } = before
  const isSame =
    services.length === after.services.length && services.every((its, i) => its === after.services[i])
  return isSame ? before : after
}

function withUser(services: readonly ServiceKey[], service: ServiceKey): readonly ServiceKey[] {
  const at = services.findIndex(its => its >= service)
  if (services[at] === service) return services
  return at < 0 ? [...services, service] : services.toSpliced(at, 0, service)
}
