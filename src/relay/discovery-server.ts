import {
  type Call,
  type CallHandler,
  FAILED_PRECONDITION,
  INVALID_ARGUMENT,
  OK,
  RpcError,
  UNAVAILABLE,
} from '../api/grpc/rpc.ts'
import type { Cancel, Clock } from '../base/clock.ts'
import { isDnsSubdomain } from '../model/fields.ts'
import { decodeMessage } from '../wire/protobuf/decoder.ts'
import type { MessageOf } from '../wire/protobuf/table.ts'
import { discovery } from './schema.ts'
import type { RelayState } from './state.ts'
import { tooMuch } from './subscribed-names.ts'
import { type Beginning, Subscription } from './subscription.ts'
import { FRESH, METADATA, PROTOCOL, RELAYED_TYPES, shortLine, WILDCARD } from './types.ts'

type Request = MessageOf<typeof discovery.DeltaDiscoveryRequest>

interface DiscoveryOptions {
  readonly state: RelayState
  readonly clock: Clock
  /** A client could not use what it was sent. */
  readonly rejected?: ((text: string) => void) | undefined
  /** The Node that this client is; undefined for one that is none. Absent where clients are believed. */
  readonly nodeOf?: (call: Call) => string | undefined
  /** Gives the name of a client that may report for any node, as relays do for their readers; undefined for other clients. */
  readonly trustedAs?: (call: Call) => string | undefined
}

export interface DiscoveryCounts {
  readonly streams: number
  readonly subscriptions: number
  /** Readers that were too slow, since the start. */
  readonly evicted: number
  readonly rejected: number
}

const NAMES_MAX = 1_024

/** Serves incremental xDS: `DeltaAggregatedResources`. */
export class DiscoveryServer {
  readonly #options: DiscoveryOptions
  readonly #host: DeltaStreamHost
  readonly #streams = new Set<DeltaStream>()
  #evicted = 0
  #rejected = 0
  #rejectedMs = Number.NEGATIVE_INFINITY
  #cancelSweep: Cancel | undefined

