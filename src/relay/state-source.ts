import { type Clock, Slice, slicingOf } from '../base/clock.ts'
import { WireError } from '../base/errors.ts'
import { Newest } from '../base/queues.ts'
import { isRefusal, type Refusal } from '../model/fields.ts'
import { parserOf, watchedIdentity } from '../model/parse.ts'
import { type NodeInfo, type SourceEvent, ValuePool } from '../model/snapshot.ts'
import { type ApiKind, tableFor, withType } from '../source/kube/wire/tables.ts'
import type { Source, SourceHandlers, SourceStatus } from '../source/source.ts'
import { decodeMessage } from '../wire/protobuf/decoder.ts'
import type { Entry } from './frames.ts'
import { discovery } from './schema.ts'
import type { RelayState } from './state.ts'

interface StateSourceOptions {
  readonly clock: Clock
  readonly state: RelayState
  readonly nodesChanged: () => void
}

/** The objects of Services. Nodes are read one by one, on request. */
const KINDS = ['Service', 'EndpointSlice'] as const
type Kind = (typeof KINDS)[number]

/** The objects that a relay holds, read as a node reads them. Of changes that wait only the last one of an object is read. */
export class StateSource implements Source {
  readonly #options: StateSourceOptions
  readonly #parse: (identity: NonNullable<ReturnType<typeof watchedIdentity>>) => SourceEvent | Refusal
  readonly #waiting: Readonly<Record<Kind, Map<string, Entry | undefined>>> = {
    Service: new Map(),
    EndpointSlice: new Map(),
  }
  readonly #nodes = new WeakMap<Entry, NodeInfo>()
  #handlers: SourceHandlers | undefined
  readonly #reading = new Newest<true>(() => this.#work())
  #isSynced = false
  #isStopped = false

  constructor(options: StateSourceOptions) {
    this.#options = options
    const headlessSlices = options.state.proxyName !== ''
    this.#parse = parserOf(new ValuePool(), { details: true, headlessSlices })
  }

  get status(): SourceStatus {
    return {
      missing: this.#isSynced ? [] : ['relay'],
      heardMs: this.#options.state.heardMs(),
      trouble: undefined,
    }
  }

  get #collections(): RelayState['collections'] {
    return this.#options.state.collections
  }

  start(handlers: SourceHandlers): Promise<void> {
    this.#handlers = handlers
    for (const kind of KINDS) {
      const collection = this.#collections[kind]
      this.#put(kind, collection.entries())
      collection.published = changes => this.#put(kind, changes)
    }
    this.#collections.Node.published = () => {
      this.#wake()
      this.#options.nodesChanged()
    }
    return Promise.resolve()
  }

  async stop(): Promise<void> {
    this.#isStopped = true
    for (const kind of [...KINDS, 'Node'] as const) this.#collections[kind].published = () => undefined
    await this.#reading.settled()
  }

  /** Undefined for one that does not exist, or cannot be read. */
  nodeOf(name: string): NodeInfo | undefined {
    const entry = this.#collections.Node.get(name)
    if (entry === undefined) return undefined
    const known = this.#nodes.get(entry)
    if (known !== undefined) return known
    const event = this.#read('Node', name, entry)
    if (event.kind !== 'Node' || event.value === undefined) return undefined
    this.#nodes.set(entry, event.value)
    return event.value
  }

  #put(kind: Kind, changes: Iterable<readonly [string, Entry | undefined]>): void {
    for (const [key, entry] of changes) this.#waiting[kind].set(key, entry)
    this.#wake()
  }

  #wake(): void {
    if (!this.#isStopped) this.#reading.offer(true)
  }

  async #work(): Promise<void> {
    const slice = new Slice(slicingOf(this.#options.clock))
    // Changes that are published together are read together.
    await slice.next()
    const isWhole = [...KINDS, 'Node' as const].every(kind => this.#collections[kind].revision !== undefined)
    const batch: SourceEvent[] = []
    for (const kind of KINDS) {
      const changes = [...this.#waiting[kind]]
      this.#waiting[kind].clear()
      for (const [key, entry] of changes) {
        batch.push(entry === undefined ? { kind, key, value: undefined } : this.#read(kind, key, entry))
        if (slice.isOver) await slice.next()
      }
    }
    if (batch.length > 0 && !this.#isStopped) await this.#handlers?.events(batch)
    if (!isWhole || this.#isSynced || this.#isStopped) return
    this.#isSynced = true
    this.#handlers?.synced()
  }

  /** An unusable object is ignored: nodes report the reason. */
  #read(kind: ApiKind, key: string, { resource }: Entry): SourceEvent {
    try {
      const value = decodeMessage(discovery.Resource, resource).resource?.value ?? Buffer.alloc(0)
      const object = withType(
        decodeMessage(tableFor({ kind, details: true, objectBytesMax: 0 }), value),
        kind,
      )
      const identity = watchedIdentity(object)
      const parsed = identity && this.#parse(identity)
      if (parsed !== undefined && !isRefusal(parsed)) return parsed
    } catch (error) {
      if (!(error instanceof WireError)) throw error
    }
    return { kind, key, value: undefined }
  }
}
