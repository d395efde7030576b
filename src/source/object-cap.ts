import { compareTexts } from '../base/text.ts'
import {
  isRefusal,
  type Json,
  type Refusal,
  type WatchedIdentity,
  type WatchedKind,
} from '../model/fields.ts'
import { sliceServiceOf } from '../model/parse.ts'
import { type EndpointSlice, NO_HINTS, type Service } from '../model/service.ts'
import type { SourceEvent } from '../model/snapshot.ts'

/** An object, by its key, and the time of its creation in Unix seconds. */
export interface Aged {
  readonly key: string
  readonly bornS: number
}

/** An object that may have to stay out. */
export interface Candidate extends Aged {
  /** The Service that the object is, or belongs to; undefined where it names none. */
  readonly service?: string | undefined
}

export interface Weight extends Omit<Candidate, 'key'> {
  readonly parts: number
}

/** Reads the time of creation. An object without one is the newest: it has no seniority to show. */
export function bornSIn({ creationTimestamp }: Json): number {
  const bornMs = typeof creationTimestamp === 'string' ? Date.parse(creationTimestamp) : Number.NaN
  return Number.isNaN(bornMs) ? Number.POSITIVE_INFINITY : bornMs / 1_000
}

/** The oldest object that there is no room for, with its parts. */
interface Cut extends Aged {
  parts: number
}

/** Share of the cap that may be held beyond it until the newest objects go, so that not each change sorts all of them. */
const SLACK = 1 / 64
/** Refused objects that are named; the others are only refused. */
const NAMED_MAX = 500
/** Shares of all parts. Of objects that a cluster usually has, those of endpoints are the larger ones. */
const SHARES: ReadonlyMap<WatchedKind, number> = new Map([
  ['Service', 1 / 3],
  ['EndpointSlice', 2 / 3],
])

/** Gives a cap for the objects of this kind; undefined where nothing bounds them. */
export function objectCapOf(kind: WatchedKind, partsMax: number | undefined): ObjectCap | undefined {
  const share = SHARES.get(kind)
  return partsMax === undefined || share === undefined
    ? undefined
    : new ObjectCap(Math.floor(share * partsMax))
}

/**
 * Bounds the objects of one resource by their sum, in parts: the oldest objects are held up to the cap, and from the first
 * that does not fit on, all newer ones are refused, whatever order they come in. A refused object takes no memory but, of
 * the first 500, its name.
 */
export class ObjectCap {
  readonly partsMax: number
  readonly #held = new Map<string, Weight>()
  readonly #refused = new Map<string, string | undefined>()
  #parts = 0
  #cut: Cut | undefined

  constructor(partsMax: number) {
    this.partsMax = partsMax
  }

  /** Keys of refused objects, with their Services. */
  get refused(): Iterable<readonly [string, string | undefined]> {
    return this.#refused
  }

  get isCut(): boolean {
    return this.#cut !== undefined
  }

  /** Tests whether the oldest refused object fits. */
  get hasRoom(): boolean {
    return this.#cut !== undefined && this.#parts + this.#cut.parts <= this.partsMax
  }

  /** Tests whether an object that is not held has to stay out: it is no older than the oldest refused one. */
  refuses({ key, bornS }: Aged): boolean {
    return this.#cut !== undefined && !this.#held.has(key) && order({ key, bornS }, this.#cut) >= 0
  }

  /**
   * Refuses an object. The oldest refused one is the first that comes back: `parts` gives its present size. True when the
   * name is new.
   */
  refuse({ key, bornS, service }: Candidate, parts: () => number): boolean {
    const cut = this.#cut
    if (cut?.key === key && cut.bornS === bornS) cut.parts = parts()
    return this.#name(key, service)
  }

  #name(key: string, service: string | undefined): boolean {
    if (this.#refused.has(key) || this.#refused.size >= NAMED_MAX) return false
    this.#refused.set(key, service)
    return true
  }

