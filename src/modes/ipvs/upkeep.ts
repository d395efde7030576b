import type { Clock } from '../../base/clock.ts'
import { errorOf } from '../../base/failure-text.ts'
import { Pacer } from '../../base/pacer.ts'
import type { Turns } from '../../base/turns.ts'
import { destinationKey, serverKey } from '../../kernel/ipvs/key.ts'
import type { IpvsOperation } from '../../kernel/ipvs/operation.ts'
import type { ListedDestination, RealServer, ServerKey, VirtualServer } from '../../kernel/ipvs/state.ts'
import type { ModeEvent } from '../mode.ts'
import {
  countEntries,
  type Digest,
  digestAddresses,
  digestDestinations,
  digestServers,
  digestSets,
  type SetCounts,
} from './digest.ts'
import type { Drains } from './drains.ts'
import type { IpvsKernel } from './kernel.ts'
import { type Ownership, ownershipBy } from './ownership.ts'
import type { IpvsOptions } from './settings.ts'
import type { IpvsState, PlacedServer } from './state.ts'

export interface UpkeepOptions {
  readonly kernel: IpvsKernel
  readonly clock: Clock
  readonly options: Pick<IpvsOptions, 'digestMs' | 'deviceName' | 'excludeCidrs'>
  /** Shared with commits, so that upkeep does not mistake a commit of ours for drift. */
  readonly turns: Turns
  readonly drains: Drains
  /** The applied state; undefined while it is unknown. */
  readonly held: () => IpvsState | undefined
  /** Called when the kernel state drifted. */
  readonly drifted: () => void
  /** Calls `changed` when addresses may have changed; undefined where the kernel cannot be watched. */
  readonly watchAddresses: ((changed: () => void) => (() => Promise<void>) | undefined) | undefined
  readonly report: (event: ModeEvent) => void
}

/** A real server to delete for good, with the connections that end with it: 0 unless its deadline passed. */
interface Drained {
  readonly server: VirtualServer
  readonly destination: RealServer
  readonly connections: number
}

/** The period when digestMs is 0: only connections of draining real servers are counted then. */
const DRAIN_PERIOD_MS = 1_000
/** The next check waits this many times the duration of the last one: checks take at most 5 % of the time. */
const REST = 20
/** The real servers of this many virtual servers are checked in one period, or of more if a round took too long. */
const SLICE_MIN = 64
/** The number of periods in which all of them are checked. */
const ROUND_PERIODS = 60
/** The maximum number of virtual servers with draining real servers in one period. */
const DRAINING_MAX = 256
/** Combines notifications, because addresses come and go in hundreds, each with a notification of its own. */
const HINT_DELAY_MS = 100

/**
 * Checks once a period what the kernel does not report: virtual servers, sizes of sets, and a share of the
 * real servers. Also deletes draining real servers whose connections have ended.
 */
export class Upkeep {
  readonly #options: UpkeepOptions
  readonly #checks: Pacer
  readonly #addressChecks: Pacer
  #unwatch: (() => Promise<void>) | undefined
  /** The virtual servers that this round has not checked yet. */
  #round: ServerKey[] = []
  #drainingRound: ServerKey[] = []
  /** The counts for a state that does not contain them. */
  #counted: { readonly state: IpvsState; readonly counts: SetCounts } | undefined
  #isStarted = false

  constructor(options: UpkeepOptions) {
    this.#options = options
    const { clock } = options
    this.#checks = new Pacer({ clock, run: () => this.#period() })
    this.#addressChecks = new Pacer({ clock, run: () => this.#recheckAddresses() })
  }

