import { FAMILIES } from '../../base/ip.ts'
import { PersistentMap } from '../../base/persistent-map.ts'
import { Pauses, type Steps } from '../../base/steps.ts'
import type { Ipset } from '../../kernel/ipset/state.ts'
import type { ServerKey } from '../../kernel/ipvs/state.ts'
import type { NftFamily, Ruleset } from '../../kernel/nft/state.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import type { Refusal } from '../../model/refusal.ts'
import type { ServiceKey } from '../../model/service.ts'
import type { RenderOptions } from '../../reconcile/dataplane.ts'
import { changedServices } from '../common/changed-services.ts'
import { forFamilies, LAYOUTS, NFT_FAMILIES, tableOf } from '../common/family.ts'
import { wantedChains } from './chain-scope.ts'
import { declareIpset } from './layout.ts'
import { ruleInputs, rulesOf } from './rules.ts'
import { sameServer } from './servers.ts'
import { renderService, type ServiceRendering } from './service.ts'
import { SET_STEMS, setName } from './set-names.ts'
import type { IpvsState, PlacedAddress, PlacedEntry, PlacedServer, Rendering } from './state.ts'
import { type Surroundings, type SurroundingsOptions, surroundingsOf } from './surroundings.ts'
import { TableDraft } from './table-draft.ts'
import { type ServiceChange, type Taken, takenBy } from './taken.ts'
import { UsersDraft } from './users.ts'

/**
 * Renders the kernel state that the mode wants. If the base was rendered in the same surroundings, only
 * Services that changed are rendered again. Otherwise all are, and only sizes of the base are used. An equal
 * result is the base's own object in any case.
 */
export function* renderIpvsState(
  frontends: FrontendTable,
  { base, without }: RenderOptions<IpvsState>,
  options: SurroundingsOptions,
): Steps<IpvsState> {
  const surroundings = surroundingsOf(frontends, options)
  const continuing = base.frontends !== undefined && base.rendering?.surroundings === surroundings.key
  const draft = new StateDraft({ base, continuing, options, surroundings })
  const changes = changesOf(frontends, { base, without, continuing })
  const taken = takenBy(changes.values(), continuing ? base : undefined, surroundings)
  for (const key of taken.touched) if (!changes.has(key)) changes.set(key, unchanged(key, frontends, without))
  const pauses = new Pauses()
  for (const change of changes.values()) {
    draft.replace(change, taken)
    if (pauses.due()) yield
  }
  yield
  return yield* draft.finish(frontends, without)
}

function changesOf(
  frontends: FrontendTable,
  known: {
    readonly base: IpvsState
    readonly without: ReadonlySet<ServiceKey>
    readonly continuing: boolean
  },
): Map<ServiceKey, ServiceChange> {
  const { base, without, continuing } = known
  const keys = continuing ? changedServices(frontends, base, without) : frontends.services.keys()
  const changes = new Map<ServiceKey, ServiceChange>()
  for (const key of keys) {
    const wasIn = continuing && !base.without.has(key)
    changes.set(key, {
      key,
      before: wasIn ? base.frontends?.services.get(key) : undefined,
      after: without.has(key) ? undefined : frontends.services.get(key),
    })
  }
  return changes
}

/** Makes the change of a Service that itself did not change, but whose neighbors did. */
function unchanged(
  key: ServiceKey,
  frontends: FrontendTable,
  without: ReadonlySet<ServiceKey>,
): ServiceChange {
  const service = without.has(key) ? undefined : frontends.services.get(key)
  return { key, before: service, after: service }
}

interface DraftOptions {
  readonly base: IpvsState
  readonly continuing: boolean
  readonly options: SurroundingsOptions
  readonly surroundings: Surroundings
}

/** Builds one state during one render. */
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
    this.#entries = new UsersDraft({
      base: base.entries,
      continuing,
      withUsers: ({ set, entry }, services) => ({ set, entry, services }),
    })
    this.#addresses = new UsersDraft({
      base: base.addresses,
      continuing,
      withUsers: ({ ip }, services) => ({ ip, services }),
    })
    this.#tables = forFamilies(
      family =>
        new TableDraft({
          layout: LAYOUTS[family],
          tableName: options.tableName,
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
      if (!old.addresses.has(ip)) this.#addresses.add(ip, key, services => ({ ip, services }))
    for (const family of NFT_FAMILIES) this.#tables[family].put(key, now.elements[family])
    if (now.refusals.length > 0) this.#refusals.set(key, now.refusals)
    else this.#refusals.delete(key)
  }

  #replaceEntries(service: ServiceKey, old: ServiceRendering, now: ServiceRendering): void {
    for (const key of old.entries.keys()) if (!now.entries.has(key)) this.#entries.remove(key, service)
    for (const [key, { set, entry }] of now.entries)
      if (!old.entries.has(key)) this.#entries.add(key, service, services => ({ set, entry, services }))
  }

  *finish(frontends: FrontendTable, without: ReadonlySet<ServiceKey>): Steps<IpvsState> {
    const { base, continuing, options, surroundings } = this.#given
    const servers = this.#finishServers()
    yield
    const entries = this.#entries.finish()
    const counts = this.#countEntries(entries)
    yield
    const { ruleset, elements } = this.#finishTables(frontends)
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
      refusals: continuing && sameRefusals(base.refusals, this.#refusals) ? base.refusals : this.#refusals,
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
    const counts = new Map(continuing ? base.rendering?.entries : [])
    const count = (placed: PlacedEntry | undefined, by: 1 | -1) => {
      if (placed !== undefined) counts.set(placed.set, (counts.get(placed.set) ?? 0) + by)
    }
    if (!continuing) for (const placed of entries.values()) count(placed, 1)
    else
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
    const { base, continuing, options, surroundings } = this.#given
    const finished = forFamilies(family => {
      const draft = this.#tables[family]
      if (continuing) return draft.finish(undefined)
      draft.putNodePortIps(surroundings)
      return draft.finish(rulesOf(options.rules, ruleInputs(family, options, frontends)))
    })
    const tables = NFT_FAMILIES.map(family => finished[family].table)
    const before = base.ruleset.tables
    const isSame = before.length === tables.length && tables.every((table, i) => table === before[i])
    return {
      ruleset: isSame ? base.ruleset : { tables },
      elements: { ip: finished.ip.counts, ip6: finished.ip6.counts },
    }
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

function sameRefusals(
  a: ReadonlyMap<ServiceKey, readonly Refusal[]>,
  b: ReadonlyMap<ServiceKey, readonly Refusal[]>,
): boolean {
  return JSON.stringify([...a]) === JSON.stringify([...b])
}
