import type { Clock } from '../../base/clock.ts'
import { Mutex, Pacer } from '../../base/clock.ts'
import { PersistentMap } from '../../base/collections.ts'
import { type Family, familyOf } from '../../base/ip.ts'
import { relayContext } from '../common/relay/context.ts'
import type { RelayLimits } from '../common/relay/limits.ts'
import { relayModeEvent } from '../common/relay/limits.ts'
import type { RelayCounts } from '../common/relay/metrics.ts'
import type { Relay, RelayChanges, RelayKey } from '../common/relay/relay.ts'
import { type OpenFailure, RelaySet } from '../common/relay/relay-set.ts'
import type { ModeEvent } from '../mode.ts'

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
        report: event => report(relayModeEvent(event)),
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
