import type { Clock } from '../base/clock.ts'
import { WireError } from '../base/errors.ts'
import type { Refusal, WatchedIdentity, WatchedKind } from '../model/fields.ts'
import { readTriggerTime } from '../model/parse.ts'
import { type ApiClient, type Resource, watchedResources } from '../source/kube/api-client.ts'
import { Exchange } from '../source/kube/exchange.ts'
import { Troubles } from '../source/kube/kube-source.ts'
import { isOlder } from '../source/kube/object-index.ts'
import { Reflector } from '../source/kube/reflector.ts'
import type { ApiObject } from '../source/kube/wire/tables.ts'
import type { SourceProblem, SourceStatus } from '../source/source.ts'
import { encodeMessage } from '../wire/protobuf/encoder.ts'
import type { Collection } from './collection.ts'
import type { Entry } from './frames.ts'
import { isProgrammed } from './judgement.ts'
import { discovery } from './schema.ts'
import { SourceQuestions } from './source-questions.ts'
import type { RelayState } from './state.ts'
import { RELAYED, type RelayedType } from './types.ts'

interface UpstreamOptions {
  /** Stays open: its owner closes it, after stop(). */
  readonly client: ApiClient
  readonly clock: Clock
  readonly random: () => number
  readonly state: RelayState
  /** The source is a relay, which does not mark the changes that come from lists. */
  readonly isRelay?: boolean
  readonly problem: (problem: SourceProblem) => void
  /** As in a KubeSource. */
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
/** The object that identifies a cluster. Every client that may watch Services sees it. */
const IDENTITY = 'default/kubernetes'
const UNIDENTIFIED = {
  scope: 'resource',
  text: 'the source has no such Service, which every API server creates; nodes are not served without it',
} as const

/** What readers are told of a revision that the source reached in these ways. */
const TOLD = { list: 'difference', 'another-history': 'another-history' } as const

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
    this.#parts = relayedResources(state.proxyName).map(resource => this.#part(resource))
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

  #part(resource: Resource): Part {
    const { clock, random, state, isRelay = false, checkPeriodMs = 600_000 } = this.#options
    const type = RELAYED[resource.kind]
    const collection = state.collections[resource.kind]
    const told = { ...TOLD, watch: isRelay ? 'difference' : 'changes' } as const
    let cluster: string | undefined
    // Of the changes since the last revision, by which nodes are judged.
    let hasChanged = false
    let triggerMs: number | undefined
    const reflector: Reflector<EncodedChange> = new Reflector<EncodedChange>({
      resource,
      clock,
      random,
      checkPeriodMs,
      exchange: this.#exchange,
      parseObject: identity => this.#change(type, identity),
      deletion,
      sink: {
        events: batch => {
          for (const change of batch) {
            if (change.kind !== 'Encoded') continue
            collection.put(change.name, change.entry)
            cluster = change.cluster ?? cluster
            hasChanged = true
            triggerMs ??= change.triggerMs
          }
          return Promise.resolve()
        },
        reached: (revision, by) => {
          if (cluster !== undefined) state.identify(cluster)
          const isNew = hasChanged || collection.revision === undefined || by === 'another-history'
          // Before nodes can have them.
          if (isNew && isProgrammed(type.kind)) state.reports.changed(type.kind, revision, { triggerMs, by })
          hasChanged = false
          triggerMs = undefined
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
    // A relay sends removals with the revision before them, and its state does not prove that of the API server.
    if (!isRelay) this.#askAbout(resource, collection)
    return part
  }

  #askAbout(resource: Resource, collection: Collection): void {
    const toEntry = (object: ApiObject, name: string, version: string): Entry =>
      entryOf(RELAYED[resource.kind], { name, version, value: this.#bytesOf(object) })
    const { clock } = this.#options
    const asked = { clock, collection, exchange: this.#exchange, resource, toEntry }
    this.#questions.set(collection, new SourceQuestions(asked))
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