  start(): void {
    if (this.#isStarted || this.#checks.isStopped) return
    this.#isStarted = true
    const { watchAddresses } = this.#options
    if (this.#digests) this.#unwatch = watchAddresses?.(() => this.#addressChecks.wake(HINT_DELAY_MS))
    this.#checks.wake(this.#periodMs)
  }

  async close(): Promise<void> {
    const stopped = [this.#checks.stop(), this.#addressChecks.stop()]
    await this.#unwatch?.()
    await Promise.all(stopped)
    // Work in flight ends first.
    await this.#options.turns.take(() => Promise.resolve())
  }

  get #digests(): boolean {
    return this.#options.options.digestMs > 0
  }

  get #periodMs(): number {
    return this.#digests ? this.#options.options.digestMs : DRAIN_PERIOD_MS
  }

  async #period(): Promise<number> {
    let tookMs = 0
    await this.#turn(async held => {
      const { clock } = this.#options
      const startMs = clock.nowMs()
      await this.#check(held)
      tookMs = clock.nowMs() - startMs
    })
    return Math.max(this.#periodMs, tookMs * REST)
  }

  async #recheckAddresses(): Promise<undefined> {
    await this.#turn(async held => {
      this.#reportDrift(await this.#checkAddresses(held))
    })
  }

  /** Runs work alone, and only while the applied state is known. */
  #turn(work: (held: IpvsState) => Promise<void>): Promise<void> {
    const { turns, held, report } = this.#options
    return turns.take(async () => {
      const state = held()
      if (state === undefined || this.#checks.isStopped) return
      try {
        await work(state)
      } catch (thrown) {
        report({ kind: 'failed', error: errorOf(thrown) })
      }
    })
  }

  async #check(held: IpvsState): Promise<void> {
    if (this.#digests && this.#reportDrift(await this.#checkAll(held))) return
    const keys = new Set([...this.#nextDraining(), ...(this.#digests ? this.#nextSlice(held) : [])])
    const servers = [...keys].flatMap(key => held.servers.get(key) ?? [])
    if (servers.length === 0) return
    const lists = await this.#options.kernel.ipvs.destinations(servers.map(({ server }) => server))
    for (const [i, server] of servers.entries())
      if (this.#digests && this.#reportDrift(digestDestinations(server, lists[i] ?? []))) return
    await this.#retire(servers, lists)
  }

  async #checkAll(held: IpvsState): Promise<Digest> {
    const { kernel } = this.#options
    const digest = digestServers(held, await kernel.ipvs.servers(), this.#ownership(held))
    if (digest !== undefined) return digest
    const { headers } = await kernel.ipset.headers()
    const sets = digestSets(held, headers, this.#countsOf(held))
    return sets ?? (this.#unwatch === undefined ? await this.#checkAddresses(held) : undefined)
  }

  async #checkAddresses(held: IpvsState): Promise<Digest> {
    const { kernel, options } = this.#options
    return digestAddresses(held, await kernel.dummy.addresses(options.deviceName), this.#ownership(held))
  }

  #countsOf(held: IpvsState): SetCounts {
    if (this.#counted?.state !== held) this.#counted = { state: held, counts: countEntries(held) }
    return this.#counted.counts
  }

  #ownership(held: IpvsState): Ownership {
    return ownershipBy(held, this.#options.options.excludeCidrs)
  }

  /** Reports the drift that a digest found. Gives true when there is some. */
  #reportDrift(digest: Digest): boolean {
    if (digest === undefined) return false
    this.#options.drifted()
    this.#options.report({ kind: 'drift', difference: digest })
    return true
  }

  #nextSlice({ servers }: IpvsState): readonly ServerKey[] {
    if (this.#round.length === 0) this.#round = [...servers.keys()]
    return this.#round.splice(0, Math.max(SLICE_MIN, Math.ceil(servers.size / ROUND_PERIODS)))
  }

  #nextDraining(): readonly ServerKey[] {
    if (this.#drainingRound.length === 0) this.#drainingRound = [...this.#options.drains.servers]
    return this.#drainingRound.splice(0, DRAINING_MAX)
  }

  async #retire(
    servers: readonly PlacedServer[],
    lists: readonly (readonly ListedDestination[])[],
  ): Promise<void> {
    const { kernel, drains, report } = this.#options
    const due = servers.flatMap(({ server }, i) => this.#due(server, lists[i] ?? []))
    if (due.length === 0) return
    const operations = due.map(({ server, destination }): IpvsOperation => {
      return { verb: 'delete-destination', server, destination, group: '' }
    })
    const { failures, unknown } = await kernel.ipvs.commit(operations)
    if (unknown !== undefined) throw unknown
    const failed = new Set(failures.map(({ operation }) => operation))
    for (const [i, { server, destination, connections }] of due.entries()) {
      const operation = operations[i]
      if (operation === undefined || failed.has(operation)) continue
      const [key, endpoint] = [serverKey(server), destinationKey(destination)]
      drains.end(key, endpoint)
      report({ kind: connections === 0 ? 'drained' : 'expired', server: key, endpoint, connections })
    }
    for (const { error } of failures) report({ kind: 'failed', error })
  }

  /** Gives the real servers without connections or past their deadline, unless their weight was restored. */
  #due(server: VirtualServer, listed: readonly ListedDestination[]): readonly Drained[] {
    const { drains } = this.#options
    const key = serverKey(server)
    const deadlines = drains.of(key)
    const present = new Set(listed.map(({ destination }) => destinationKey(destination)))
    for (const name of [...deadlines.keys()]) if (!present.has(name)) drains.end(key, name)
    const nowMs = this.#options.clock.nowMs()
    return listed.flatMap(({ destination, activeConnections, inactiveConnections }) => {
      const deadlineMs = deadlines.get(destinationKey(destination))
      if (deadlineMs === undefined || destination.weight !== 0) return []
      const connections = activeConnections + inactiveConnections
      if (connections > 0 && nowMs < deadlineMs) return []
      return [{ server, destination, connections }]
    })
  }
}
