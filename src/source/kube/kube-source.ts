import type { Clock } from '../../base/clock.ts'
import type { Refusal } from '../../model/fields.ts'
import { parserOf } from '../../model/parse.ts'
import { type SourceEvent, ValuePool } from '../../model/snapshot.ts'
import {
  type LocatedRefusal,
  REFUSALS_MAX,
  type Revisions,
  type Source,
  type SourceHandlers,
  type SourceProblem,
  type SourceStatus,
} from '../source.ts'
import { type ApiClient, type Resource, watchedResources } from './api-client.ts'
import { Exchange } from './exchange.ts'
import type { Failure } from './failure.ts'
import { Reflector } from './reflector.ts'
import type { ReflectorOptions, ReflectorSink } from './reflector-options.ts'
import type { Trouble } from './reflector-state.ts'
import { deletion } from './resource-changes.ts'

export interface KubeSourceOptions {
  /** Stays open: its owner closes it, after stop(). */
  readonly client: ApiClient
  readonly clock: Clock
  readonly random: () => number
  readonly nodeName: string
  readonly serviceProxyName: string | undefined
  /** Media types in order of preference, as acceptFor gives them. */
  readonly accept: string
  /** Reads also the fields that only back ends get. */
  readonly details?: boolean
  /** Mean distance between checks for lost events, milliseconds; 10 minutes by default. */
  readonly checkPeriodMs?: number
  /** Maximum parts of all objects (see partsOf): the newest beyond it are refused. Undefined for no bound. */
  readonly partsMax?: number | undefined
  /** All changes up to these revisions were taken, once everything was read; called at each word of the server. */
  readonly reached?: (revisions: Revisions) => void
}

interface Part {
  readonly name: string
  readonly reflector: Reflector
  listed: boolean
  /** The last check for lost events failed. */
  isUnchecked: boolean
  refusals: readonly Refusal[]
  /** Resolves once the last changes were taken. */
  taken: Promise<void>
  /** All changes up to this revision were taken. */
  revision: string
}

/**
 * Services, EndpointSlices, ServiceCIDRs and this Node from the API server. An outage changes nothing: published objects
 * stay until the server changes them.
 */
export class KubeSource implements Source {
  readonly #options: KubeSourceOptions
  readonly #batcher: Batcher<SourceEvent>
  readonly #troubles: Troubles
  readonly #parts: readonly Part[]
  #handlers: SourceHandlers | undefined
  #synced = false
  #stopping: Promise<void> | undefined

  constructor(options: KubeSourceOptions) {
    this.#options = options
    const { client, clock, accept, details = false, serviceProxyName } = options
    this.#batcher = new Batcher<SourceEvent>(clock)
    this.#troubles = new Troubles(
      client,
      problem => this.#handlers?.problem(problem),
      () => this.#synced,
    )
    const exchange = new Exchange({ client, clock, accept, details })
    const parsing = { details, headlessSlices: serviceProxyName !== undefined }
    const parseObject = parserOf(new ValuePool(), parsing)
    const shared = { exchange, parseObject, deletion }
    this.#parts = watchedResources(options).map(resource => this.#part(resource, shared))
  }

  get status(): SourceStatus {
    const heard = this.#parts
      .filter(({ reflector }) => !reflector.isAbsent)
      .map(({ reflector }) => reflector.heardMs ?? Number.NEGATIVE_INFINITY)
    const heardMs = Math.min(...heard)
    const { isDirect } = this.#options.client
    return {
      missing: this.#parts.filter(({ listed }) => !listed).map(({ name }) => name),
      heardMs: Number.isFinite(heardMs) ? heardMs : undefined,
      trouble: this.#troubles.text,
      ...(isDirect === undefined ? {} : { isDirect }),
    }
  }

  start(handlers: SourceHandlers): Promise<void> {
    this.#handlers = handlers
    this.#batcher.start(handlers.events)
    for (const { reflector } of this.#parts) reflector.start()
    return Promise.resolve()
  }

  async confirm(): Promise<void> {
    const [services, slices] = this.#parts
    await Promise.all([services?.reflector.relist(), slices?.reflector.relist()])
  }

  stop(): Promise<void> {
    this.#stopping ??= this.#stop()
    return this.#stopping
  }

  async #stop(): Promise<void> {
    this.#batcher.close()
    await Promise.all(this.#parts.map(({ reflector }) => reflector.stop()))
  }

  #part(resource: Resource, shared: Pick<ReflectorOptions, 'exchange' | 'parseObject' | 'deletion'>): Part {
    const { clock, random, partsMax, checkPeriodMs = 600_000 } = this.#options
    const sink: ReflectorSink = {
      // Changes that are on their way to a reader are not taken yet. Where taking them fails, a list follows.
      events: batch => {
        part.taken = this.#batcher.put(batch)
        return part.taken
      },
      reached: revision => {
        const isTaken = (): void => {
          part.revision = revision
          this.#tellReached()
        }
        part.taken.then(isTaken, () => undefined)
      },
      refusals: list => {
        part.refusals = list
        this.#tellRefusals()
      },
      listed: () => {
        part.listed = true
        this.#tellSynced()
      },
      trouble: trouble => {
        this.#troubles.set(resource.name, trouble)
        // Delays are up to a minute long, and the start waits for the longest one.
        if (trouble === undefined) for (const { reflector } of this.#parts) reflector.hurry()
      },
      checked: failure => this.#checked(part, failure),
      observed: observation => this.#handlers?.observed?.(observation),
    }
    const reflector = new Reflector({
      ...shared,
      resource,
      clock,
      random,
      checkPeriodMs,
      partsMax,
      sink,
    })
    const part: Part = {
      name: resource.name,
      reflector,
      listed: false,
      isUnchecked: false,
      refusals: [],
      taken: Promise.resolve(),
      revision: '',
    }
    return part
  }

  #tellReached(): void {
    const [Service = '', EndpointSlice = ''] = this.#parts.map(part => part.revision)
    if (this.#synced && this.#stopping === undefined) this.#options.reached?.({ Service, EndpointSlice })
  }

  #tellSynced(): void {
    if (this.#synced || this.#parts.some(({ listed }) => !listed)) return
    this.#synced = true
    this.#handlers?.synced()
    this.#tellReached()
  }

  #tellRefusals(): void {
    const list: LocatedRefusal[] = []
    for (const { name, refusals } of this.#parts)
      for (const refusal of refusals) {
        if (list.length === REFUSALS_MAX) break
        list.push({ location: name, refusal })
      }
    this.#handlers?.refusals(list)
  }

  /**
   * The watch reports its own failures. This reports only failures of the check itself that happen twice
   * in a row.
   */
  #checked(part: Part, failure: Failure | undefined): void {
    const isOther =
      failure !== undefined &&
      ['unreachable', 'connection', 'throttled', 'internal', 'unavailable'].includes(failure.kind)
    if (isOther) return
    const text = `the check for lost events failed: ${failure?.text ?? ''}`
    const location = `${part.name} check`
    if (failure === undefined) this.#troubles.set(location, undefined)
    else if (part.isUnchecked) this.#troubles.set(location, { scope: 'resource', text })
    part.isUnchecked = failure !== undefined
  }
}

