import type { Cancel } from '../../../src/base/clock.ts'
import type { ApiObject } from '../../../src/source/kube/wire/tables.ts'
import { conflict, notFound } from './status.ts'

export interface Metadata {
  readonly name?: string
  readonly namespace?: string
  readonly uid?: string
  readonly resourceVersion?: string
  readonly generation?: number
  readonly creationTimestamp?: string
  readonly labels?: { readonly [key: string]: string }
  readonly annotations?: { readonly [key: string]: string }
  readonly [field: string]: unknown
}

export function metadataOf(object: ApiObject): Metadata {
  const { metadata } = object
  return typeof metadata === 'object' && metadata !== null ? { ...metadata } : {}
}

/** `namespace/name`, or the name alone. */
export function keyOf(object: ApiObject): string {
  const { namespace, name = '' } = metadataOf(object)
  return namespace === undefined || namespace === '' ? name : `${namespace}/${name}`
}

/** One entry of the log. */
export interface Change {
  readonly version: bigint
  readonly type: 'ADDED' | 'MODIFIED' | 'DELETED'
  readonly key: string
  /** For DELETED the last state, with the version of the deletion. */
  readonly object: ApiObject
  readonly previous: ApiObject | undefined
}

/** What one server sees of the log: all of it, or less of its newest part. */
export interface View {
  readonly version: bigint
  /** Whatever began before this version is gone. */
  readonly compacted: bigint
  /** By key, as of `version`, which lies between `compacted` and the newest. */
  listAt(plural: string, version: bigint): readonly ApiObject[]
  /** Changes after `version`, oldest first. */
  since(plural: string, version: bigint): readonly Change[]
  /** Calls for each later change, and for the passing of versions of other resources with undefined. */
  subscribe(plural: string, heard: (change: Change | undefined) => void): Cancel
}

interface StoreOptions {
  /** Version before the first change: decimal, of any length. */
  readonly startVersion?: string
  /** Wall clock, for creationTimestamp. */
  readonly now?: () => Date
}

interface Shelf {
  readonly objects: Map<string, ApiObject>
  log: Change[]
  readonly listeners: Set<(change: Change | undefined) => void>
  /** Objects by key; undefined after a change. */
  sorted: readonly ApiObject[] | undefined
}

/** Changes kept for each resource; the oldest beyond it are compacted. */
const HISTORY_MAX = 50_000

/** Objects with one log of versions for all resources, as etcd keeps it. Objects are never changed in place. */
export class Store implements View {
  readonly #shelves = new Map<string, Shelf>()
  readonly #now: () => Date
  readonly #newUid = countedUids()
  #version: bigint
  #compacted: bigint

  constructor({ startVersion = '1', now }: StoreOptions = {}) {
    this.#version = BigInt(startVersion)
    this.#compacted = this.#version
    this.#now = now ?? (() => new Date())
  }

  get version(): bigint {
    return this.#version
  }

  get compacted(): bigint {
    return this.#compacted
  }

  /** Puts in place whatever the object is: created or changed. */
  put(plural: string, object: ApiObject): ApiObject {
    return this.get(plural, keyOf(object)) === undefined
      ? this.create(plural, object)
      : this.update(plural, object)
  }

