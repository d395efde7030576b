import { type Clock, Mutex, Pacer, Pauses, type Steps } from '../../base/clock.ts'
import { PersistentMap } from '../../base/collections.ts'
import { type Family, familyOf, formatIpPort } from '../../base/ip.ts'
import type { Backend, FrontendTable, ServiceFrontends } from '../../model/frontend.ts'
import { backendsAtLocalhost, LOCALHOST } from '../../model/node-context.ts'
import { type RelayLimits, relayContext } from '../common/relay/context.ts'
import {
  diffRelays,
  type ListName,
  type Relay,
  type RelayChanges,
  type RelayKey,
  sameRelay,
} from '../common/relay/relay.ts'
import { type OpenFailure, type RelayCounts, RelaySet } from '../common/relay/relay-set.ts'
import type { ModeEvent } from '../mode.ts'
import type { NftablesPlan, NftablesState } from './state.ts'

type Families = readonly Family[]

const NO_FAMILIES: Families = []
const NO_BACKENDS: readonly Backend[] = []
/** One listener serves a node port, whatever its policy: it keeps its socket when the policy changes. */
const LISTS: readonly ListName[] = ['cluster']

/**
 * Gives the relay of each node port of a Service at localhost (KEP-6032). A port that has no endpoint for clients
 * there has none: the kernel then refuses connections, because no socket listens.
 */
function localhostRelays({ service, ports }: ServiceFrontends, families: Families): readonly Relay[] {
  const relays: Relay[] = []
  for (const port of ports) {
    const { protocol, family, displayName, affinityTimeoutS } = port
    if (protocol === 'SCTP' || !families.includes(family)) continue
    const cluster = backendsAtLocalhost(port)
    const nodePort = port.frontends.find(({ kind }) => kind === 'NodePort')?.port
    if (nodePort === undefined || cluster.length === 0) continue
    const address = LOCALHOST[family]
    relays.push({
      key: `${port.key} ${formatIpPort(address, nodePort)}`,
      displayName,
      service,
      protocol,
      address,
      port: nodePort,
      lists: LISTS,
      balance: { affinityTimeoutS, cluster, local: NO_BACKENDS },
    })
  }
  return relays
}

/** Gives a plan that also changes the relays of this process, from these to those of its `after`. */
export function withRelays(plan: NftablesPlan, from: NftablesState['relays']): NftablesPlan {
  const relays = diffRelays(from, plan.after.relays)
  const { lines } = relays
  if (lines.length === 0) return plan
  return {
    ...plan,
    relays,
    empty: false,
    changes: plan.changes + lines.length,
    *describe() {
      yield* plan.describe()
      yield* lines
    },
  }
}

/** Builds the relays of one render from those of its base. */
export class RelayDraft {
  readonly #base: NftablesState
  readonly #families: Families
  readonly #continuing: boolean
  readonly #changes = new Map<string, Relay | undefined>()

  constructor(base: NftablesState, { relayedAtLocalhost = NO_FAMILIES }: FrontendTable) {
    this.#base = base
    this.#families = relayedAtLocalhost
    const before = base.frontends?.relayedAtLocalhost ?? NO_FAMILIES
    this.#continuing = base.frontends !== undefined && before.join() === relayedAtLocalhost.join()
  }

