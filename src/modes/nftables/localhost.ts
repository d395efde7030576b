import { type Clock, Pacer } from '../../base/clock.ts'
import { PersistentMap } from '../../base/collections.ts'
import { type Family, familyOf, formatIpPort } from '../../base/ip.ts'
import { Mutex } from '../../base/queues.ts'
import type { FrontendTable, ServiceFrontends } from '../../model/frontend.ts'
import { backendsAtLocalhost, LOCALHOST } from '../../model/node-context.ts'
import { type ForwarderLimits, forwarderContext } from '../common/forwarder/context.ts'
import {
  diffForwarders,
  type Forwarder,
  type ForwarderChanges,
  type ForwarderKey,
  knownForwarder,
} from '../common/forwarder/forwarder.ts'
import { type ForwarderCounts, ForwarderSet, type OpenFailure } from '../common/forwarder/forwarder-set.ts'
import type { ModeEvent } from '../mode.ts'
import type { NftablesPlan, NftablesState } from './state.ts'

type Families = readonly Family[]

const NO_FAMILIES: Families = []

/**
 * Gives the forwarder of each node port of a Service at localhost (KEP-6032). A port that has no endpoint for clients
 * there has none: the kernel then refuses connections, because no socket listens.
 */
function localhostForwarders({ service, ports }: ServiceFrontends, families: Families): readonly Forwarder[] {
  const forwarders: Forwarder[] = []
  for (const port of ports) {
    const { protocol, family, displayName, affinityTimeoutS } = port
    if (protocol === 'SCTP' || !families.includes(family)) continue
    const cluster = backendsAtLocalhost(port)
    const nodePort = port.frontends.find(({ kind }) => kind === 'NodePort')?.port
    if (nodePort === undefined || cluster.length === 0) continue
    const address = LOCALHOST[family]
    forwarders.push({
      key: `${port.key} ${formatIpPort(address, nodePort)}`,
      displayName,
      service,
      protocol,
      address,
      port: nodePort,
      // One listener serves a node port, whatever its policy: it keeps its socket when the policy changes.
      lists: ['cluster'],
      balance: { affinityTimeoutS, cluster, local: [] },
    })
  }
  return forwarders
}

/** Gives a plan that also changes the forwarders of this process, from these to those of its `after`. */
export function withForwarders(plan: NftablesPlan, from: NftablesState['forwarders']): NftablesPlan {
  const forwarders = diffForwarders(from, plan.after.forwarders)
  const { lines } = forwarders
  if (lines.length === 0) return plan
  return {
    ...plan,
    forwarders,
    empty: false,
    changes: plan.changes + lines.length,
    describe: () => [...plan.describe(), ...lines],
  }
}

/** Builds the forwarders of one render from those of its base. */
export class ForwarderDraft {
  readonly #base: NftablesState
  readonly #families: Families
  readonly #continuing: boolean
  readonly #changes = new Map<string, Forwarder | undefined>()

  constructor(base: NftablesState, { forwardedAtLocalhost = NO_FAMILIES }: FrontendTable) {
    this.#base = base
    this.#families = forwardedAtLocalhost
    const before = base.frontends?.forwardedAtLocalhost ?? NO_FAMILIES
    this.#continuing = base.frontends !== undefined && before.join() === forwardedAtLocalhost.join()
  }

