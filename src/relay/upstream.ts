import { type Clock, pause, runWithin } from '../base/clock.ts'
import { WireError } from '../base/errors.ts'
import type { Refusal, WatchedIdentity, WatchedKind } from '../model/fields.ts'
import { readTriggerTime, watchedIdentity } from '../model/parse.ts'
import { type ApiClient, type Resource, requestPath, watchedResources } from '../source/kube/api-client.ts'
import { Exchange } from '../source/kube/exchange.ts'
import { type Failure, FailureError, failureOfError, failureOfStatus } from '../source/kube/failure.ts'
import { Troubles } from '../source/kube/kube-source.ts'
import { compareVersions, isOlder, isPosition, versionOf } from '../source/kube/object-index.ts'
import { Reflector } from '../source/kube/reflector.ts'
import { isLeftOut, newTraits, type ServerTraits, servedResource } from '../source/kube/server-traits.ts'
import { watchQuery } from '../source/kube/watch-run.ts'
import { statusOf } from '../source/kube/wire/encodings.ts'
import type { ApiObject, WatchEvent } from '../source/kube/wire/tables.ts'
import type { SourceProblem, SourceStatus } from '../source/source.ts'
import { encodeMessage } from '../wire/protobuf/encoder.ts'
import type { Change, Collection } from './collection.ts'
import type { Entry } from './frames.ts'
import { isProgrammed } from './judgement.ts'
import { discovery } from './schema.ts'
import type { RelayState } from './state.ts'
import { RELAYED, type RelayedType } from './types.ts'

interface UpstreamOptions {
  /** Stays open: its owner closes it, after stop(). */
  readonly client: ApiClient
  readonly clock: Clock
  readonly random: () => number
  readonly state: RelayState
  /** The source is a relay, which does not say which of its changes come from lists. */
  readonly isRelay?: boolean
  readonly problem: (problem: SourceProblem) => void
  /** Mean distance between checks for lost events, milliseconds. */
  readonly checkPeriodMs?: number
}

/** An object of the API server with its bytes, or its deletion. */
interface EncodedChange {
  readonly kind: 'Encoded'
  readonly name: string
  readonly entry: Entry | undefined
  /** The identity of the cluster, which one object bears. */
  readonly cluster?: string
  /** Wall-clock milliseconds of the change that it was made for. */
  readonly triggerMs?: number | undefined
}

interface Part {
  readonly name: string
  readonly collection: Collection
  readonly reflector: Reflector<EncodedChange>
  listed: boolean
}

const PROTOBUF = 'application/vnd.kubernetes.protobuf'
const CHECK_PERIOD_MS = 600_000
/** The object that identifies a cluster. Every client that may watch Services sees it. */
const IDENTITY = 'default/kubernetes'
const UNIDENTIFIED = {
  scope: 'resource',
  text: 'the source has no such Service, which every API server creates; nodes are not served without it',
} as const

/** Follows the source of a relay: what nodes need, unread but for its names and versions. */
export class Upstream {
  readonly #options: UpstreamOptions
  readonly #troubles: Troubles
  readonly #parts: readonly Part[]
  readonly #questions = new Map<Collection, SourceQuestions>()
  /** Encoded forms of objects that were just read. */
  readonly #encoded = new WeakMap<object, Buffer>()
  readonly #exchange: Exchange

