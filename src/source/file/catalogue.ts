import { readdir, stat } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { codeOf } from '../../base/errors.ts'
import { isSame } from '../../model/fields.ts'
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

type Objects = ReadonlyMap<string, ObjectEvent>

/**
 * Turns the contents of files into the changes of all objects: the object that the first file by name describes counts,
 * and files that still exist come before those that are gone.
 */
export class Catalogue {
  readonly #files = new Map<string, Objects>()
  /** Files that are gone, with the objects that no file has described since. */
  readonly #gone = new Map<string, Map<string, ObjectEvent>>()
  #counted = new Map<string, { readonly file: string; readonly event: ObjectEvent }>()
  #conflicts = new Set<string>()
  #hasChanged = false

  /** Objects that count since the last changes. */
  get size(): number {
    return this.#counted.size
  }

  objectsOf(file: string): number {
    return (this.#files.get(file) ?? this.#gone.get(file))?.size ?? 0
  }

  /** Takes the content of a file, new or changed. */
  put(file: string, objects: Objects): void {
    this.#hasChanged = true
    this.#gone.delete(file)
    this.#files.set(file, objects)
    for (const gone of this.#gone.values()) for (const id of objects.keys()) gone.delete(id)
  }

  /** The file is gone: its content stays valid, but gives way to any file that exists. */
  vanish(file: string): void {
    const objects = this.#files.get(file)
    if (objects === undefined) return
    this.#hasChanged = true
    this.#files.delete(file)
    const others = [...this.#files.values()]
    this.#gone.set(file, new Map([...objects].filter(([id]) => !others.some(other => other.has(id)))))
  }

  /** Gives what has changed since the last call. */
  changes(): CatalogueChange {
    if (!this.#hasChanged) return { events: [], conflicts: [] }
    this.#hasChanged = false
    const before = this.#counted
    const known = this.#conflicts
    const conflicts = this.#recount()
    const events: ObjectEvent[] = []
    for (const [id, { file, event }] of this.#counted) {
      const old = before.get(id)?.event
      // Other readers already share the old value.
      if (old !== undefined && isSame(old, event)) this.#counted.set(id, { file, event: old })
      else events.push(event)
    }
    for (const [id, { event }] of before)
      if (!this.#counted.has(id)) events.push({ ...event, value: undefined })
    return { events, conflicts: conflicts.filter(conflict => !known.has(nameOf(conflict))) }
  }

  /** Gives all conflicts. */
  #recount(): readonly Conflict[] {
    const conflicts: Conflict[] = []
    this.#counted = new Map()
    const byName = [...this.#files].sort(([a], [b]) => (a < b ? 1 : -1))
    for (const [file, objects] of [...this.#gone, ...byName])
      for (const [id, event] of objects) {
        const ignored = this.#counted.get(id)?.file
        if (ignored !== undefined) conflicts.push({ id, kept: file, ignored })
        this.#counted.set(id, { file, event })
      }
    this.#conflicts = new Set(conflicts.map(nameOf))
    return conflicts
  }
}

function nameOf({ id, kept, ignored }: Conflict): string {
  return JSON.stringify([id, kept, ignored])
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
