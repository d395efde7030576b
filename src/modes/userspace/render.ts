import { stepsOver } from '../../base/clock.ts'
import { PersistentMap } from '../../base/collections.ts'
import { type Family, familyOf, formatIp, type Ip, isLinkLocal, isLoopback } from '../../base/ip.ts'
import type { Octets } from '../../base/octets.ts'
import type { Element, NftFamily, NftSet, Table } from '../../kernel/nft/state.ts'
import { objectText, printable, type Refusal } from '../../model/fields.ts'
import type { Frontend, FrontendTable, PortFrontends, ServiceFrontends } from '../../model/frontend.ts'
import type { RenderOptions } from '../../reconcile/dataplane.ts'
import { type Forwarder, knownForwarder, type ListName } from '../common/forwarder/forwarder.ts'
import { GOTO_NO_LOCAL, GOTO_REJECT } from '../common/rules.ts'
import {
  changedServices,
  commentOf,
  type FamilyLayout,
  forFamilies,
  LAYOUTS,
  NFT_FAMILIES,
  portKey,
  TableDraft,
  tableOf,
} from '../common/tables.ts'
import { chainsOf, ruleInputs, ruleInputsKey } from './rules.ts'
import type { UserspaceOptions } from './settings.ts'
import {
  declareFixedSet,
  declareRanges,
  FIXED_SETS,
  LOCAL_SUFFIX,
  type PlaceKey,
  rangeBits,
  rangesSet,
  symbolOf,
  type TableTally,
  type UserspaceState,
} from './state.ts'

/** Renders the wanted state of kernel and process: what changed since a rendered base. */
export function renderUserspaceState(
  frontends: FrontendTable,
  { base, without }: RenderOptions<UserspaceState>,
  options: UserspaceOptions,
) {
  const addresses = { IPv4: forwarderAddress(frontends, 'IPv4'), IPv6: forwarderAddress(frontends, 'IPv6') }
  const draft = new StateDraft({ base, addresses, options })
  return stepsOver(changedServices(frontends, draft.continued, without), {
    each: key => draft.replace(key, without.has(key) ? undefined : frontends.services.get(key)),
    result: (): UserspaceState => ({ ...draft.finish(frontends), frontends, without }),
  })
}