  constructor(options: UpstreamOptions) {
    this.#options = options
    const { client, clock, state } = options
    this.#troubles = new Troubles(client, options.problem, () => state.isComplete)
    this.#exchange = new Exchange({
      client,
      clock,
      accept: PROTOBUF,
      encoded: (object, bytes) => this.#encoded.set(object, Buffer.from(bytes)),
    })
    const traits = newTraits()
    this.#parts = relayedResources(state.proxyName).map(resource => this.#part(resource, traits))
    state.heardMs = () => this.status.heardMs
    state.isPast = async (collection, revision) =>
      isOlder((await this.#questions.get(collection)?.present()) ?? '', revision)
    state.backfill = async (collection, revision) => await this.#questions.get(collection)?.readBack(revision)
  }

  get status(): SourceStatus {
    const heard = this.#parts
      .filter(({ reflector }) => !reflector.isAbsent)
      .map(({ reflector }) => reflector.heardMs ?? Number.NEGATIVE_INFINITY)
    const heardMs = Math.min(...heard)
    return {
      missing: this.#parts.filter(({ listed }) => !listed).map(({ name }) => name),
      heardMs: Number.isFinite(heardMs) ? heardMs : undefined,
      trouble: this.#troubles.text,
    }
  }

  start(): void {
    for (const { reflector } of this.#parts) reflector.start()
  }

  async stop(): Promise<void> {
    for (const each of this.#questions.values()) each.stop()
    await Promise.all(this.#parts.map(({ reflector }) => reflector.stop()))
  }

  #part(resource: Resource, traits: ServerTraits): Part {
    const { clock, random, state, isRelay = false, checkPeriodMs = CHECK_PERIOD_MS } = this.#options
    const type = RELAYED[resource.kind]
    const collection = state.collections[resource.kind]
    const told = {
      watch: isRelay ? 'difference' : 'changes',
      list: 'difference',
      'another-history': 'another-history',
    } as const
    let cluster: string | undefined
    const news = new News(type, state, collection)
    const reflector: Reflector<EncodedChange> = new Reflector<EncodedChange>({
      resource,
      clock,
      random,
      checkPeriodMs,
      traits,
      exchange: this.#exchange,
      parseObject: identity => this.#change(type, identity),
      deletion,
      sink: {
        events: batch => {
          for (const change of batch) {
            if (change.kind !== 'Encoded') continue
            collection.put(change.name, change.entry)
            cluster = change.cluster ?? cluster
            news.add(change)
          }
          return Promise.resolve()
        },
        reached: (revision, by) => {
          if (cluster !== undefined) state.identify(cluster)
          news.tell(revision, by)
          collection.seal(revision, told[by])
          if (type.kind === 'Service')
            this.#troubles.set(IDENTITY, state.isIdentified ? undefined : UNIDENTIFIED)
        },
        refusals: (list, objects) => this.#refused(part, list, objects),
        listed: () => {
          part.listed = true
          if (reflector.isAbsent) collection.absent()
          if (type.kind === 'Service') for (const each of Object.values(state.collections)) each.tell()
        },
        trouble: trouble => {
          this.#troubles.set(resource.name, trouble)
          if (trouble === undefined) for (const each of this.#parts) each.reflector.hurry()
        },
        checked: () => undefined,
        observed: () => undefined,
      },
    })
    const part: Part = { name: resource.name, collection, reflector, listed: false }
    if (isRelay) return part
    // A relay sends removals with the revision before them, and its state does not prove that of the API server.
    const toEntry = (object: ApiObject, name: string, version: string): Entry =>
      entryOf(type, { name, version, value: this.#bytesOf(object) })
    const asked = { clock, collection, exchange: this.#exchange, resource, traits, toEntry }
    this.#questions.set(collection, new SourceQuestions(asked))
    return part
  }

  /** Throws for a list of which most objects are refused: that is a failure of the answer. */
  #refused({ name, collection }: Part, list: readonly Refusal[], objects: number): void {
    collection.refused = list.length
    const [first] = list
    if (first === undefined) {
      this.#troubles.set(`${name} refused`, undefined)
      return
    }
    const text = `${list.length} of ${objects} objects are not relayed: ${first.object} ${first.reason}`
    if (list.length * 2 > objects) throw new WireError(text)
    this.#troubles.set(`${name} refused`, { scope: 'resource', text })
  }

  #change(type: RelayedType, { key, root, metadata }: WatchedIdentity): EncodedChange {
    const value = this.#bytesOf(root)
    const { uid, resourceVersion: version } = metadata
    return {
      ...(type.kind === 'Service' && key === IDENTITY ? { cluster: String(uid) } : {}),
      kind: 'Encoded',
      triggerMs: readTriggerTime({ metadata }) || undefined,
      name: key,
      entry: entryOf(type, { name: key, version: String(version), value }),
    }
  }

  #bytesOf(object: object): Buffer {
    const bytes = this.#encoded.get(object)
    if (bytes === undefined) throw new Error('it has no bytes in protobuf')
    return bytes
  }
}

/** Changes since the last word of the source, by which nodes are judged. */
class News {
  readonly #type: RelayedType
  readonly #state: RelayState
  readonly #collection: Collection
  #changes = 0
  #triggerMs: number | undefined

  constructor(type: RelayedType, state: RelayState, collection: Collection) {
    this.#type = type
    this.#state = state
    this.#collection = collection
  }

  add({ triggerMs }: EncodedChange): void {
    this.#triggerMs ??= triggerMs
    this.#changes++
  }

  /** Reports the changes before nodes can have them. */
  tell(revision: string, by: 'watch' | 'list' | 'another-history'): void {
    const { kind } = this.#type
    const isNew = this.#changes > 0 || this.#collection.revision === undefined || by === 'another-history'
    if (isNew && isProgrammed(kind))
      this.#state.reports.changed(kind, revision, { triggerMs: this.#triggerMs, by })
    this.#changes = 0
    this.#triggerMs = undefined
  }
}

interface Named {
  readonly name: string
  readonly version: string
  readonly value: Buffer
}

function entryOf({ typeUrl }: RelayedType, { name, version, value }: Named): Entry {
  const resource = encodeMessage(discovery.Resource, {
    version,
    resource: { type_url: typeUrl, value },
    name,
  })
  return { version, resource }
}

function deletion(_kind: WatchedKind, name: string): EncodedChange {
  return { kind: 'Encoded', name, entry: undefined }
}

/** The resources that nodes of this proxy watch, with all Nodes. */
function relayedResources(proxyName: string): readonly Resource[] {
  const serviceProxyName = proxyName === '' ? undefined : proxyName
  return watchedResources({ nodeName: '', serviceProxyName }).map(resource =>
    resource.kind === 'Node' ? { ...resource, fieldSelector: '', only: undefined } : resource,
  )
}

interface SourceQuestionsOptions {
  readonly clock: Clock
  readonly collection: Collection
  readonly exchange: Exchange
  readonly resource: Resource
  readonly traits: ServerTraits
  readonly toEntry: (object: ApiObject, name: string, version: string) => Entry
}

/** Readers of a relay that restarts come at about the same time: one request is for all of them. */
const GATHER_MS = 100
/** The API server sends a bookmark 2 s before the end of a watch: it means that all changes up to then were sent. */
const WATCH_SECONDS = 3
const ANSWER_MS_MAX = 8_000
/** Further attempts with a newer revision, where the oldest one is too old for the source. */
const ATTEMPTS_MAX = 3
/** More belong into a whole state. */
const CHANGES_MAX = 20_000
/** Minimum time between two requests for the present revision: what readers claim costs the source no more than that. */
const PRESENT_MS = 1_000

/** Asks the API server about a collection for the readers of a relay that has less than they hold, or less of the past. */
class SourceQuestions {
  readonly #options: SourceQuestionsOptions
  readonly #stop = new AbortController()
  /** Revisions that the next request is for. */
  readonly #revisions: string[] = []
  #running: Promise<void> | undefined
  #next: Promise<void> | undefined
  #present: Promise<string> | undefined
  /** The source does not know the changes since then. */
  #failed = ''

  constructor(options: SourceQuestionsOptions) {
    this.#options = options
  }

  stop(): void {
    this.#stop.abort()
  }

  /**
   * Reads the changes before the first list of the relay, which the source remembers: by that readers resume at a relay that
   * has just started. Resolves when the source was asked.
   */
  readBack(revision: string): Promise<void> {
    if (this.#stop.signal.aborted || this.#isHopeless(revision)) return Promise.resolve()
    this.#revisions.push(revision)
    this.#next ??= this.#readBackNext()
    return this.#next
  }

  async #readBackNext(): Promise<void> {
    await this.#running
    await pause(this.#options.clock, GATHER_MS, this.#stop.signal)
    this.#running = this.#next
    this.#next = undefined
    await this.#answer(this.#revisions.splice(0))
  }

  /** Begins with the oldest. One that lies about its revision does not keep the others from theirs. */
  async #answer(revisions: readonly string[]): Promise<void> {
    let wanted = revisions
      .filter(revision => isPosition(revision) && !this.#isHopeless(revision))
      .sort((a, b) => compareVersions(a, b) ?? 0)
    for (let attempt = 0; attempt < ATTEMPTS_MAX && !this.#stop.signal.aborted; attempt++) {
      const [oldest] = wanted
      if (oldest === undefined || !isOlder(oldest, this.#options.collection.floor)) return
      if (await this.#attempt(oldest)) return
      wanted = wanted.slice(Math.max(1, wanted.length >> 1)).filter(each => !this.#isHopeless(each))
    }
  }

  #isHopeless(revision: string): boolean {
    return this.#failed === revision || isOlder(revision, this.#failed)
  }

  async #attempt(from: string): Promise<boolean> {
    const { clock, collection } = this.#options
    const floor = collection.floor
    try {
      const limits = { limitMs: ANSWER_MS_MAX, signal: this.#stop.signal }
      const changes = await runWithin(clock, limits, signal => this.#read({ from, to: floor }, signal))
      return changes !== undefined && collection.prepend(changes, from, floor)
    } catch (error) {
      if (failureOfError(error).kind === 'expired') this.#failed = from
      return false
    }
  }

  /** Undefined if the source has not confirmed that it has sent everything up to `to`. */
  async #read(
    { from, to }: { readonly from: string; readonly to: string },
    signal: AbortSignal,
  ): Promise<readonly Change[] | undefined> {
    const { collection, exchange, resource, traits } = this.#options
    const path = requestPath(servedResource(resource, traits), watchQuery(from, WATCH_SECONDS))
    const stream = await exchange.watch({ kind: resource.kind, path, signal })
    const changes: Change[] = []
    let bytes = 0
    for await (const { events } of stream)
      for (const event of events) {
        if (event.type === 'ERROR') throw new FailureError(failureIn(event.object))
        const revision = versionOf(event.object)?.resourceVersion ?? ''
        if (isOlder(to, revision)) return changes
        const change = this.#changeOf(event, revision)
        if (change !== undefined) changes.push(change)
        bytes += change?.entry?.resource.length ?? 0
        if (revision === to) return changes
        if (changes.length > CHANGES_MAX || bytes > collection.historyBytesMax) return undefined
      }
    return undefined
  }

  #changeOf({ type, object }: WatchEvent, revision: string): Change | undefined {
    if (type === 'BOOKMARK' || isLeftOut(this.#options.resource, object)) return undefined
    const name = watchedIdentity(object)?.key ?? ''
    if (type === 'DELETED') return { revision, name, entry: undefined }
    return { revision, name, entry: this.#options.toEntry(object, name, revision) }
  }

  /** Gives the revision that the source has at a time after the question; empty if it does not answer. */
  present(): Promise<string> {
    this.#present ??= this.#readPresent()
    return this.#present
  }

  async #readPresent(): Promise<string> {
    const { clock, exchange, resource, traits } = this.#options
    await pause(clock, PRESENT_MS, this.#stop.signal)
    // An answer that began before a question does not answer it.
    this.#present = undefined
    // Without a resourceVersion the list is consistent: no API server may answer from an old cache.
    const path = requestPath(servedResource(resource, traits), { limit: '1' })
    const list = (signal: AbortSignal) =>
      exchange.list({ kind: resource.kind, path, signal }, () => undefined)
    return await runWithin(clock, { limitMs: ANSWER_MS_MAX, signal: this.#stop.signal }, list).then(
      ({ resourceVersion }) => resourceVersion,
      () => '',
    )
  }
}

function failureIn(object: ApiObject): Failure {
  const status = statusOf(object)
  return failureOfStatus(status?.code ?? 0, status)
}
