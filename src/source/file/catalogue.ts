import { readdir, stat } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { Pauses, type Steps } from '../../base/clock.ts'
import { codeOf } from '../../base/errors.ts'
import { isSame } from '../../base/plain-data.ts'
import { KINDS_READ } from './object-doubts.ts'
import type { ObjectEvent } from './read-objects.ts'

/** An object described by two files. */
interface Conflict {
  readonly id: string
  readonly kept: string
  readonly ignored: string
}

export interface CatalogueChange {
  readonly events: readonly ObjectEvent[]
  readonly conflicts: readonly Conflict[]
}

interface Entry {
  objects: Map<string, ObjectEvent>
  /** The file is gone and its objects stay, until another file describes them. */
  gone: boolean
}

interface Draft {
  readonly events: ObjectEvent[]
  readonly conflicts: Conflict[]
}

/**
 * Turns the new content of a file into the changes of all objects: the object that the first file by name describes
 * counts, and files that still exist come before those that are gone.
 */
export class Catalogue {
  readonly #files = new Map<string, Entry>()
  /** The files that describe an object, by its id, in the order of names. One that is gone is alone. */
  readonly #holders = new Map<string, readonly string[]>()

  get size(): number {
    return this.#holders.size
  }

  objectsOf(file: string): number {
    return this.#files.get(file)?.objects.size ?? 0
  }

  /** Takes the content of a file, new or changed. Keeps `objects`. Nothing else may be asked before it has ended. */
  *put(file: string, objects: Map<string, ObjectEvent>): Steps<CatalogueChange> {
    const before = this.#files.get(file)?.objects ?? new Map<string, ObjectEvent>()
    const draft: Draft = { events: [], conflicts: [] }
    this.#files.set(file, { objects, gone: false })
    const pauses = new Pauses()
    for (const [id, event] of objects) {
      if (pauses.due()) yield
      const old = before.get(id)
      if (old === undefined) this.#hold(draft, file, { id, event })
      // Other readers already share the old value.
      else if (isSame(old, event)) objects.set(id, old)
      else if (this.#holders.get(id)?.[0] === file) draft.events.push(event)
    }
    for (const [id, event] of before) {
      if (pauses.due()) yield
      if (!objects.has(id)) this.#release(draft, file, { id, event })
    }
    return draft
  }

  /** The file is gone: its content stays valid, but gives way to any file that exists. */
  vanish(file: string): CatalogueChange {
    const draft: Draft = { events: [], conflicts: [] }
    const entry = this.#files.get(file)
    if (entry === undefined) return draft
    entry.gone = true
    for (const [id, event] of entry.objects) {
      if (this.#holders.get(id)?.length === 1) continue
      entry.objects.delete(id)
      this.#release(draft, file, { id, event })
    }
    if (entry.objects.size === 0) this.#files.delete(file)
    return draft
  }

  /** `file` describes an object that it did not describe before. */
  #hold({ events, conflicts }: Draft, file: string, { id, event }: Held): void {
    const holders = this.#holders.get(id) ?? []
    const [first = file] = holders
    const before = holders.length === 0 ? undefined : this.#files.get(first)
    const counted = before?.objects.get(id)
    const others = before?.gone === true ? [] : holders
    const now = [...others, file].sort()
    this.#holders.set(id, now)
    if (before?.gone === true && before.objects.delete(id) && before.objects.size === 0)
      this.#files.delete(first)
    const wins = now[0] === file
    if (others.length > 0) conflicts.push({ id, kept: wins ? file : first, ignored: wins ? first : file })
    if (wins && !isSame(counted, event)) events.push(event)
  }

  /** `file` describes the object no longer. */
  #release({ events }: Draft, file: string, { id, event }: Held): void {
    const holders = this.#holders.get(id) ?? []
    const others = holders.filter(each => each !== file)
    const [heir] = others
    if (heir === undefined) {
      this.#holders.delete(id)
      events.push({ ...event, value: undefined })
      return
    }
    this.#holders.set(id, others)
    const next = holders[0] === file ? this.#files.get(heir)?.objects.get(id) : undefined
    if (next !== undefined && !isSame(next, event)) events.push(next)
  }
}

