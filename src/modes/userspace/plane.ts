import { type Clock, finishInSlices, Mutex, type Steps, slicingOf } from '../../base/clock.ts'
import { PersistentMap } from '../../base/collections.ts'
import { assert } from '../../base/errors.ts'
import { type Ip, isLoopback } from '../../base/ip.ts'
import type { NftClient } from '../../kernel/nft/client.ts'
import type { Table } from '../../kernel/nft/state.ts'
import type { Backend, FrontendTable } from '../../model/frontend.ts'
import {
  type CommitOptions,
  type Dataplane,
  type Generation,
  generationOf,
  guardOf,
  type Observation,
  type Receipt,
  type RenderOptions,
} from '../../reconcile/dataplane.ts'
import { relayContext } from '../common/relay/context.ts'
import type { Relay } from '../common/relay/relay.ts'
import { type OpenFailure, type RelayCounts, RelaySet } from '../common/relay/relay-set.ts'
import { LAYOUTS, NFT_FAMILIES, portKey } from '../common/tables.ts'
import {
  bothNamed,
  deleteTables,
  inTables,
  receiptOf,
  type WatchedSocket,
  type Watches,
  watchesOf,
} from '../common/writers.ts'
import type { ModeContext } from '../mode.ts'
import { adoptRuleset, bookFromComments, bookOf } from './observe.ts'
import { renderUserspaceState } from './render.ts'
import type { UserspaceOptions } from './settings.ts'
import {
  diffStates,
  EMPTY_STATE,
  resolveTransaction,
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
  readonly #relays: RelaySet
  #isRelaying = false
  /** The relays that the listeners use now. */
  #applied: PersistentMap<Relay> = PersistentMap.empty()
  #captured: Captured = { places: EMPTY_STATE.places, nodePortIps: new Set() }

  constructor(given: UserspacePlaneOptions) {
    this.#given = given
    const { clock, options, writers, report = () => undefined } = given
    const watches = watchesOf(writers, inTables(options.tableName))
    this.watchGeneration = watches.watchGeneration
    this.watchWriters = watches.watchWriters
    this.#relays = new RelaySet(
      relayContext({
        clock,
        limits: options.limits,
        isCaptured: (backend, protocol) => isCaptured(this.#captured, backend, protocol),
        report,
      }),
    )
  }

  get counts(): RelayCounts {
    return this.#relays.counts
  }

  /** Makes this process the one that rules lead to; before, they count as those of another live process. */
  startRelaying(): void {
    this.#isRelaying = true
  }

  render(frontends: FrontendTable, options: RenderOptions<UserspaceState>): Steps<UserspaceState> {
    return renderUserspaceState(frontends, options, this.#given.options)
  }

  diff(from: UserspaceState, to: UserspaceState): Steps<UserspacePlan> {
    // The kernel does not show the endpoints to which another process relays.
    return diffStates(this.#isRelaying ? from : { ...from, relays: to.relays }, to)
  }

  generation(): Generation {
    return generationOf(this.#given.client.generation())
  }

  observe(): Promise<Observation<UserspaceState>> {
    return this.#mutex.run(async () => {
      const { client, clock } = this.#given
      const { ruleset, generation, unsettled } = await client.list(this.#tables)
      const relays = this.#applied
      const book = this.#isRelaying
        ? bookOf(relays, (key, list) => this.#relays.portOf(key, list))
        : bookFromComments(ruleset)
      const state = await finishInSlices(adoptRuleset(ruleset, { relays, book }), slicingOf(clock))
      return { state, generation: generationOf(generation), unsettled }
    })
  }

  commit(plan: UserspacePlan, options: CommitOptions): Promise<Receipt> {
    return this.#mutex.run(() => this.#commit(plan, options))
  }

  /** Opens listeners first, then commits the rules that lead to them; removals go the other way round. */
  async #commit(plan: UserspacePlan, options: CommitOptions): Promise<Receipt> {
    assert(this.#isRelaying, 'dry-run has no listeners for these rules')
    const { client } = this.#given
    const failures = await this.#relays.open(plan)
    if (failures.length > 0) {
      this.#relays.discard()
      return this.#notOpened(failures)
    }
    try {
      const transaction = resolveTransaction(plan.transaction, (key, list) => this.#relays.portOf(key, list))
      this.#relays.admitClients()
      const result = await client.commit(transaction, guardOf(options))
      if (result.outcome === 'committed') {
        this.#relays.settle()
        this.#apply(plan)
      }
      return receiptOf(result)
    } finally {
      // The rules were committed: only listeners of a failed commit are left to discard.
      this.#relays.discard()
    }
  }

  #apply({ put, remove, after }: UserspacePlan): void {
    this.#captured = { places: after.places, nodePortIps: nodePortIps(after.frontends) }
    for (const relay of put) this.#relays.update(relay)
    for (const { key } of remove) this.#relays.remove(key)
    this.#applied = after.relays
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
    for (const { key } of this.#applied.values()) this.#relays.remove(key)
    this.#applied = PersistentMap.empty()
  }

  /** Stops keeping the process alive. Listeners accept until the next process has redirected all clients. */
  release(): void {
    this.#relays.release(this.#given.clock)
  }

  /** Ends every connection. */
  destroy(): void {
    this.#relays.destroy()
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

/** Whether a table is ours: no other program makes these sets. */
export function isOurs({ sets }: Table): boolean {
  return sets.has('listeners') && sets.has('frontends') && sets.has('inside')
}
