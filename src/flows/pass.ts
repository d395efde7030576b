import { type Clock, finishInSlices, type Slicing } from '../base/clock.ts'
import { FAMILIES, type Family } from '../base/ip.ts'
import type { Octets } from '../base/octets.ts'
import type { ConntrackClient, FlowVisitor } from '../kernel/conntrack/client.ts'
import { type Flow, type FlowFilter, socketKey } from '../kernel/conntrack/flow.ts'
import type { ServiceKey } from '../model/service.ts'
import type { Attempts, FlowCheck, FlowPhase, View } from './ports.ts'
import { type Draining, type RuleBook, ruleBooks } from './stale.ts'

interface PassOptions {
  readonly client: ConntrackClient
  readonly clock: Clock
  readonly random: () => number
  readonly drains: Drains
  readonly slicing: Slicing
  /** Tests at every entry whether to give up. */
  readonly isStopped: () => boolean
}

interface PassWork {
  readonly looks: ReadonlyMap<ServiceKey, FlowCheck>
  readonly view: View
  readonly phase: FlowPhase
  readonly isChosen?: (flow: Flow) => boolean
}

export interface FamilyResult {
  readonly family: Family
  readonly examined: number
  /** Stale UDP and SCTP entries removed. */
  readonly deleted: number
  /** TCP connections cut, by their Service's drain policy. */
  readonly cut: number
  /** TCP entries removed that had no answer from an endpoint that is gone. */
  readonly halfOpen: number
  readonly durationMs: number
}

export class Stopped extends Error {
  override readonly name = 'Stopped'
}

/** A listing that changed while it was made may lack entries; its entries are judged nevertheless. */
const DUMP_ATTEMPTS = 5
/** Stale entries that wait for one send. */
const DELETES_A_SEND = 256

/** Maximum number of destinations to remember, some 5 MB. */
const ATTEMPTS_MAX = 65_536

/** One pass through conntrack: deletes stale entries while it reads, and keeps no more than one send of them. */
export class FlowPass {
  readonly #options: PassOptions

  constructor(options: PassOptions) {
    this.#options = options
  }

  /** Rejects when not all could be read or deleted; what was deleted stays so. */
  async run({ looks, view, phase, isChosen = () => true }: PassWork): Promise<readonly FamilyResult[]> {
    const { clock, drains, slicing } = this.#options
    const books = await finishInSlices(ruleBooks({ looks: looks.values(), view, phase }), slicing)
    const results: FamilyResult[] = []
    if (phase === 'under way') drains.begin()
    for (const family of FAMILIES) {
      const ofFamily = books.filter(book => book.family === family)
      if (ofFamily.length === 0) continue
      const startMs = clock.nowMs()
      const counts = { examined: 0, deleted: 0, cut: 0, halfOpen: 0 }
      for (const book of ofFamily) {
        const { examined, deleted } = await this.#apply(book, isChosen)
        counts.examined += examined
        if (phase === 'half-open') counts.halfOpen += deleted
        else counts[book.protocol === 'TCP' ? 'cut' : 'deleted'] += deleted
      }
      results.push({ family, ...counts, durationMs: clock.nowMs() - startMs })
    }
    if (phase === 'under way') drains.finish(new Set(looks.keys()), clock.nowMs())
    return results
  }

  /**
   * Lists the destinations of TCP connections that nothing has answered; undefined when they are too many. Linux before
   * 5.15 lists those of all connections.
   */
  async attempts(families: Iterable<Family>): Promise<Attempts | undefined> {
    const [sockets, ports] = [new Set<Octets>(), new Set<number>()]
    const visitor: FlowVisitor = {
      isWanted: (destination, port) => {
        if (this.#options.isStopped()) throw new Stopped()
        if (sockets.size <= ATTEMPTS_MAX) sockets.add(socketKey(destination, port))
        ports.add(port)
        return false
      },
      visit: () => undefined,
    }
    for (const family of families)
      await this.#dumpWhole({ family, protocol: 'TCP', isHalfOpen: true }, visitor)
    return sockets.size > ATTEMPTS_MAX ? undefined : { sockets, ports }
  }

  async #apply(
    book: RuleBook,
    isChosen: (flow: Flow) => boolean,
  ): Promise<{ readonly examined: number; readonly deleted: number }> {
    const deletes = new Deletes(this.#options.client)
    let examined = 0
    const visitor: FlowVisitor = {
      isWanted: (destination, port) => {
        if (this.#options.isStopped()) throw new Stopped()
        deletes.rethrow()
        examined++
        return book.concerns(destination, port)
      },
      visit: flow => {
        if (this.#isOver(book, flow) && isChosen(flow)) deletes.add(flow)
      },
    }
    try {
      for (const filter of dumpsFor(book)) await this.#dumpWhole(filter, visitor)
    } finally {
      // Whatever becomes of the list: what it has shown to be stale is stale.
      await deletes.settle()
    }
    deletes.rethrow()
    return { examined, deleted: deletes.deleted }
  }

  #isOver(book: RuleBook, flow: Flow): boolean {
    const judgment = book.judge(flow)
    if (judgment.kind !== 'drain') return judgment.kind === 'stale'
    return this.#options.drains.isDue(judgment, this.#options.clock.nowMs())
  }

  async #dumpWhole(filter: FlowFilter, visitor: FlowVisitor): Promise<void> {
    const { client, clock, random, isStopped } = this.#options
    for (let attempt = 1; attempt <= DUMP_ATTEMPTS; attempt++) {
      if (isStopped()) throw new Stopped()
      if (await client.dump(filter, visitor)) return
      // 20 ms more after each attempt, and never in step with what changes the table.
      const delayMs = 20 * attempt * (0.5 + random())
      await new Promise<void>(resolve => clock.after(delayMs, resolve))
    }
    throw new Error(`the kernel's table of flows changed during each of ${DUMP_ATTEMPTS} attempts to list it`)
  }
}

/** Sends deletions off while the list is still being read, one send after the other. */
class Deletes {
  readonly #client: ConntrackClient
  #waiting: Flow[] = []
  #sent: Promise<void> = Promise.resolve()
  #deleted = 0
  #failure: { readonly error: unknown } | undefined