interface Held {
  readonly id: string
  readonly event: ObjectEvent
}

/** A file as one check found it. */
export interface FileSight {
  readonly path: string
  /** Changes whenever the content may have: device, inode, size and times of what the path leads to. */
  readonly signature: string
  /** Time since the last change, by the file system's times; 0 when they cannot be trusted. */
  readonly ageMs: number
}

export interface Look {
  /** The files by name, in the order of names. */
  readonly files: ReadonlyMap<string, FileSight>
  /** Names of a folder's other entries, hidden ones aside, in order. */
  readonly skipped: readonly string[]
}

/**
 * Looks at PATH: one file of any name, or the *.yaml, *.yml and *.json of a folder; hidden files are skipped. Throws an
 * error where it sees neither: a FIFO has no content to look at.
 */
export async function lookAt(path: string): Promise<Look> {
  const target = await stat(path, { bigint: true })
  if (!target.isDirectory() && !target.isFile()) throw new Error('not a regular file')
  if (!target.isDirectory()) return { files: await sightsOf([path]), skipped: [] }
  const entries = await readdir(path, { withFileTypes: true })
  const names = entries.map(({ name }) => name).filter(isManifest)
  const skipped = entries
    .filter(({ name }) => !name.startsWith('.') && !isManifest(name))
    .map(entry => (entry.isDirectory() ? `${entry.name}/` : entry.name))
  return { files: await sightsOf(names.sort().map(name => join(path, name))), skipped: skipped.sort() }
}

async function sightsOf(paths: readonly string[]): Promise<ReadonlyMap<string, FileSight>> {
  const sights = new Map<string, FileSight>()
  for (const path of paths) {
    const sight = await sightOf(path)
    if (sight !== undefined) sights.set(path, sight)
  }
  return sights
}

/** Returns undefined when it is not a file, or vanished between two system calls (the next check decides). */
export async function sightOf(path: string): Promise<FileSight | undefined> {
  try {
    const stats = await stat(path, { bigint: true })
    const { dev, ino, size, mtimeNs, ctimeNs } = stats
    if (!stats.isFile()) return undefined
    const signature = `${dev}:${ino}:${size}:${mtimeNs}:${ctimeNs}`
    return { path, signature, ageMs: ageOf(mtimeNs > ctimeNs ? mtimeNs : ctimeNs) }
  } catch (error) {
    if (isGone(error)) return undefined
    // The file exists; reading it will give the error.
    return { path, signature: codeOf(error), ageMs: 0 }
  }
}

/** File systems keep wall-clock time; when that was set back, the file counts as new, which costs a short wait. */
function ageOf(changedNs: bigint): number {
  return Math.max(0, Date.now() - Number(changedNs / 1_000_000n))
}

function isManifest(name: string): boolean {
  return !name.startsWith('.') && /\.(yaml|yml|json)$/.test(name)
}

function isGone(error: unknown): boolean {
  return ['ENOENT', 'ENOTDIR', 'ELOOP'].includes(codeOf(error))
}

/** The part of a file that describes no object for this node. */
interface ReadFile {
  readonly path: string
  readonly otherKinds: ReadonlySet<string>
}

const NAMES_MAX = 5

/** Says why there is no object in a file or folder. */
export function nothingFound(files: readonly ReadFile[], skipped: readonly string[]): string {
  if (files.length === 0) {
    const others = skipped.length === 0 ? '' : `; skipped: ${namesOf(skipped)}`
    return `nothing found: the folder has no *.yaml, *.yml or *.json file${others}`
  }
  const kinds = [...new Set(files.flatMap(({ otherKinds }) => [...otherKinds]))]
  const read = `; files read: ${namesOf(files.map(({ path }) => basename(path)))}`
  const others = kinds.length === 0 ? '' : `; other objects: ${namesOf(kinds)}`
  return `nothing found: no ${KINDS_READ} for this node${read}${others}`
}

function namesOf(names: readonly string[]): string {
  const more = names.length - NAMES_MAX
  return `${names.slice(0, NAMES_MAX).join(', ')}${more > 0 ? ` and ${more} more` : ''}`
}
