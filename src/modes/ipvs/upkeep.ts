import { type Clock, Pacer, restMs } from '../../base/clock.ts'
import { errorOf } from '../../base/errors.ts'
import { formatIp, type Ip } from '../../base/ip.ts'
import type { Mutex } from '../../base/queues.ts'
import type { IpsetHeader } from '../../kernel/ipset/state.ts'
import {
  destinationKey,
  type IpvsOperation,
  type ListedDestination,
  type RealServer,
  type ServerKey,
  sameDestination,
  sameSettings,
  serverKey,
  type VirtualServer,
} from '../../kernel/ipvs/state.ts'
import { DUMMY_DEVICE } from '../common/kube-proxy.ts'
import type { ModeEvent } from '../mode.ts'
import { type IpvsKernel, type Ownership, ownershipBy } from './observe.ts'
import type { IpvsPlan } from './plan.ts'
import type { IpvsOptions } from './settings.ts'
import type { IpvsState, PlacedServer } from './state.ts'

export interface UpkeepOptions {
  readonly kernel: IpvsKernel
  readonly clock: Clock
  readonly options: Pick<IpvsOptions, 'digestMs' | 'excludeCidrs'>
  /** Shared with commits, so that upkeep does not mistake a commit of ours for drift. */
  readonly mutex: Mutex
  readonly drains: Drains
  /** The applied state; undefined while it is unknown. */
  readonly held: () => IpvsState | undefined
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

/** Maximum share of the time that checks take. */
const CHECK_SHARE = 0.05
/** The real servers of this many virtual servers are checked in one period, or of more if a round took too long. */
const SLICE_MIN = 64
/** The number of periods in which all of them are checked. */
const ROUND_PERIODS = 60
/** The maximum number of virtual servers with draining real servers in one period: no commit runs while they are read. */
const DRAINING_MAX = 256

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

  constructor(options: UpkeepOptions) {
    this.#options = options
    const { clock } = options
    this.#checks = new Pacer({ clock, run: () => this.#period() })
    this.#addressChecks = new Pacer({ clock, run: () => this.#recheckAddresses() })
  }

  start(): void {
    const { watchAddresses, options } = this.#options
    // Addresses come and go in hundreds, each with a notification of its own.
    this.#unwatch = watchAddresses?.(() => this.#addressChecks.wake(100))
    this.#checks.wake(options.digestMs)
  }