  constructor(options: DiscoveryOptions) {
    this.#options = options
    this.#host = {
      ...options,
      evicted: () => this.#evicted++,
      rejected: text => this.#rejects(text),
      closed: stream => this.#streams.delete(stream),
    }
  }

  get counts(): DiscoveryCounts {
    const { state } = this.#options
    return {
      streams: this.#streams.size,
      subscriptions: state.readers,
      evicted: this.#evicted,
      rejected: this.#rejected,
    }
  }

  readonly deltas = (call: Call): CallHandler => {
    const stream = new DeltaStream(call, this.#host)
    this.#streams.add(stream)
    this.#cancelSweep ??= this.#sweepLater()
    return stream
  }

  #rejects(text: string): void {
    const { clock, rejected } = this.#options
    this.#rejected++
    // A log line every 10 s is enough.
    if (clock.nowMs() - this.#rejectedMs < 10_000) return
    this.#rejectedMs = clock.nowMs()
    rejected?.(shortLine(text))
  }

  close(): void {
    this.#cancelSweep?.()
    for (const stream of [...this.#streams]) stream.closed()
  }

  #sweepLater(): Cancel {
    // A look every 5 s at what is due after a minute: a word to a quiet reader, and the end of one that is silent.
    return this.#options.clock.after(5_000, () => {
      for (const stream of [...this.#streams]) stream.sweep()
      this.#cancelSweep = this.#streams.size > 0 ? this.#sweepLater() : undefined
    })
  }
}

interface DeltaStreamHost extends DiscoveryOptions {
  readonly evicted: () => void
  readonly rejected: (text: string) => void
  readonly closed: (stream: DeltaStream) => void
}

/** One client, with a subscription for each requested type. */
class DeltaStream implements CallHandler {
  /** The versions of 10,000 objects, which clients without a token resume by. */
  readonly requestBytesMax = 1024 * 1024
  readonly #call: Call
  readonly #options: DeltaStreamHost
  readonly #subscriptions = new Map<string, Subscription>()
  #metadata: Metadata = {}
  /** The Node that this client is, once it has reported; null for a client that reports for all. */
  #name: string | null | undefined
  /** The reporter on this stream: a node, or a client that reports for all. */
  #user = ''
  readonly #joined = new Set<string>()

  constructor(call: Call, options: DeltaStreamHost) {
    this.#call = call
    this.#options = options
  }

  message(bytes: Buffer): void {
    for (const subscription of this.#subscriptions.values()) if (subscription.takeReceipt(bytes)) return
    const request = decodeMessage(discovery.DeltaDiscoveryRequest, bytes)
    if (request.node !== undefined) {
      const { [METADATA.report]: report, ...metadata } = metadataOf(request)
      this.#metadata = metadata
      if (report !== undefined) this.#takeReport(request.node.id ?? '', report)
    }
    const { type_url = '', response_nonce: nonce = '', error_detail: error } = request
    if (error !== undefined) this.#options.rejected(error.message ?? '')
    const known = this.#subscriptions.get(type_url)
    if (known === undefined) this.#subscribe(request, type_url)
    else this.#change(known, request)
    if (nonce !== '') this.#subscriptions.get(type_url)?.acknowledged(nonce)
  }

  /** Reads the report before the request is judged: a node reports also to a relay that does not serve it. */
  #takeReport(id: string, text: string): void {
    const { state, nodeOf, trustedAs } = this.#options
    // Reading a certificate takes longer than reading a report.
    if (this.#name === undefined) {
      const user = trustedAs?.(this.#call)
      this.#name = nodeOf === undefined || user !== undefined ? null : (nodeOf(this.#call) ?? '')
      this.#user = user ?? this.#name ?? ''
    }
    if (!isDnsSubdomain(id) || (this.#name !== null && this.#name !== id)) {
      state.reports.refuseOther()
      return
    }
    const isFirst = this.#joined.size === 0
    if (!this.#joined.has(id) && state.reports.joined(id, this.#user, isFirst)) this.#joined.add(id)
    state.reports.take(id, text)
  }

  drained(): void {
    for (const subscription of this.#subscriptions.values()) subscription.drained()
  }

  sweep(): void {
    for (const subscription of this.#subscriptions.values()) {
      if (subscription.isStalled) {
        subscription.evicted()
        return
      }
      subscription.repeat()
    }
  }

  ended(): void {
    this.#call.end(OK)
  }

  closed(): void {
    this.#options.closed(this)
    for (const subscription of this.#subscriptions.values()) subscription.close()
    this.#subscriptions.clear()
    for (const name of this.#joined) this.#options.state.reports.left(name, this.#user)
    this.#joined.clear()
  }

  /** `before` is the subscription of this type that the client has ended on this stream. */
  #subscribe(request: Request, typeUrl: string, before?: Subscription): void {
    const { state, clock, evicted } = this.#options
    const type = RELAYED_TYPES.find(each => each.typeUrl === typeUrl)
    if (type === undefined)
      throw new RpcError(INVALID_ARGUMENT, `unknown type ${JSON.stringify(typeUrl.slice(0, 200))}`)
    this.#check()
    const names = request.resource_names_subscribe ?? []
    refuseMany(names.length)
    const beginning = this.#beginning(request)
    const subscription = new Subscription({
      state,
      collection: state.collections[type.kind],
      clock,
      call: this.#call,
      // The revision in the metadata belongs to the first subscription: the client may hold less by now.
      beginning: before === undefined ? beginning : { ...beginning, token: undefined },
      before,
      // A first request without names subscribes to all, as from clients that are older than the name of the wildcard.
      isWildcard: names.length === 0 || names.includes(WILDCARD),
      evicted,
    })
    this.#subscriptions.set(typeUrl, subscription)
    subscription.begin(names)
  }

  #change(subscription: Subscription, request: Request): void {
    const { resource_names_subscribe: more = [], resource_names_unsubscribe: fewer = [] } = request
    const isEnded = subscription.isWildcard ? fewer.includes(WILDCARD) : more.includes(WILDCARD)
    if (isEnded) subscription.close()
    if (subscription.isClosed) {
      if (more.length > 0) this.#subscribe(request, request.type_url ?? '', subscription)
      return
    }
    if (more.length === 0 && fewer.length === 0) return
    refuseMany(subscription.nameCount + more.length)
    subscription.unsubscribe(fewer)
    subscription.subscribe(more)
  }

  /** Refuses what this relay has no answer for. */
  #check(): void {
    const { state } = this.#options
    const proxyName = this.#metadata[METADATA.proxy]
    if (proxyName !== undefined && proxyName !== state.proxyName)
      throw new RpcError(
        FAILED_PRECONDITION,
        `this relay serves the proxy ${JSON.stringify(state.proxyName)}, not ${JSON.stringify(proxyName)}`,
      )
    const protocols = this.#metadata[METADATA.protocol] ?? PROTOCOL
    if (!protocols.split(',').includes(PROTOCOL))
      throw new RpcError(
        FAILED_PRECONDITION,
        `this relay speaks protocol ${PROTOCOL}, not ${JSON.stringify(protocols.slice(0, 200))}`,
      )
    if (this.#metadata[METADATA.age] === FRESH && state.isComplete && state.isStale)
      throw new RpcError(UNAVAILABLE, 'the relay is stale: its source has been silent for too long')
  }

  #beginning({ initial_resource_versions: versions = {} }: Request): Beginning {
    const revision = this.#metadata[METADATA.revision] ?? ''
    const cluster = this.#metadata[METADATA.cluster] ?? ''
    const atLeast = this.#metadata[METADATA.atLeast] ?? ''
    return { token: revision === '' ? undefined : { revision, cluster }, atLeast, versions }
  }
}

type Metadata = Readonly<Partial<Record<(typeof METADATA)[keyof typeof METADATA], string>>>

const VALUE_LENGTH_MAX = 1_024

/** The keys that a relay knows: a client may send any number of others. */
function metadataOf({ node }: Request): Metadata {
  const metadata: { -readonly [Key in keyof Metadata]: string } = {}
  for (const { key, value } of node?.metadata?.fields ?? []) {
    const known = Object.values(METADATA).find(each => each === key)
    const text = value?.string_value ?? ''
    if (known === undefined) continue
    if (known !== METADATA.report && text.length > VALUE_LENGTH_MAX)
      throw new RpcError(
        INVALID_ARGUMENT,
        `the value of ${known} has more than ${VALUE_LENGTH_MAX} characters`,
      )
    metadata[known] = text
  }
  return metadata
}

function refuseMany(names: number): void {
  if (names > NAMES_MAX) throw tooMuch(`${names} names are subscribed to; the limit is ${NAMES_MAX}`)
}