  replace(before: ServiceFrontends | undefined, after: ServiceFrontends | undefined): void {
    if (!this.#continuing || this.#families.length === 0) return
    for (const { key } of this.#relaysOf(before)) this.#changes.set(key, undefined)
    for (const relay of this.#relaysOf(after)) this.#changes.set(relay.key, this.#known(relay))
  }

  /** Gives all relays. A Service that the kernel does not hold has none. */
  *finish({ services }: FrontendTable, isLeftOut: (key: string) => boolean): Steps<PersistentMap<Relay>> {
    if (this.#continuing)
      return this.#changes.size === 0 ? this.#base.relays : this.#base.relays.withOwn(this.#changes)
    if (this.#families.length === 0) return PersistentMap.empty()
    const relays = new Map<string, Relay>()
    const pauses = new Pauses()
    for (const [key, service] of services.entries()) {
      if (pauses.due()) yield
      if (isLeftOut(key)) continue
      for (const relay of this.#relaysOf(service)) relays.set(relay.key, this.#known(relay))
    }
    return PersistentMap.owning(relays)
  }

  #relaysOf(service: ServiceFrontends | undefined): readonly Relay[] {
    return service === undefined ? [] : localhostRelays(service, this.#families)
  }

  #known(relay: Relay): Relay {
    const before = this.#base.relays.get(relay.key)
    return before !== undefined && sameRelay(before, relay) ? before : relay
  }
}

interface LocalhostRelaysOptions {
  readonly clock: Clock
  readonly limits: RelayLimits
  readonly report: (event: ModeEvent) => void
}

/** As the servers of health and metrics do. */
const RETRY_MS = 5_000

/**
 * The relays of node ports at localhost. A listener that cannot be opened, because another process has the port, is
 * counted and retried. Everything else is served meanwhile.
 */
export class LocalhostRelays {
  readonly #report: (event: ModeEvent) => void
  readonly #set: RelaySet
  readonly #mutex = new Mutex()
  readonly #retries: Pacer
  /** The relays that the last commit asked for. */
  #wanted: PersistentMap<Relay> = PersistentMap.empty()
  /** Those of them that are not open. */
  readonly #waiting = new Map<RelayKey, Relay>()
  readonly #failures: Record<Family, number> = { IPv4: 0, IPv6: 0 }
  #isStarted = false

  constructor({ clock, limits, report }: LocalhostRelaysOptions) {
    this.#report = report
    this.#set = new RelaySet(
      relayContext({
        clock,
        limits,
        // Our rules lead to no listener of ours.
        isCaptured: () => false,
        report,
      }),
    )
    this.#retries = new Pacer({ clock, run: () => this.#retry() })
  }

  /** Makes this process the one that relays. Before, relays count as those of another live process. */
  start(): void {
    this.#isStarted = true
  }

  get isStarted(): boolean {
    return this.#isStarted
  }

  get wanted(): PersistentMap<Relay> {
    return this.#wanted
  }

  get counts(): RelayCounts {
    return this.#set.counts
  }

  /** Counts the open listeners of each family. */
  get listeners(): Readonly<Record<Family, number>> {
    const listeners: Record<Family, number> = { IPv4: 0, IPv6: 0 }
    for (const { address } of this.#wanted.values()) listeners[familyOf(address)]++
    for (const { address } of this.#waiting.values()) listeners[familyOf(address)]--
    return listeners
  }

  /** Counts the failed attempts to open a listener of each family. */
  get failures(): Readonly<Record<Family, number>> {
    return this.#failures
  }

  /** Follows a commit. Ports that Services gave up are free before others open them. */
  follow({ put, remove }: Pick<RelayChanges, 'put' | 'remove'>, wanted: PersistentMap<Relay>): Promise<void> {
    return this.#mutex.run(async () => {
      if (this.#retries.isStopped) return
      this.#wanted = wanted
      for (const { key } of remove) {
        this.#set.remove(key)
        this.#waiting.delete(key)
      }
      for (const relay of put) if (this.#set.has(relay.key)) this.#set.update(relay)
      await this.#open(put.filter(({ key }) => !this.#set.has(key)))
      if (this.#waiting.size > 0) this.#retries.wake(RETRY_MS)
    })
  }

  /** Closes every listener. Connections continue until they or the process end. */
  async close(): Promise<void> {
    await this.#retries.stop()
    await this.#mutex.run(() => Promise.resolve(this.#set.close()))
    this.#wanted = PersistentMap.empty()
    this.#waiting.clear()
  }

  /** Ends every connection. */
  destroy(): void {
    void this.#retries.stop()
    this.#set.destroy()
  }

  async #retry(): Promise<number | undefined> {
    const before = this.#waiting.size
    await this.#mutex.run(() => this.#open([...this.#waiting.values()]))
    if (this.#waiting.size > 0) return RETRY_MS
    const facts = { listeners: before }
    if (before > 0) this.#report({ kind: 'notice', level: 'info', text: RECOVERED, facts })
    return undefined
  }

  async #open(relays: readonly Relay[]): Promise<void> {
    if (relays.length === 0) return
    const yielding = new Set(this.#set.beyond({ put: relays, remove: [] }))
    const leaving =
      yielding.size === 0 ? [] : [...this.#wanted.values()].filter(({ service }) => yielding.has(service))
    for (const { key } of leaving) this.#set.remove(key)
    const put = relays.filter(({ service }) => !yielding.has(service))
    const failures = await this.#set.open({ put, remove: [] })
    this.#set.admitClients()
    this.#set.settle()
    const errors = new Map(failures.map(({ relay, error }) => [relay, error]))
    const failed = [...leaving, ...put.filter(({ key }) => errors.has(key))]
    this.#note(failed, relay => errors.get(relay.key) ?? this.#set.tooMany(relay.service).error)
    for (const { key } of put) if (!errors.has(key)) this.#waiting.delete(key)
  }

  /** Counts failures, and reports those of relays that did not fail before: one message for all. */
  #note(failed: readonly Relay[], errorOf: (relay: Relay) => OpenFailure['error']): void {
    const fresh = failed.filter(({ key }) => !this.#waiting.has(key))
    for (const relay of failed) {
      this.#failures[familyOf(relay.address)]++
      this.#waiting.set(relay.key, relay)
    }
    const [first] = fresh
    if (first === undefined) return
    const facts = {
      servicePort: first.displayName,
      protocol: first.protocol,
      error: errorOf(first).message,
      listeners: fresh.length,
      retryMs: RETRY_MS,
    }
    this.#report({ kind: 'notice', level: 'warn', text: FAILED, facts })
  }
}

const FAILED =
  'node ports are not served at localhost: cannot open listeners; retrying; other node ports are served'
const RECOVERED = 'node ports are served at localhost again'