  async close(): Promise<void> {
    const stopped = [this.#checks.stop(), this.#addressChecks.stop()]
    await this.#unwatch?.()
    await Promise.all(stopped)
    // Work in flight ends first.
    await this.#options.mutex.run(() => Promise.resolve())
  }

  async #period(): Promise<number> {
    let tookMs = 0
    await this.#turn(async held => {
      const { clock } = this.#options
      const startMs = clock.nowMs()
      await this.#check(held)
      tookMs = clock.nowMs() - startMs
    })
    return restMs(tookMs, { share: CHECK_SHARE, minMs: this.#options.options.digestMs })
  }

  async #recheckAddresses(): Promise<undefined> {
    await this.#turn(async held => {
      this.#reportDrift(await this.#checkAddresses(held))
    })
  }

  /** Runs work alone, and only while the applied state is known. */
  #turn(work: (held: IpvsState) => Promise<void>): Promise<void> {
    const { mutex, held, report } = this.#options
    return mutex.run(async () => {
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
    if (this.#reportDrift(await this.#checkAll(held))) return
    const keys = new Set([...this.#nextDraining(), ...this.#nextSlice(held)])
    const servers = [...keys].flatMap(key => held.servers.get(key) ?? [])
    if (servers.length === 0) return
    const lists = await this.#options.kernel.ipvs.destinations(servers.map(({ server }) => server))
    for (const [i, server] of servers.entries())
      if (this.#reportDrift(digestDestinations(server, lists[i] ?? []))) return
    await this.#retire(servers, lists)
  }

  async #checkAll(held: IpvsState): Promise<Digest> {
    const { kernel } = this.#options
    const digest = digestServers(held, await kernel.ipvs.servers(), this.#ownership(held))
    if (digest !== undefined) return digest
    const { headers } = await kernel.ipset.headers()
    const sets = digestSets(held, headers, countEntries(held))
    return sets ?? (this.#unwatch === undefined ? await this.#checkAddresses(held) : undefined)
  }

  async #checkAddresses(held: IpvsState): Promise<Digest> {
    const { dummy } = this.#options.kernel
    return digestAddresses(held, await dummy.addresses(DUMMY_DEVICE), this.#ownership(held))
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

/** The first difference between the kernel and the applied state; undefined for none. Cheap enough for every period. */
type Digest = string | undefined

function digestServers(
  { servers }: IpvsState,
  listed: readonly VirtualServer[],
  ownership: Ownership,
): Digest {
  let found = 0
  for (const server of listed) {
    const key = serverKey(server)
    const left = servers.get(key)
    if (left === undefined) {
      if (ownership.isOurServer(server)) return `virtual server ${key} was added`
      continue
    }
    if (!sameSettings(left.server, server)) return `virtual server ${key} was changed`
    found++
  }
  return found === servers.size ? undefined : `virtual servers deleted: ${servers.size - found}`
}

/** Compares the sets. An exchange of entries for the same number of others is not detected. */
function digestSets({ sets }: IpvsState, headers: readonly IpsetHeader[], counts: SetCounts): Digest {
  const found = new Map(headers.map(header => [header.set.name, header] as const))
  for (const { name, type } of sets.values()) {
    const header = found.get(name)
    if (header === undefined || header.set.type !== type) return `ipset ${name} was deleted`
    const left = counts.get(name) ?? 0
    if (header.elements !== left) return `ipset ${name} has ${header.elements} entries instead of ${left}`
  }
  return undefined
}

function digestDestinations(
  { server, destinations }: PlacedServer,
  listed: readonly ListedDestination[],
): Digest {
  const key = serverKey(server)
  const found = new Map(listed.map(({ destination }) => [destinationKey(destination), destination] as const))
  for (const [name, destination] of found) {
    const left = destinations.get(name)
    if (left === undefined) return `real server ${name} of ${key} was added`
    if (!sameDestination(left, destination)) return `real server ${name} of ${key} was changed`
  }
  for (const [name, { weight }] of destinations) {
    // The upkeep deletes draining real servers.
    if (weight !== 0 && !found.has(name)) return `real server ${name} of ${key} was deleted`
  }
  return undefined
}

/** Compares the addresses. `present` is undefined where there is no device. */
function digestAddresses(
  { addresses, device }: IpvsState,
  present: readonly Ip[] | undefined,
  ownership: Ownership,
): Digest {
  if (present === undefined) return device ? `device ${DUMMY_DEVICE} was deleted` : undefined
  let found = 0
  for (const ip of present) {
    if (addresses.has(ip)) found++
    else if (ownership.isOurAddress(ip)) return `address ${formatIp(ip)} was added to ${DUMMY_DEVICE}`
  }
  return found === addresses.size
    ? undefined
    : `addresses of ${DUMMY_DEVICE} deleted: ${addresses.size - found}`
}

type SetCounts = ReadonlyMap<string, number>

/** Gives the number of entries of each set: those of a state that was read are counted here. */
export function countEntries({ entries, rendering }: Pick<IpvsState, 'entries' | 'rendering'>): SetCounts {
  if (rendering !== undefined) return rendering.entries
  const counts = new Map<string, number>()
  for (const { set } of entries.values()) counts.set(set, (counts.get(set) ?? 0) + 1)
  return counts
}

/** The draining real servers of one virtual server, each with its deadline. */
type Deadlines = ReadonlyMap<string, number>

/**
 * The draining real servers: they are not wanted any more, and keep their connections until these end or
 * until a deadline. The kernel records them by their weight of 0. After a restart their time begins again,
 * with the default length.
 */
export class Drains {
  readonly #drainMs: number
  readonly #deadlines = new Map<ServerKey, Map<string, number>>()

  constructor(drainMs: number) {
    this.#drainMs = drainMs
  }

  /** The virtual servers with draining real servers. */
  get servers(): readonly ServerKey[] {
    return [...this.#deadlines.keys()]
  }

  of(server: ServerKey): Deadlines {
    return this.#deadlines.get(server) ?? NONE
  }

  /** Adopts a state that was read: forgets real servers that are gone, and keeps known deadlines. */
  adopt({ servers }: IpvsState, nowMs: number): void {
    const known = new Map(this.#deadlines)
    this.#deadlines.clear()
    for (const [key, { destinations }] of servers.entries()) {
      for (const [destination, { weight }] of destinations) {
        if (weight !== 0) continue
        this.#begin(key, destination, known.get(key)?.get(destination) ?? nowMs + this.#drainMs)
      }
    }
  }

  /** Takes a committed plan. A Service may configure another drain time than the default. */
  take({ phases, after }: Pick<IpvsPlan, 'phases' | 'after'>, nowMs: number): void {
    for (const phase of phases) {
      if (phase.kind !== 'add-servers' && phase.kind !== 'remove-servers') continue
      for (const operation of phase.operations) {
        const key = serverKey(operation.server)
        if (operation.verb === 'delete-server') this.#deadlines.delete(key)
        if (!('destination' in operation)) continue
        const destination = destinationKey(operation.destination)
        if (operation.verb === 'set-destination' && operation.destination.weight === 0)
          this.#begin(key, destination, nowMs + (after.servers.get(key)?.drainMs ?? this.#drainMs))
        else this.end(key, destination)
      }
    }
  }

  end(server: ServerKey, destination: string): void {
    const deadlines = this.#deadlines.get(server)
    deadlines?.delete(destination)
    if (deadlines?.size === 0) this.#deadlines.delete(server)
  }

  #begin(server: ServerKey, destination: string, deadlineMs: number): void {
    const deadlines = this.#deadlines.get(server) ?? new Map<string, number>()
    deadlines.set(destination, deadlineMs)
    this.#deadlines.set(server, deadlines)
  }
}

const NONE: ReadonlyMap<string, number> = new Map()