  constructor(client: ConntrackClient) {
    this.#client = client
  }

  add(flow: Flow): void {
    this.#waiting.push(flow)
    if (this.#waiting.length >= DELETES_A_SEND) this.#send()
  }

  rethrow(): void {
    if (this.#failure !== undefined) throw this.#failure.error
  }

  async settle(): Promise<void> {
    this.#send()
    await this.#sent
  }

  get deleted(): number {
    return this.#deleted
  }

  #send(): void {
    const flows = this.#waiting
    this.#waiting = []
    if (flows.length === 0) return
    this.#sent = this.#sent.then(async () => {
      if (this.#failure !== undefined) return
      try {
        this.#deleted += (await this.#client.delete(flows)).deleted
      } catch (error) {
        this.#failure = { error }
      }
    })
  }
}

/**
 * Walks of the kernel's whole table that one dump of everything and its decoding here are worth: 10 ms per 100,000
 * entries for a walk that gives little, 100 ms for one that gives all.
 */
export const WALKS_MAX = 9

/** The dumps that together list every flow the book is about, and as few others as that allows. */
export function dumpsFor(book: RuleBook): readonly FlowFilter[] {
  const { family, protocol, phase } = book
  const filters = family === 'IPv4' ? byAddress(book) : byPort(book)
  if (phase === 'under way') return filters.length > WALKS_MAX ? [{ family, protocol }] : filters
  // Attempts without an answer are few: one walk lists them all.
  const [only = { family, protocol }, ...others] = filters
  return [{ ...(others.length === 0 ? only : { family, protocol }), isHalfOpen: true }]
}

function byAddress({ family, protocol, addresses, nodePorts }: RuleBook): FlowFilter[] {
  const filters: FlowFilter[] = nodePorts.map(destinationPort => ({ family, protocol, destinationPort }))
  for (const [destination, ports] of addresses) {
    const [first, ...others] = ports
    const isOnly = first !== undefined && others.length === 0
    filters.push({ family, protocol, destination, ...(isOnly ? { destinationPort: first } : {}) })
  }
  return filters
}

/** The kernel cannot dump the flows of one IPv6 address (see encodeDump). */
function byPort({ family, protocol, addresses, nodePorts }: RuleBook): FlowFilter[] {
  const ports = new Set([...nodePorts, ...[...addresses.values()].flat()])
  return [...ports].map(destinationPort => ({ family, protocol, destinationPort }))
}

interface Drain {
  readonly service: ServiceKey
  readonly dueMs: number
  /** The number of the last pass that saw one of its connections. */
  seenIn: number
}

/** Maximum number of pairs of place and endpoint; others wait until there is room. */
const DRAINS_MAX = 10_000

/** Notes when connections lost their endpoint. A new process counts from its own start. */
export class Drains {
  readonly #drains = new Map<Octets, Drain>()
  #pass = 0

  get size(): number {
    return this.#drains.size
  }

  /** Begins a pass; what it does not see until finish() has ended by itself. */
  begin(): void {
    this.#pass++
  }

  isDue({ between, service, drainMs }: Draining, nowMs: number): boolean {
    const known = this.#drains.get(between)
    if (known === undefined) {
      if (drainMs === 0) return true
      if (this.#drains.size < DRAINS_MAX)
        this.#drains.set(between, { service, dueMs: nowMs + drainMs, seenIn: this.#pass })
      return false
    }
    known.seenIn = this.#pass
    return nowMs >= known.dueMs
  }

  /** Ends a pass that has seen all connections of these Services. */
  finish(services: ReadonlySet<ServiceKey>, nowMs: number): void {
    for (const [between, { service, dueMs, seenIn }] of this.#drains)
      if (services.has(service) && (seenIn !== this.#pass || dueMs <= nowMs)) this.#drains.delete(between)
  }

  get nextDueMs(): number | undefined {
    let next: number | undefined
    for (const { dueMs } of this.#drains.values()) if (next === undefined || dueMs < next) next = dueMs
    return next
  }

  servicesDue(nowMs: number): readonly ServiceKey[] {
    const services = new Set<ServiceKey>()
    for (const { service, dueMs } of this.#drains.values()) if (dueMs <= nowMs) services.add(service)
    return [...services]
  }
}
