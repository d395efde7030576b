import { type Clock, restMs } from '../base/clock.ts'
import type { ApiKind } from '../source/kube/wire/tables.ts'
import { Collection } from './collection.ts'
import { NodeReports } from './reports.ts'
import { RELAYED, type RelayedType } from './types.ts'

interface RelayStateOptions {
  readonly clock: Clock
  /** The name of the proxy whose Services are relayed; empty for the proxy without a name. */
  readonly proxyName: string
  readonly historyBytesMax?: number
  /** Limits the responses that go to a single reader, all of them together; 64 MiB by default. */
  readonly ownBytesMax?: number
  /** Milliseconds since 1970. */
  readonly wallMs?: () => number
}

/** A source that has been silent for so long is stale: the API server sends a bookmark every minute. */
export const STALE_MS = 150_000
/** Rounds with their acknowledgements. The last reader is to have a change within 250 ms. */
const ROUND_PACE = { share: 0.46, minMs: 5, maxMs: 140 } as const

/** The collections of a relay, one for each type, and the facts about their source. */
export class RelayState {
  readonly proxyName: string
  readonly collections: Readonly<Record<ApiKind, Collection>>
  readonly reports: NodeReports
  readonly ownFrames: OwnFrames
  #cluster = ''
  readers = 0
  /** Memory of the names that they subscribe to. */
  nameBytes = 0
  /** Monotonic milliseconds of the last word from the part of the source that has been silent longest. */
  heardMs: () => number | undefined = () => undefined
  /**
   * Queries the source for the changes that lead from `revision` to the floor of the collection. Resolves when it has answered,
   * whatever it has.
   */
  backfill: (collection: Collection, revision: string) => Promise<void> = () => Promise.resolve()
  /** Queries whether the state of the source is older than this revision; false without an answer. */
  isPast: (collection: Collection, revision: string) => Promise<boolean> = () => Promise.resolve(false)
  readonly #clock: Clock

  constructor({ clock, proxyName, wallMs, ownBytesMax, ...limits }: RelayStateOptions) {
    this.#clock = clock
    this.ownFrames = new OwnFrames(clock, ownBytesMax)
    this.reports = new NodeReports({ clock, wallMs, state: this })
    this.proxyName = proxyName
    const shared = { ...limits, clock, identifier: () => this.cluster, spacingMs }
    const collectionOf = ({ typeUrl }: RelayedType): Collection => new Collection({ ...shared, typeUrl })
    this.collections = {
      Service: collectionOf(RELAYED.Service),
      EndpointSlice: collectionOf(RELAYED.EndpointSlice),
      Node: collectionOf(RELAYED.Node),
      ServiceCIDR: collectionOf(RELAYED.ServiceCIDR),
    }
  }

  /** The identity of the cluster; empty until it is known. */
  get cluster(): string {
    return this.#cluster
  }

  /** The Service that names the cluster was read. Every cluster has one, and only the proxy without a name reads it. */
  get isIdentified(): boolean {
    const { revision } = this.collections.Service
    return this.#cluster !== '' || (this.proxyName !== '' && revision !== undefined)
  }

  /** Sets the identity of the cluster. No reader continues from the state of another one. */
  identify(cluster: string): void {
    if (cluster === this.#cluster) return
    const isAnother = this.#cluster !== ''
    this.#cluster = cluster
    for (const collection of Object.values(this.collections))
      if (isAnother) collection.restart()
      // Readers of all types wait until it is known which cluster this is.
      else collection.tell()
  }

  /** Every collection was listed once, or does not exist, and the cluster is known. */
  get isComplete(): boolean {
    const all = Object.values(this.collections)
    return this.isIdentified && all.every(({ revision, isAbsent }) => revision !== undefined || isAbsent)
  }

  get isStale(): boolean {
    const heardMs = this.heardMs()
    return heardMs === undefined || this.#clock.nowMs() - heardMs > STALE_MS
  }

  get historyBytes(): number {
    return Object.values(this.collections).reduce((sum, { history }) => sum + history.bytes, 0)
  }
}

/**
 * A publication costs a write for each reader: with many of them, more changes go into one. It waits for the end of the
 * round before it, since a reader that owes an acknowledgement gets nothing.
 */
function spacingMs(cpuMs: number): number {
  // A process that has rested for 2 ms since a round began has no acknowledgements of it to read. One that does not come
  // to rest within 180 ms is busy with other things than rounds, or has too many readers.
  return Math.max(restMs(cpuMs, ROUND_PACE), Math.min(cpuMs + 2, 180))
}

/** A reader that is sent responses of its own. */
interface OwnReader {
  /** Its call and its connection end. */
  dropped(): void
}

interface Held {
  bytes: number
  readonly sinceMs: number
}

/**
 * Bounds what is written for one reader alone and may still be in this process. Beyond, the reader that holds most for longest
 * is dropped: one that reads holds a response for milliseconds.
 */
class OwnFrames {
  readonly #clock: Clock
  readonly #bytesMax: number
  readonly #held = new Map<OwnReader, Held>()
  #bytes = 0

  /** The default has 256 responses that are as large as a response gets before its next object. */
  constructor(clock: Clock, bytesMax = 64 * 1024 * 1024) {
    this.#clock = clock
    this.#bytesMax = bytesMax
  }

  hold(reader: OwnReader, bytes: number): void {
    const held = this.#held.get(reader) ?? { bytes: 0, sinceMs: this.#clock.nowMs() }
    held.bytes += bytes
    this.#held.set(reader, held)
    this.#bytes += bytes
    while (this.#bytes > this.#bytesMax) this.#dropWorst(reader)
  }

  /** It has read everything, or is gone. */
  release(reader: OwnReader): void {
    this.#bytes -= this.#held.get(reader)?.bytes ?? 0
    this.#held.delete(reader)
  }

  #dropWorst(worst: OwnReader): void {
    const nowMs = this.#clock.nowMs()
    let most = -1
    for (const [reader, { bytes, sinceMs }] of this.#held) {
      const weight = bytes * (nowMs - sinceMs)
      if (weight > most) [worst, most] = [reader, weight]
    }
    this.release(worst)
    worst.dropped()
  }
}
