import { atOnce, type Clock } from '../../base/clock.ts'
import { append, PersistentMap } from '../../base/collections.ts'
import { assert } from '../../base/errors.ts'
import { formatIp, type Ip, isLoopback } from '../../base/ip.ts'
import { type Octets, readU16be } from '../../base/octets.ts'
import { Mutex } from '../../base/queues.ts'
import type { NftClient } from '../../kernel/nft/client.ts'
import type { Element, Ruleset, Table } from '../../kernel/nft/state.ts'
import type { Backend, FrontendTable } from '../../model/frontend.ts'
import {
  type CommitOptions,
  type Dataplane,
  type Generation,
  generationOf,
  guardOf,
  type Observation,
  type ObserveOptions,
  type Receipt,
  type RenderOptions,
} from '../../reconcile/dataplane.ts'
import { forwarderContext } from '../common/forwarder/context.ts'
import type { Forwarder, ListName } from '../common/forwarder/forwarder.ts'
import { type ForwarderCounts, ForwarderSet, type OpenFailure } from '../common/forwarder/forwarder-set.ts'
import {
  GROUP_NODEPORT_IPS,
  GROUP_UNKNOWN,
  LAYOUTS,
  NFT_FAMILIES,
  portData,
  portKey,
  protocolOfKey,
} from '../common/tables.ts'
import { receiptOf } from '../common/transaction-plan.ts'
import {
  bothNamed,
  deleteTables,
  inTables,
  type WatchedSocket,
  type Watches,
  watchesOf,
} from '../common/writers.ts'
import type { ModeContext } from '../mode.ts'
import { renderUserspaceState } from './render.ts'
import type { UserspaceOptions } from './settings.ts'
import {
  diffStates,
  EMPTY_STATE,
  type ListenerSymbol,
  type PortOf,
  portName,
  REDIRECT_MAPS,
  resolveTransaction,
  symbolOf,
  type UserspacePlan,
  type UserspaceState,
} from './state.ts'

interface UserspacePlaneOptions {
  readonly client: NftClient
  readonly clock: Clock
  readonly options: UserspaceOptions
  /** See watchesOf. */
  readonly writers?: WatchedSocket
  readonly report?: ModeContext['tell']
}

/** The data plane of kube-proxy's oldest mode: see README.md. */
export class UserspacePlane implements Dataplane<UserspaceState, UserspacePlan> {
  readonly name = 'userspace'
  readonly empty = EMPTY_STATE
  readonly watchGeneration: Watches['watchGeneration']
  readonly watchWriters: Watches['watchWriters']
  readonly #given: UserspacePlaneOptions
  readonly #mutex = new Mutex()
  readonly #forwarders: ForwarderSet
  #isForwarding = false
  #applied: PersistentMap<Forwarder> = PersistentMap.empty()
  /** The kernel may lead to listeners of a commit whose outcome is unknown. */
  #isUnsure = false
  #captured: Captured = { places: EMPTY_STATE.places, nodePortIps: new Set() }

  constructor(given: UserspacePlaneOptions) {
    this.#given = given
    const { clock, options, writers, report = () => undefined } = given
    const watches = watchesOf(writers, inTables(options.tableName))
    this.watchGeneration = watches.watchGeneration
    this.watchWriters = watches.watchWriters
    this.#forwarders = new ForwarderSet(
      forwarderContext({
        clock,
        limits: options.limits,
        isCaptured: (backend, protocol) => isCaptured(this.#captured, backend, protocol),
        report,
      }),
    )
  }

  get counts(): ForwarderCounts {
    return this.#forwarders.counts
  }

  /** Makes this process the one that rules lead to; before, they count as those of another live process. */
  startForwarding(): void {
    this.#isForwarding = true
  }