const KEPT = 'the last known state stays in use; retrying'
const UNKNOWN = 'no Services known yet, retrying'

/**
 * Joins the problems of all resources: what all of them suffer from is one problem of the server. Each is reported once
 * when it begins, however its words change, and once when it is over.
 */
export class Troubles {
  readonly #client: Pick<ApiClient, 'server' | 'isDirect'>
  readonly #say: (problem: SourceProblem) => void
  readonly #isSynced: () => boolean
  readonly #now = new Map<string, Trouble>()
  /** Places that were reported and are not well again. */
  readonly #said = new Set<string>()

  /** `isSynced`: everything has been read once, and stays in use. */
  constructor(
    client: Pick<ApiClient, 'server' | 'isDirect'>,
    say: (problem: SourceProblem) => void,
    isSynced: () => boolean,
  ) {
    this.#client = client
    this.#isSynced = isSynced
    this.#say = say
  }

  /** The worst of it in one line; undefined when all is well. */
  get text(): string | undefined {
    let first: string | undefined
    for (const [resource, { scope, text }] of this.#now) {
      if (scope === 'server') return `${this.#client.server}: ${this.#short(text)}`
      if (scope !== 'absent') first ??= `${resource}: ${text}`
    }
    return first
  }

  set(resource: string, trouble: Trouble | undefined): void {
    if (trouble === undefined) this.#now.delete(resource)
    else this.#now.set(resource, trouble)
    const { server, isDirect } = this.#client
    if (trouble?.scope === 'server') this.#fail(server, trouble)
    else if (trouble !== undefined) this.#fail(resource, trouble)
    else this.#recover(resource, 'read again')
    if (![...this.#now.values()].some(({ scope }) => scope === 'server'))
      this.#recover(server, `${isDirect === false ? 'a relay' : 'the API server'} answers again`)
  }

  #fail(location: string, { scope, text }: Trouble): void {
    if (this.#said.has(location)) return
    this.#said.add(location)
    if (scope === 'absent' || scope === 'denied') this.#say({ kind: 'absent', location, text })
    else
      this.#say({
        kind: 'failed',
        location,
        text: this.#short(text),
        meanwhile: this.#isSynced() ? KEPT : UNKNOWN,
      })
  }

  /** Omits the name of the server, which is the location. */
  #short(text: string): string {
    return text.replace(` at ${this.#client.server}:`, ':')
  }

  #recover(location: string, text: string): void {
    if (this.#said.delete(location)) this.#say({ kind: 'recovered', location, text })
  }
}

/**
 * Hands on items, one batch at a time. Items that arrive meanwhile form the next batch. Each caller waits until its items
 * were taken, so the next batch has the items of at most one call of each caller.
 */
export class Batcher<T> {
  readonly #clock: Pick<Clock, 'breathe'>
  #hand: (batch: readonly T[]) => Promise<void> = () => Promise.resolve()
  #gathering: { readonly batch: T[]; readonly taken: Promise<void> } | undefined
  #last: Promise<unknown> = Promise.resolve()
  #closed = false

  constructor(clock: Pick<Clock, 'breathe'>) {
    this.#clock = clock
  }

  start(hand: (batch: readonly T[]) => Promise<void>): void {
    this.#hand = hand
  }

  /** Resolves once these were taken, in the order given and in one piece. Rejects when taking them failed. */
  readonly put = (items: readonly T[]): Promise<void> => {
    if (items.length === 0) return Promise.resolve()
    const gathering = this.#gathering ?? this.#open()
    for (const item of items) gathering.batch.push(item)
    return gathering.taken
  }

  close(): void {
    this.#closed = true
  }

  #open() {
    const batch: T[] = []
    const taken = this.#last.then(() => {
      this.#gathering = undefined
      return this.#closed ? undefined : this.#hand(batch)
    })
    // The caller that brought the items gets the failure; the next batch only needs to know that this one is over.
    const isOver = () => this.#beforeNext()
    this.#last = taken.then(isOver, isOver)
    this.#gathering = { batch, taken }
    return this.#gathering
  }

  /** Callers whose items were just taken may have more at hand, which then belong to the batch that waits. */
  #beforeNext(): Promise<void> | undefined {
    return this.#gathering === undefined ? undefined : this.#clock.breathe()
  }
}