  /** A refused object is gone. True when it was named. */
  unrefuse(key: string): boolean {
    if (this.#cut?.key === key) this.#cut.parts = 0
    return this.#refused.delete(key)
  }

  weightOf(key: string): Weight | undefined {
    return this.#held.get(key)
  }

  put(key: string, weight: Weight): void {
    this.#parts += weight.parts - (this.#held.get(key)?.parts ?? 0)
    this.#held.set(key, weight)
  }

  remove(key: string): void {
    this.#parts -= this.#held.get(key)?.parts ?? 0
    this.#held.delete(key)
  }

  /** Gives the newest objects, which have to go because more is held than the cap allows. */
  overflow(slack = SLACK): readonly string[] {
    if (this.#parts <= this.partsMax * (1 + slack)) return []
    const oldestFirst = [...this.#held].map(([key, weight]) => ({ key, ...weight })).sort(order)
    const gone: string[] = []
    while (this.#parts > this.partsMax) {
      const newest = oldestFirst.pop()
      if (newest === undefined) break
      this.remove(newest.key)
      this.#cut = newest
      this.#name(newest.key, newest.service)
      gone.push(newest.key)
    }
    return gone
  }
}

function order(a: Aged, b: Aged): number {
  return a.bornS === b.bornS ? compareTexts(a.key, b.key) : a.bornS - b.bornS
}

type Parsed = { readonly kind: string } | Refusal | undefined

export function agedIn({ key, metadata }: WatchedIdentity): Aged {
  return { key, bornS: bornSIn(metadata) }
}

export function candidateOf(identity: WatchedIdentity): Candidate {
  const service = identity.kind === 'Service' ? identity.key : sliceServiceOf(identity)
  return { ...agedIn(identity), service }
}

/** The Service is the text that the parsed object has: one of its own would take memory for each object. */
export function weightOf({ kind, key, metadata }: WatchedIdentity, parsed: Parsed): Weight {
  const isSlice = parsed !== undefined && !isRefusal(parsed) && isCounted(parsed) && parsed.kind !== 'Service'
  const service = isSlice ? parsed.value?.service : kind === 'Service' ? key : undefined
  return { bornS: bornSIn(metadata), service, parts: partsIn(parsed) }
}

/** An object without a value counts as well, because its version is held. */
export function partsIn(parsed: Parsed): number {
  const isLarge = parsed !== undefined && !isRefusal(parsed) && isCounted(parsed)
  return isLarge && parsed.value !== undefined ? partsOf(parsed.value) : OBJECT_PARTS
}

type CountedEvent = Extract<SourceEvent, { readonly kind: 'Service' | 'EndpointSlice' }>
type CountedObject = Service | EndpointSlice

export function isCounted(event: { readonly kind: string }): event is CountedEvent {
  return event.kind === 'Service' || event.kind === 'EndpointSlice'
}

/** Parts of an object besides its ports, addresses and endpoints. */
export const OBJECT_PARTS = 4
const REFUSAL_PARTS = 2
/** Text that counts as one part. */
const TEXT_LENGTH = 128
/** Text of an endpoint that its own part covers, of its node, and the UID and name of its pod. */
const ENDPOINT_TEXT_LENGTH = 32
/** A hint, beside its name. */
const HINT_LENGTH = 32

/** Counts the memory of a held object, in parts of at most 128 B: a port, an address and an endpoint are one each. */
export function partsOf(object: CountedObject): number {
  const own = 'endpoints' in object ? endpointParts(object) : addressParts(object)
  return Math.ceil(OBJECT_PARTS + object.ports.length + REFUSAL_PARTS * object.refusals.length + own)
}

function addressParts(service: Service): number {
  const { externalIps, loadBalancerIps, sourceRanges, writtenRanges, details } = service
  const ips = externalIps.length + loadBalancerIps.length + sourceRanges.length + writtenRanges.length
  if (details === undefined) return ips
  const { labels, annotations, targetPorts } = details
  return ips + (textLength(labels) + textLength(annotations) + textLength(targetPorts)) / TEXT_LENGTH
}

function endpointParts({ endpoints, targetNames = '', targetUids = '', hostnames }: EndpointSlice): number {
  let text = targetNames.length + textLength(hostnames)
  if (targetUids !== '') text += targetUids.length - (endpoints.length - 1)
  for (let index = 0; index < endpoints.length; index++) {
    const traits = endpoints[index]?.traits
    if (traits === undefined) continue
    text += traits.nodeName.length
    if (traits.hints === NO_HINTS) continue
    for (const name of traits.hints.forZones) text += HINT_LENGTH + name.length
    for (const name of traits.hints.forNodes) text += HINT_LENGTH + name.length
  }
  return endpoints.length + Math.max(0, text - ENDPOINT_TEXT_LENGTH * endpoints.length) / TEXT_LENGTH
}

function textLength(texts: Readonly<Record<string, string | number>> = {}): number {
  let length = 0
  for (const name in texts) length += name.length + String(texts[name]).length
  return length
}
