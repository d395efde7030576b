import { type Family, familyOf, type Ip, isLinkLocal, isLoopback } from '../../base/ip.ts'
import { PersistentMap } from '../../base/persistent-map.ts'
import { Pauses, type Steps } from '../../base/steps.ts'
import type { Element, NftFamily } from '../../kernel/nft/state.ts'
import type { FrontendTable, ServiceFrontends } from '../../model/frontend.ts'
import type { Refusal } from '../../model/refusal.ts'
import type { RenderOptions } from '../../reconcile/dataplane.ts'
import { changedServices } from '../common/changed-services.ts'
import { forFamilies, LAYOUTS, NFT_FAMILIES, tableOf } from '../common/family.ts'
import { type ServiceElements, serviceElements } from './elements.ts'
import { type Relay, sameRelay } from './relay.ts'
import type { UserspaceOptions } from './settings.ts'
import type { UserspaceState } from './state.ts'
import { TableDraft } from './table-draft.ts'

/** Renders the wanted state of kernel and process: what changed since a rendered base. */
export function* renderUserspaceState(
  frontends: FrontendTable,
  { base, without }: RenderOptions<UserspaceState>,
  options: UserspaceOptions,
): Steps<UserspaceState> {
  const addresses = { IPv4: relayAddress(frontends, 'IPv4'), IPv6: relayAddress(frontends, 'IPv6') }
  const draft = new StateDraft({ base, addresses, options })
  const pauses = new Pauses()
  for (const key of changedServices(frontends, draft.continued, without)) {
    draft.replace(key, without.has(key) ? undefined : frontends.services.get(key))
    if (pauses.due()) yield
  }
  yield
  return { ...draft.finish(frontends), frontends, without }
}

/** Chooses the relay address: the node's own address first; without it, one that other hosts can reach. */
function relayAddress({ node, localIps }: FrontendTable, family: Family): Ip | undefined {
  const isOfFamily = (ip: Ip) => familyOf(ip) === family
  // The addresses of this machine may be unknown.
  const own = node.ips.find(ip => isOfFamily(ip) && (localIps.length === 0 || localIps.includes(ip)))
  return own ?? localIps.find(ip => isOfFamily(ip) && !isLoopback(ip) && !isLinkLocal(ip))
}

interface DraftOptions {
  readonly base: UserspaceState
  readonly addresses: UserspaceState['addresses']
  readonly options: UserspaceOptions
}

class StateDraft {
  /** The base, without its origin where every Service is rendered again. */
  readonly continued: UserspaceState
  readonly #addresses: UserspaceState['addresses']
  readonly #tables: Readonly<Record<NftFamily, TableDraft>>
  readonly #relays = new Map<string, Relay | undefined>()
  readonly #places = new Map<string, string | undefined>()
  readonly #refusals: Map<string, readonly Refusal[]>
  readonly #continuing: boolean

  constructor({ base, addresses, options }: DraftOptions) {
    const isSamePlace = base.addresses.IPv4 === addresses.IPv4 && base.addresses.IPv6 === addresses.IPv6
    this.#continuing = base.frontends !== undefined && isSamePlace
    this.continued = this.#continuing ? base : { ...base, frontends: undefined }
    this.#addresses = addresses
    this.#refusals = new Map(this.#continuing ? base.refusals : [])
    this.#tables = forFamilies(
      family =>
        new TableDraft({
          layout: LAYOUTS[family],
          options,
          base: tableOf(base.ruleset, family),
          tally: base.tallies[family],
          continuing: this.#continuing,
        }),
    )
  }

  /** Replaces the objects of a Service. */
  replace(key: string, after: ServiceFrontends | undefined): void {
    const before = this.continued.frontends?.services.get(key)
    const elements: Record<NftFamily, readonly Element[]> = { ip: [], ip6: [] }
    const refusals: Refusal[] = []
    for (const family of NFT_FAMILIES) {
      if (before !== undefined) this.#takeBack(this.#elementsOf(before, family))
    }
    for (const family of NFT_FAMILIES) {
      if (after === undefined) continue
      const made = this.#elementsOf(after, family)
      elements[family] = made.elements
      refusals.push(...made.refusals)
      for (const relay of made.relays) this.#relays.set(relay.key, this.#known(relay))
      for (const place of made.places) this.#places.set(place, key)
    }
    for (const family of NFT_FAMILIES) this.#tables[family].put(key, elements[family])
    if (refusals.length > 0) this.#refusals.set(key, unique(refusals))
    else this.#refusals.delete(key)
  }

  finish(frontends: FrontendTable): Omit<UserspaceState, 'frontends' | 'without'> {
    const { continued } = this
    const ip = this.#tables.ip.finish(frontends)
    const ip6 = this.#tables.ip6.finish(frontends)
    const relays = this.#continuing ? continued.relays : PersistentMap.empty<Relay>()
    const places = this.#continuing ? continued.places : PersistentMap.empty<string>()
    return {
      ruleset: { tables: [ip.table, ip6.table] },
      relays: relays.withOwn(this.#relays),
      places: places.withOwn(this.#places),
      addresses: this.#addresses,
      tallies: { ip: ip.tally, ip6: ip6.tally },
      refusals: this.#refusals,
    }
  }

  #elementsOf(service: ServiceFrontends, family: NftFamily): ServiceElements {
    const layout = LAYOUTS[family]
    return serviceElements(service, layout, this.#addresses[layout.model])
  }

  /** Removes the old objects of a Service. A place that changes owner may belong to its new owner already. */
  #takeBack({ relays, places }: ServiceElements): void {
    for (const { key } of relays) this.#relays.set(key, undefined)
    for (const place of places) {
      if (!this.#places.has(place)) this.#places.set(place, undefined)
    }
  }

  #known(relay: Relay): Relay {
    const before = this.continued.relays.get(relay.key)
    return before !== undefined && sameRelay(before, relay) ? before : relay
  }
}

/** Removes duplicates: ports and families with the same refusal are reported once. */
function unique(refusals: readonly Refusal[]): readonly Refusal[] {
  return [...new Map(refusals.map(each => [each.field + each.value + each.reason, each])).values()]
}
