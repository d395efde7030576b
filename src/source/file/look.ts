import { readdir, realpath, stat } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { KINDS_READ } from './object-doubts.ts'

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
export type Folders = ReadonlyMap<string, string>

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

function codeOf(error: unknown): string {
  if (error instanceof Error && 'code' in error) return String(error.code)
  return error instanceof Error ? error.message : String(error)
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