  /** Throws ApiFailure 409 when it exists. */
  create(plural: string, object: ApiObject): ApiObject {
    const { uid, creationTimestamp, ...metadata } = metadataOf(object)
    const made = {
      ...object,
      metadata: {
        ...metadata,
        uid: uid ?? this.#newUid(),
        creationTimestamp: creationTimestamp ?? secondsOf(this.#now()),
      },
    }
    const key = keyOf(made)
    if (this.get(plural, key) !== undefined)
      throw conflict(plural, metadataOf(made).name ?? '', 'AlreadyExists')
    return this.#write(plural, { type: 'ADDED', key, object: made, previous: undefined })
  }

  /**
   * Replaces it, identity kept. What changes nothing makes no version. Throws ApiFailure: 404, and 409 when the object
   * names a version that is not the newest.
   */
  update(plural: string, object: ApiObject): ApiObject {
    const key = keyOf(object)
    const previous = this.get(plural, key)
    const { name = '', resourceVersion } = metadataOf(object)
    if (previous === undefined) throw notFound(plural, name)
    const old = metadataOf(previous)
    if (resourceVersion !== undefined && resourceVersion !== '' && resourceVersion !== old.resourceVersion)
      throw conflict(plural, name, 'Conflict')
    const { uid, creationTimestamp } = old
    const metadata = { ...metadataOf(object), uid, creationTimestamp, resourceVersion: old.resourceVersion }
    const next = { ...object, metadata }
    if (JSON.stringify(next) === JSON.stringify(previous)) return previous
    return this.#write(plural, { type: 'MODIFIED', key, object: next, previous })
  }

  /** Throws ApiFailure 404. */
  delete(plural: string, key: string): ApiObject {
    const previous = this.get(plural, key)
    if (previous === undefined) throw notFound(plural, key.split('/').at(-1) ?? key)
    return this.#write(plural, { type: 'DELETED', key, object: previous, previous })
  }

  get(plural: string, key: string): ApiObject | undefined {
    return this.#shelf(plural).objects.get(key)
  }

  list(plural: string): readonly ApiObject[] {
    const shelf = this.#shelf(plural)
    shelf.sorted ??= sortedValues(shelf.objects)
    return shelf.sorted
  }

  listAt(plural: string, version: bigint): readonly ApiObject[] {
    const undone = this.since(plural, version)
    if (undone.length === 0) return this.list(plural)
    const objects = new Map(this.#shelf(plural).objects)
    for (const { key, previous } of undone.toReversed()) {
      if (previous === undefined) objects.delete(key)
      else objects.set(key, previous)
    }
    return sortedValues(objects)
  }

  since(plural: string, version: bigint): readonly Change[] {
    const { log } = this.#shelf(plural)
    let [low, high] = [0, log.length]
    while (low < high) {
      const middle = (low + high) >> 1
      if ((log[middle]?.version ?? 0n) <= version) low = middle + 1
      else high = middle
    }
    return log.slice(low)
  }

  subscribe(plural: string, heard: (change: Change | undefined) => void): Cancel {
    const { listeners } = this.#shelf(plural)
    listeners.add(heard)
    return () => listeners.delete(heard)
  }

  /** Forgets the history up to `version`; by default all of it. Objects stay. */
  compact(version: bigint = this.#version): void {
    if (version <= this.#compacted) return
    this.#compacted = version
    for (const [plural, shelf] of this.#shelves) shelf.log = [...this.since(plural, version)]
  }

  /** Versions that went to something this server does not have. */
  skip(versions: bigint): void {
    this.#version += versions
    for (const { listeners } of this.#shelves.values()) for (const heard of [...listeners]) heard(undefined)
  }

  #write(plural: string, change: Omit<Change, 'version'>): ApiObject {
    const version = ++this.#version
    const metadata = { ...metadataOf(change.object), resourceVersion: String(version) }
    const object = { ...change.object, metadata }
    const shelf = this.#shelf(plural)
    if (change.type === 'DELETED') shelf.objects.delete(change.key)
    else shelf.objects.set(change.key, object)
    shelf.sorted = undefined
    const entry = { ...change, version, object }
    shelf.log.push(entry)
    this.#trim(shelf)
    for (const [name, { listeners }] of this.#shelves)
      for (const heard of [...listeners]) heard(name === plural ? entry : undefined)
    return object
  }

  /** In large steps, so that a full log costs nothing at each change. */
  #trim({ log }: Shelf): void {
    if (log.length < HISTORY_MAX * 1.25) return
    const last = log[log.length - HISTORY_MAX - 1]
    if (last !== undefined) this.compact(last.version)
  }

  #shelf(plural: string): Shelf {
    let shelf = this.#shelves.get(plural)
    if (shelf === undefined) {
      shelf = { objects: new Map(), log: [], listeners: new Set(), sorted: undefined }
      this.#shelves.set(plural, shelf)
    }
    return shelf
  }
}

function sortedValues(objects: ReadonlyMap<string, ApiObject>): readonly ApiObject[] {
  return [...objects].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, object]) => object)
}

function secondsOf(date: Date): string {
  return date.toISOString().replace(/\.\d+Z$/, 'Z')
}

function countedUids(): () => string {
  let count = 0
  return () => `00000000-0000-4000-8000-${(++count).toString(16).padStart(12, '0')}`
}