/** Chooses the address of the forwarders: the node's own address first; without it, one that other hosts can reach. */
function forwarderAddress({ node, localIps }: FrontendTable, family: Family): Ip | undefined {
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
  readonly #options: UserspaceOptions
  readonly #tables: Readonly<Record<NftFamily, TableDraft>>
  readonly #forwarders = new Map<string, Forwarder | undefined>()
  readonly #places = new Map<string, string | undefined>()
  readonly #refusals: Map<string, readonly Refusal[]>
  readonly #continuing: boolean

  constructor({ base, addresses, options }: DraftOptions) {
    const isSamePlace = base.addresses.IPv4 === addresses.IPv4 && base.addresses.IPv6 === addresses.IPv6
    this.#continuing = base.frontends !== undefined && isSamePlace
    this.continued = this.#continuing ? base : { ...base, frontends: undefined }
    this.#addresses = addresses
    this.#options = options
    this.#refusals = new Map(this.#continuing ? base.refusals : [])
    this.#tables = forFamilies(
      family =>
        new TableDraft({
          family,
          name: options.tableName,
          base: tableOf(base.ruleset, family),
          counts: this.#continuing ? base.tallies[family].counts : undefined,
        }),
    )
  }

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
      for (const forwarder of made.forwarders)
        this.#forwarders.set(forwarder.key, knownForwarder(this.continued.forwarders, forwarder))
      for (const place of made.places) this.#places.set(place, key)
    }
    for (const family of NFT_FAMILIES) this.#tables[family].put(key, elements[family])
    if (refusals.length > 0) this.#refusals.set(key, unique(refusals))
    else this.#refusals.delete(key)
  }

  finish(frontends: FrontendTable): Omit<UserspaceState, 'frontends' | 'without'> {
    const { continued } = this
    const [ip, ip6] = [this.#finishTable('ip', frontends), this.#finishTable('ip6', frontends)]
    const forwarders = this.#continuing ? continued.forwarders : PersistentMap.empty<Forwarder>()
    const places = this.#continuing ? continued.places : PersistentMap.empty<string>()
    return {
      ruleset: { tables: [ip.table, ip6.table] },
      forwarders: forwarders.withOwn(this.#forwarders),
      places: places.withOwn(this.#places),
      addresses: this.#addresses,
      tallies: { ip: ip.tally, ip6: ip6.tally },
      refusals: this.#refusals,
    }
  }

  #finishTable(
    family: NftFamily,
    frontends: FrontendTable,
  ): { readonly table: Table; readonly tally: TableTally } {
    const [draft, layout] = [this.#tables[family], LAYOUTS[family]]
    const { ruleset, tallies } = this.continued
    const base = tableOf(ruleset, family)
    const prefixLengths = lengthsIn(draft.counts)
    const inputs = ruleInputs(layout, this.#options, { frontends, prefixLengths })
    const key = ruleInputsKey(inputs)
    const isSame = this.#continuing && base !== undefined && key === tallies[family].chains
    if (!isSame) {
      const ips = inputs.nodePorts.kind === 'only' ? inputs.nodePorts.ips : []
      draft.putNodePortIps(ips.filter(ip => ip.length === layout.addressLength))
    }
    const parts = isSame
      ? base
      : {
          chains: new Map(chainsOf(inputs).map(chain => [chain.name, chain])),
          sets: setsOf(layout, prefixLengths),
        }
    const table = draft.finish({ chains: parts.chains, sets: parts.sets })
    return { table, tally: { counts: draft.counts, chains: key } }
  }

  #elementsOf(service: ServiceFrontends, family: NftFamily): ServiceElements {
    const layout = LAYOUTS[family]
    return serviceElements(service, layout, this.#addresses[layout.model])
  }

  /** Removes the old objects of a Service. A place that changes owner may belong to its new owner already. */
  #takeBack({ forwarders, places }: ServiceElements): void {
    for (const { key } of forwarders) this.#forwarders.set(key, undefined)
    for (const place of places) {
      if (!this.#places.has(place)) this.#places.set(place, undefined)
    }
  }
}

/** Removes duplicates: ports and families with the same refusal are reported once. */
function unique(refusals: readonly Refusal[]): readonly Refusal[] {
  return [...new Map(refusals.map(each => [each.field + each.value + each.reason, each])).values()]
}

/** The lengths of the source ranges in use, longest first. */
function lengthsIn(counts: ReadonlyMap<string, number>): readonly number[] {
  const lengths = [...counts].flatMap(([set, count]) => (count > 0 ? (rangeBits(set) ?? []) : []))
  return lengths.sort((a, b) => b - a)
}

function setsOf(layout: FamilyLayout, prefixLengths: readonly number[]): ReadonlyMap<string, NftSet> {
  const fixed = FIXED_SETS.map(name => declareFixedSet(name, layout))
  const ranges = prefixLengths.map(bits => declareRanges(bits, layout))
  return new Map([...fixed, ...ranges].map(set => [set.name, set]))
}

interface ServiceElements {
  readonly elements: readonly Element[]
  readonly forwarders: readonly Forwarder[]
  readonly places: readonly PlaceKey[]
  readonly refusals: readonly Refusal[]
}

/** The address on which forwarders of the family listen; undefined when this node has none. */
type ForwarderAddress = Ip | undefined

function serviceElements(
  service: ServiceFrontends,
  layout: FamilyLayout,
  address: ForwarderAddress,
): ServiceElements {
  const made = new Made(layout)
  for (const ip of service.clusterIps)
    if (ip.length === layout.addressLength)
      made.elements.push({ set: 'cluster-ips', key: ip, data: undefined, comment: '' })
  for (const port of service.ports) {
    if (port.family !== layout.model || port.frontends.length === 0) continue
    const refused = whyNot(port, address)
    if (refused !== undefined) made.refusals.push(refused)
    else if (address !== undefined) made.add(port, address)
  }
  return made
}

function whyNot(port: PortFrontends, address: ForwarderAddress): Refusal | undefined {
  const { service, protocol, family, displayName } = port
  const object = objectText('Service', service)
  if (protocol === 'SCTP') {
    const reason = 'userspace mode relays only TCP and UDP; use another mode for SCTP'
    return { object, field: 'spec.ports.protocol', value: printable(`SCTP of ${displayName}`), reason }
  }
  if (address !== undefined) return undefined
  const reason = `this node has no ${family} address that userspace mode could listen on`
  return { object, field: 'spec.ipFamilies', value: family, reason }
}

class Made implements ServiceElements {
  readonly elements: Element[] = []
  readonly forwarders: Forwarder[] = []
  readonly places: PlaceKey[] = []
  readonly refusals: Refusal[] = []
  readonly #layout: FamilyLayout

  constructor(layout: FamilyLayout) {
    this.#layout = layout
  }

  add(port: PortFrontends, address: Ip): void {
    if (port.protocol === 'SCTP') return
    const lists = listsOf(port)
    const forwarder: Forwarder = {
      key: `${port.key} ${formatIp(address)}`,
      displayName: port.displayName,
      service: port.service,
      protocol: port.protocol,
      address,
      lists,
      balance: { affinityTimeoutS: port.affinityTimeoutS, cluster: port.cluster, local: port.local },
    }
    for (const frontend of port.frontends) this.#addFrontend(frontend, port, forwarder)
    if (lists.length === 0) return
    this.forwarders.push(forwarder)
    for (const list of lists) {
      const comment = commentFor(port, list)
      this.elements.push({ set: 'listeners', key: symbolOf(forwarder, list), data: undefined, comment })
    }
  }

  #addFrontend(frontend: Frontend, port: PortFrontends, forwarder: Forwarder): void {
    const { ip } = frontend
    const number = portKey(port.protocol, frontend.port)
    const key = ip === undefined ? number : ip + number
    this.places.push(key)
    const { inside, everyone } = targetsOf(frontend, port)
    const isNodePort = ip === undefined
    const redirect = (set: string, list: ListName) =>
      this.elements.push({ set, key, data: symbolOf(forwarder, list), comment: commentFor(port, list) })
    if (inside !== undefined) redirect(isNodePort ? 'nodeports-inside' : 'inside', inside)
    if (everyone === 'cluster' || everyone === 'local')
      redirect(isNodePort ? 'nodeports' : 'frontends', everyone)
    else
      this.elements.push({
        set: isNodePort ? 'nodeport-verdicts' : 'verdicts',
        key,
        data: everyone === 'drop' ? GOTO_NO_LOCAL : GOTO_REJECT,
        comment: commentOf(port),
      })
    if (frontend.sourceRanges !== undefined && !isNodePort) this.#guard(frontend, key, port)
  }

  #guard({ sourceRanges = [] }: Frontend, key: Octets, port: PortFrontends): void {
    const comment = commentOf(port)
    this.elements.push({ set: 'guarded', key, data: undefined, comment })
    for (const { ip, bits } of sourceRanges)
      if (ip.length === this.#layout.addressLength)
        this.elements.push({ set: rangesSet(bits), key: key + ip, data: undefined, comment: '' })
  }
}

/** The listeners of a frontend: for pods and processes of this node, if it differs, and for all clients. */
interface Targets {
  readonly inside: ListName | undefined
  readonly everyone: ListName | 'reject' | 'drop'
}

function targetsOf({ route }: Frontend, { cluster, local }: PortFrontends): Targets {
  const all = (everyone: Targets['everyone']): Targets => ({ inside: undefined, everyone })
  switch (route.kind) {
    case 'reject':
    case 'drop':
      return all(route.kind)
    case 'internal':
      if (route.over === 'local') return all(local.length === 0 ? 'drop' : 'local')
      return all(cluster.length === 0 ? 'reject' : 'cluster')
    case 'external-cluster':
      return all(cluster.length === 0 ? 'reject' : 'cluster')
    case 'external-local':
      return {
        inside: cluster.length === 0 ? undefined : 'cluster',
        everyone: local.length === 0 ? 'drop' : 'local',
      }
  }
}

function listsOf(port: PortFrontends): readonly ListName[] {
  const targets = port.frontends.map(frontend => targetsOf(frontend, port))
  return (['cluster', 'local'] as const).filter(list =>
    targets.some(({ inside, everyone }) => inside === list || everyone === list),
  )
}

function commentFor(port: PortFrontends, list: ListName): string {
  return list === 'local' ? commentOf(port) + LOCAL_SUFFIX : commentOf(port)
}