  render(frontends: FrontendTable, options: RenderOptions<UserspaceState>) {
    return renderUserspaceState(frontends, options, this.#given.options)
  }

  diff(from: UserspaceState, to: UserspaceState) {
    // The kernel does not show the endpoints to which another process forwards.
    return atOnce(() => diffStates(this.#isForwarding ? from : { ...from, forwarders: to.forwarders }, to))
  }

  generation(): Generation {
    return generationOf(this.#given.client.generation())
  }

  observe(options?: ObserveOptions): Promise<Observation<UserspaceState>> {
    return this.#mutex.run(async () => {
      const { client } = this.#given
      const { ruleset, generation, unsettled } = await client.list(this.#tables, options)
      const forwarders = this.#applied
      const book = this.#isForwarding
        ? bookOf(forwarders, (key, list) => this.#forwarders.portOf(key, list))
        : bookFromComments(ruleset)
      const state = adoptRuleset(ruleset, { forwarders, book })
      return { state, generation: generationOf(generation), unsettled }
    })
  }

  commit(plan: UserspacePlan, options: CommitOptions): Promise<Receipt> {
    return this.#mutex.run(() => this.#commit(plan, options))
  }

  /** Opens listeners first, then commits the rules that lead to them; removals go the other way round. */
  async #commit(plan: UserspacePlan, options: CommitOptions): Promise<Receipt> {
    assert(this.#isForwarding, 'dry-run has no listeners for these rules')
    const { client } = this.#given
    const failures = await this.#forwarders.open(plan)
    if (failures.length > 0) {
      this.#forwarders.discard()
      return this.#notOpened(failures)
    }
    try {
      const transaction = resolveTransaction(plan.transaction, (key, list) =>
        this.#forwarders.portOf(key, list),
      )
      this.#forwarders.admitClients()
      const result = await client.commit(transaction, guardOf(options))
      if (result.outcome === 'unknown') {
        this.#forwarders.settle()
        this.#isUnsure = true
      } else if (result.outcome === 'committed') {
        this.#forwarders.settle()
        this.#apply(plan)
      }
      return receiptOf(result)
    } finally {
      // Only listeners to which no rule leads are left to discard.
      this.#forwarders.discard()
    }
  }

  #apply({ put, remove, after }: UserspacePlan): void {
    this.#captured = { places: after.places, nodePortIps: nodePortIps(after.frontends) }
    for (const forwarder of put) this.#forwarders.update(forwarder)
    for (const { key } of remove) this.#forwarders.remove(key)
    if (this.#isUnsure) this.#forwarders.retain(after.forwarders)
    this.#isUnsure = false
    this.#applied = after.forwarders
  }

  #notOpened(failures: readonly OpenFailure[]): Receipt {
    const refusals = failures.map(({ service, error }) => ({
      services: [service],
      error: new Error(`Service ${service}: ${error.message}`, { cause: error }),
    }))
    const generation = this.generation()
    const nothing = { foreign: false, bytes: 0, messages: 0, durationMs: 0 }
    return { outcome: 'refused', generation, refusals, ...nothing }
  }

  async cleanup(): Promise<void> {
    await this.#mutex.run(() => deleteTables(this.#given.client, this.#tables, isOurs))
    this.#applied = PersistentMap.empty()
    this.#forwarders.retain(this.#applied)
  }

  /** Stops keeping the process alive. Listeners accept until the next process has redirected all clients. */
  release(): void {
    this.#forwarders.release(this.#given.clock)
  }

  destroy(): void {
    this.#forwarders.destroy()
    this.#applied = PersistentMap.empty()
  }

  get #tables() {
    return bothNamed(this.#given.options.tableName)
  }
}

/** The places that rules redirect, as far as they can equal an endpoint. */
interface Captured {
  readonly places: UserspaceState['places']
  readonly nodePortIps: ReadonlySet<Ip>
}

function isCaptured(
  { places, nodePortIps }: Captured,
  { ip, port }: Backend,
  protocol: 'TCP' | 'UDP',
): boolean {
  const key = portKey(protocol, port)
  return places.has(ip + key) || (nodePortIps.has(ip) && places.has(key))
}

function nodePortIps(frontends: FrontendTable | undefined): ReadonlySet<Ip> {
  if (frontends === undefined) return new Set()
  const { nodePorts, localIps, node } = frontends
  const all = localIps.length > 0 ? localIps : node.ips
  const ips = NFT_FAMILIES.flatMap(family => {
    const answers = nodePorts[LAYOUTS[family].model]
    return answers.kind === 'only' ? answers.ips : all.filter(ip => !isLoopback(ip))
  })
  return new Set(ips)
}

/** Recognizes our own table: no other program makes these sets. */
export function isOurs({ sets }: Table): boolean {
  return sets.has('listeners') && sets.has('frontends') && sets.has('inside')
}

/** Listeners by `TCP` or `UDP` followed by the octets of address and port. */
type ListenerBook = ReadonlyMap<string, ListenerSymbol>

/** Makes the book of a process that has these forwarders open. */
export function bookOf(forwarders: PersistentMap<Forwarder>, portOf: PortOf): ListenerBook {
  const book = new Map<string, ListenerSymbol>()
  for (const forwarder of forwarders.values()) {
    for (const list of forwarder.lists) {
      const port = portOf(forwarder.key, list)
      if (port !== undefined)
        book.set(placeKey(forwarder.protocol, forwarder.address + portData(port)), symbolOf(forwarder, list))
    }
  }
  return book
}

function placeKey(protocol: string, place: Octets): string {
  return protocol + place
}

/**
 * Makes a state from what the kernel holds: the address and port of a listener become its symbol. Elements
 * that lead to no listener of the book stay unchanged and equal no wanted element. The diff therefore
 * replaces leftovers of a process that has ended.
 */
export function adoptRuleset(
  ruleset: Ruleset,
  { forwarders, book }: { readonly forwarders: PersistentMap<Forwarder>; readonly book: ListenerBook },
): UserspaceState {
  const tables: Table[] = []
  for (const table of ruleset.tables) {
    const { addressLength } = LAYOUTS[table.family]
    const groups = new Map<string, Element[]>()
    for (const list of table.elements.values()) {
      for (const found of list) {
        const element = symbolised(found, addressLength, book)
        const group = groupOf(element)
        append(groups, group, element)
      }
    }
    tables.push({ ...table, elements: PersistentMap.owning(groups) })
  }
  return { ...EMPTY_STATE, ruleset: { tables }, forwarders }
}

function symbolised(element: Element, addressLength: number, book: ListenerBook): Element {
  const { set, key, data } = element
  const protocol = protocolOfKey(key) ?? ''
  if (REDIRECT_MAPS.has(set) && typeof data === 'string')
    return { ...element, data: book.get(placeKey(protocol, data)) ?? data }
  if (set !== 'listeners') return element
  const place = key.slice(0, addressLength) + portData(readU16be(key, addressLength + 4))
  return { ...element, key: book.get(placeKey(protocol, place)) ?? key }
}

function groupOf({ set, comment }: Element): string {
  if (set === 'nodeport-ips') return GROUP_NODEPORT_IPS
  const name = portName(comment)
  const colon = name.indexOf(':')
  const service = colon < 0 ? name : name.slice(0, colon)
  return /^[^/@]+\/[^/]+$/.test(service) ? service : GROUP_UNKNOWN
}

/** Makes the book of another process from its rules. A listener with contradictory comments is ignored. */
function bookFromComments({ tables }: Ruleset): ListenerBook {
  const book = new Map<string, ListenerSymbol>()
  const places = new Map<ListenerSymbol, string>()
  for (const { family, elements } of tables) {
    const { addressLength, model } = LAYOUTS[family]
    for (const group of elements.values()) {
      for (const { set, key, data, comment } of group) {
        const protocol = protocolOfKey(key)
        const known = protocol === 'TCP' || protocol === 'UDP'
        if (!REDIRECT_MAPS.has(set) || typeof data !== 'string' || !known || comment === '') continue
        const address = data.slice(0, addressLength)
        const name = portName(comment)
        const list: ListName = name === comment ? 'cluster' : 'local'
        const port = name.includes(':') ? name : `${name}:`
        const forwarderKey = `${port}/${protocol}/${model} ${formatIp(address)}`
        const symbol = symbolOf({ key: forwarderKey, address, protocol }, list)
        const place = placeKey(protocol, data)
        if ((places.get(symbol) ?? place) !== place) book.delete(place)
        else book.set(place, symbol)
        places.set(symbol, place)
      }
    }
  }
  return book
}
