import { type FSWatcher, watch } from 'node:fs'
import { readdir, realpath, stat } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { Pauses, type Steps } from '../../base/clock.ts'
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
  /** The conflicts that this change causes. */
  readonly conflicts: readonly Conflict[]
}

interface Entry {
  objects: Map<string, ObjectEvent>
  /** The file is gone and its objects stay, until another file describes them. */
  gone: boolean
}

/**
 * Which file says what. Turns the new content of a file into the differences that it makes to the whole: the object that
 * the first file by name describes counts, and files that still exist come before those that are gone.
 */
export class Catalogue {
  readonly #files = new Map<string, Entry>()
  /** The file whose description counts, by object id. */
  readonly #owners = new Map<string, string>()
  /** The other files that describe an object; nearly always empty. */
  readonly #others = new Map<string, Set<string>>()

  get size(): number {
    return this.#owners.size
  }

  objectsOf(file: string): number {
    return this.#files.get(file)?.objects.size ?? 0
  }

  /** Takes the content of a file, new or changed. Keeps `objects`. Nothing else may be asked before it has ended. */
  *put(file: string, objects: Map<string, ObjectEvent>): Steps<CatalogueChange> {
    const before = this.#files.get(file)?.objects ?? new Map<string, ObjectEvent>()
    const events: ObjectEvent[] = []
    const conflicts: Conflict[] = []
    this.#files.set(file, { objects, gone: false })
    const pauses = new Pauses()
    for (const [id, event] of objects) {
      if (pauses.due()) yield
      const old = before.get(id)
      // The old value is the one that everybody shares already.
      if (old !== undefined && isSame(old, event)) objects.set(id, old)
      const owner = this.#owners.get(id)
      if (owner === undefined || owner === file) {
        this.#owners.set(id, file)
        if (objects.get(id) !== old) events.push(event)
      } else events.push(...this.#contest(file, { id, event, owner, known: old !== undefined }, conflicts))
    }
    for (const [id, event] of before) {
      if (pauses.due()) yield
      if (!objects.has(id)) events.push(...this.#release(file, id, event))
    }
    return { events, conflicts }
  }

  /** The file is no longer there: what it said stays valid, but gives way to any file that exists. */
  vanish(file: string): CatalogueChange {
    const entry = this.#files.get(file)
    const events: ObjectEvent[] = []
    if (entry === undefined) return { events, conflicts: [] }
    entry.gone = true
    for (const [id, event] of entry.objects) {
      const others = this.#others.get(id)
      if (others === undefined) continue
      entry.objects.delete(id)
      events.push(...this.#release(file, id, event))
    }
    if (entry.objects.size === 0) this.#files.delete(file)
    return { events, conflicts: [] }
  }

  #contest(
    file: string,
    claim: {
      readonly id: string
      readonly event: ObjectEvent
      readonly owner: string
      readonly known: boolean
    },
    conflicts: Conflict[],
  ): ObjectEvent[] {
    const { id, event, owner, known } = claim
    const holder = this.#files.get(owner)
    const counted = holder?.objects.get(id)
    const wins = holder?.gone === true || file < owner
    const [kept, ignored] = wins ? [file, owner] : [owner, file]
    if (wins) this.#owners.set(id, kept)
    if (holder?.gone === true) {
      holder.objects.delete(id)
      if (holder.objects.size === 0) this.#files.delete(owner)
    } else {
      const others = this.#others.get(id) ?? new Set()
      this.#others.set(id, others.add(ignored))
      others.delete(kept)
      if (!known) conflicts.push({ id, kept, ignored })
    }
    return wins && !isSame(counted, event) ? [event] : []
  }

  /** `file` describes the object no longer. */
  #release(file: string, id: string, event: ObjectEvent): ObjectEvent[] {
    const others = this.#others.get(id)
    if (this.#owners.get(id) !== file) {
      others?.delete(file)
      if (others?.size === 0) this.#others.delete(id)
      return []
    }
    const heir = others === undefined ? undefined : firstOf(others)
    if (heir === undefined) {
      this.#owners.delete(id)
      return [{ ...event, value: undefined }]
    }
    this.#owners.set(id, heir)
    others?.delete(heir)
    if (others?.size === 0) this.#others.delete(id)
    const next = this.#files.get(heir)?.objects.get(id)
    return next === undefined || isSame(next, event) ? [] : [next]
  }
}

function firstOf(names: ReadonlySet<string>): string | undefined {
  return [...names].sort()[0]
}

/** A file as one look found it. */
export interface FileSight {
  readonly path: string
  /** Changes whenever the content may have: device, inode, size and times of what the path leads to. */
  readonly signature: string
  /** Time since the last change, by the file system's times; 0 when they cannot be trusted. */
  readonly ageMs: number
}

type Look =
  | {
      readonly kind: 'found'
      /** The files by name, in the order of names. */
      readonly files: ReadonlyMap<string, FileSight>
      /** Names of a folder's other entries, hidden ones aside, in order. */
      readonly skipped: readonly string[]
      readonly folders: Folders
    }
  /** Nothing can be seen there now. `reason` is the system's word. */
  | { readonly kind: 'missing'; readonly reason: string; readonly folders: Folders }

/** Folders in which a change is worth another look, each with its inode: a path may come to mean another one. */
type Folders = ReadonlyMap<string, string>

/** Folders that symbolic links lead to and that are watched too; changes in further ones are found by polling. */
const LINKED_FOLDERS_MAX = 64

/** Looks at PATH: one file of any name, or the *.yaml, *.yml and *.json of a folder. Hidden files are not for us. */
export async function lookAt(path: string): Promise<Look> {
  try {
    const target = await stat(path, { bigint: true })
    if (!target.isDirectory()) return await lookAtFile(path)
    return await lookAtFolder(path)
  } catch (error) {
    return { kind: 'missing', reason: codeOf(error), folders: await identify([dirname(path)]) }
  }
}

async function lookAtFile(path: string): Promise<Look> {
  const sight = await sightOf(path)
  const folders = new Set([dirname(path), dirname(await realpath(path))])
  const files = new Map(sight === undefined ? [] : [[path, sight] as const])
  return { kind: 'found', files, skipped: [], folders: await identify(folders) }
}

async function lookAtFolder(path: string): Promise<Look> {
  const folders = new Set([path])
  const files = new Map<string, FileSight>()
  const entries = await readdir(path, { withFileTypes: true })
  const names = entries.filter(entry => isManifest(entry.name)).sort((a, b) => (a.name < b.name ? -1 : 1))
  for (const entry of names) {
    const file = join(path, entry.name)
    const sight = await sightOf(file)
    if (sight === undefined) continue
    files.set(file, sight)
    if (entry.isSymbolicLink() && folders.size <= LINKED_FOLDERS_MAX) {
      const target = await realpath(file).catch(() => file)
      folders.add(dirname(target))
    }
  }
  const skipped = entries
    .filter(({ name }) => !name.startsWith('.') && !isManifest(name))
    .map(entry => (entry.isDirectory() ? `${entry.name}/` : entry.name))
    .sort()
  return { kind: 'found', files, skipped, folders: await identify(folders) }
}

/** Returns undefined when it is not a file, or vanished between two system calls (the next look decides). */
export async function sightOf(path: string): Promise<FileSight | undefined> {
  try {
    const stats = await stat(path, { bigint: true })
    const { dev, ino, size, mtimeNs, ctimeNs } = stats
    if (!stats.isFile()) return undefined
    const signature = `${dev}:${ino}:${size}:${mtimeNs}:${ctimeNs}`
    return { path, signature, ageMs: ageOf(mtimeNs > ctimeNs ? mtimeNs : ctimeNs) }
  } catch (error) {
    if (isGone(error)) return undefined
    // It is there and cannot be looked at: reading it will say why.
    return { path, signature: codeOf(error), ageMs: 0 }
  }
}

/** File systems keep wall-clock time; when that was set back, the file counts as new, which costs a short wait. */
function ageOf(changedNs: bigint): number {
  return Math.max(0, Date.now() - Number(changedNs / 1_000_000n))
}

async function identify(folders: Iterable<string>): Promise<Folders> {
  const identities = new Map<string, string>()
  for (const folder of folders) {
    const stats = await stat(folder, { bigint: true }).catch(() => undefined)
    if (stats !== undefined) identities.set(folder, `${stats.dev}:${stats.ino}`)
  }
  return identities
}

function isManifest(name: string): boolean {
  return !name.startsWith('.') && /\.(yaml|yml|json)$/.test(name)
}

function isGone(error: unknown): boolean {
  return ['ENOENT', 'ENOTDIR', 'ELOOP'].includes(codeOf(error))
}

/** What was read of a file that has no object for this node. */
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

/**
 * Reports changes in a few folders. Only a hint: inotify can be out of watches, and does not see changes
 * behind some mounts, so callers poll as well.
 */
export class FolderWatch {
  readonly #changed: () => void
  readonly #watchers = new Map<string, { readonly identity: string; readonly watcher: FSWatcher }>()

  constructor(changed: () => void) {
    this.#changed = changed
  }

  /** Watches these folders and no others. */
  set(folders: Folders): void {
    for (const [folder, { identity }] of [...this.#watchers])
      if (folders.get(folder) !== identity) this.#drop(folder)
    for (const [folder, identity] of folders) if (!this.#watchers.has(folder)) this.#add(folder, identity)
  }

  close(): void {
    for (const folder of [...this.#watchers.keys()]) this.#drop(folder)
  }

  #add(folder: string, identity: string): void {
    try {
      const watcher = watch(folder, { persistent: false }, () => this.#changed())
      watcher.on('error', () => this.#drop(folder))
      this.#watchers.set(folder, { identity, watcher })
    } catch {
      // Polling serves this folder; the next look tries again.
    }
  }

  #drop(folder: string): void {
    this.#watchers.get(folder)?.watcher.close()
    this.#watchers.delete(folder)
  }
}