  replace(before: ServiceFrontends | undefined, after: ServiceFrontends | undefined): void {
    if (!this.#continuing || this.#families.length === 0) return
    for (const { key } of this.#forwardersOf(before)) this.#changes.set(key, undefined)
    for (const forwarder of this.#forwardersOf(after))
      this.#changes.set(forwarder.key, knownForwarder(this.#base.forwarders, forwarder))
  }

  /** Gives all forwarders. A Service that the kernel does not hold has none. */
  finish({ services }: FrontendTable, isLeftOut: (key: string) => boolean): PersistentMap<Forwarder> {
    if (this.#continuing)
      return this.#changes.size === 0 ? this.#base.forwarders : this.#base.forwarders.withOwn(this.#changes)
    if (this.#families.length === 0) return PersistentMap.empty()
    const forwarders = new Map<string, Forwarder>()
    for (const [key, service] of services.entries()) {
      if (isLeftOut(key)) continue
      for (const forwarder of this.#forwardersOf(service))
        forwarders.set(forwarder.key, knownForwarder(this.#base.forwarders, forwarder))
    }
    return PersistentMap.owning(forwarders)
  }

  #forwardersOf(service: ServiceFrontends | undefined): readonly Forwarder[] {
    return service === undefined ? [] : localhostForwarders(service, this.#families)
  }
}

interface LocalhostForwardersOptions {
  readonly clock: Clock
  readonly limits: ForwarderLimits
  readonly report: (event: ModeEvent) => void
}

/** The servers of health and metrics retry as often. */
const RETRY_MS = 5_000

/**
 * The forwarders of node ports at localhost. A listener that cannot be opened, because another process has the port, is
 * counted and retried. Everything else is served meanwhile.
 */
export class LocalhostForwarders {
  readonly #report: (event: ModeEvent) => void
  readonly #set: ForwarderSet
  readonly #mutex = new Mutex()
  readonly #retries: Pacer
  #wanted: PersistentMap<Forwarder> = PersistentMap.empty()
  /** The wanted forwarders that are not open. */
  readonly #waiting = new Map<ForwarderKey, Forwarder>()
  readonly #failures: Record<Family, number> = { IPv4: 0, IPv6: 0 }
  #isStarted = false

  constructor({ clock, limits, report }: LocalhostForwardersOptions) {
    this.#report = report
    this.#set = new ForwarderSet(
      forwarderContext({
        clock,
        limits,
        // Our rules lead to no listener of ours.
        isCaptured: () => false,
        report,
      }),
    )
    this.#retries = new Pacer({ clock, run: () => this.#retry() })
  }

  /** Makes this process the one that forwards. Before, forwarders count as those of another live process. */
  start(): void {
    this.#isStarted = true
  }

  get isStarted(): boolean {
    return this.#isStarted
  }

  get wanted(): PersistentMap<Forwarder> {
    return this.#wanted
  }

  get counts(): ForwarderCounts {
    return this.#set.counts
  }

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

  /** Takes the forwarders of a commit. Ports that Services gave up are free before others open them. */
  apply(
    { put, remove }: Pick<ForwarderChanges, 'put' | 'remove'>,
    wanted: PersistentMap<Forwarder>,
  ): Promise<void> {
    return this.#mutex.run(async () => {
      if (this.#retries.isStopped) return
      this.#wanted = wanted
      for (const { key } of remove) {
        this.#set.remove(key)
        this.#waiting.delete(key)
      }
      for (const forwarder of put) if (this.#set.has(forwarder.key)) this.#set.update(forwarder)
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

  async #open(forwarders: readonly Forwarder[]): Promise<void> {
    if (forwarders.length === 0) return
    const yielding = new Set(this.#set.beyond({ put: forwarders, remove: [] }))
    const leaving =
      yielding.size === 0 ? [] : [...this.#wanted.values()].filter(({ service }) => yielding.has(service))
    for (const { key } of leaving) this.#set.remove(key)
    const put = forwarders.filter(({ service }) => !yielding.has(service))
    const failures = await this.#set.open({ put, remove: [] })
    this.#set.admitClients()
    this.#set.settle()
    const errors = new Map(failures.map(({ forwarder, error }) => [forwarder, error]))
    const failed = [...leaving, ...put.filter(({ key }) => errors.has(key))]
    this.#note(failed, forwarder => errors.get(forwarder.key) ?? this.#set.tooMany(forwarder.service).error)
    for (const { key } of put) if (!errors.has(key)) this.#waiting.delete(key)
  }

  /** Counts failures, and reports those of forwarders that did not fail before: one message for all. */
  #note(failed: readonly Forwarder[], errorOf: (forwarder: Forwarder) => OpenFailure['error']): void {
    const fresh = failed.filter(({ key }) => !this.#waiting.has(key))
    for (const forwarder of failed) {
      this.#failures[familyOf(forwarder.address)]++
      this.#waiting.set(forwarder.key, forwarder)
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
