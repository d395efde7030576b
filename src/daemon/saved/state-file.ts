import { createHash } from 'node:crypto'
import { constants, type Stats } from 'node:fs'
import { type FileHandle, mkdir, open, rename, rm, stat, utimes } from 'node:fs/promises'
import { join } from 'node:path'
import { stepsOver } from '../../base/clock.ts'
import { codeOf, errorOf, errorText } from '../../base/errors.ts'
import { readToEnd } from '../../base/octets.ts'
import { isJson, type Json } from '../../model/fields.ts'
import {
  applyEvents,
  EMPTY_SNAPSHOT,
  type Snapshot,
  type SnapshotEvent,
  ValuePool,
} from '../../model/snapshot.ts'
import { savedEvent, savedObjects } from './snapshot-json.ts'

/*
 * A saved state is lines of JSON: a header with the version and the owner, an object a line, and a last line with the
 * SHA-256 of all lines before it. Every cut and every changed byte is found by that line.
 */

/** The first fields of every version, in this order: what another version means by the rest is not read. */
const KIND = 'saved-state'
/** Changes with every change of what an object of a Snapshot consists of; a test compares. */
export const STATE_VERSION = 1
/** A larger state is neither written nor read: 10,000 Services with 100,000 endpoints take a fifth of it. */
export const STATE_BYTES_MAX = 64 << 20
/** Parsed JSON takes up to 40 times the memory of its text, so lines are short; no object of the API server is longer. */
export const LINE_BYTES_MAX = 4 << 20
const CHUNK_CHARS = 64 << 10

/** The node, proxy and cluster of a saved state. Others have other Services at the same addresses. */
export interface StateOwner {
  readonly node: string
  readonly proxy: string
  /** URL of the API server. */
  readonly server: string
  /** SHA-256 of each certificate that vouches for the API server; empty where the configuration names none. */
  readonly authorities: readonly string[]
}

type RefusalReason =
  | 'foreign'
  | 'torn'
  | 'version'
  | 'node'
  | 'proxy'
  | 'cluster'
  | 'too-large'
  | 'permissions'
  | 'unreadable'

/** A saved state that must not be used, or cannot be written. */
export class SavedStateError extends Error {
  override readonly name = 'SavedStateError'
  readonly reason: RefusalReason

  constructor(reason: RefusalReason, message: string, options?: ErrorOptions) {
    super(message, options)
    this.reason = reason
  }
}

export interface StateHeader {
  readonly owner: StateOwner
  /** RFC 3339, for people: the time of the file itself is the last confirmation of the state. */
  readonly savedAt: string
}

/** Gives the file in chunks of about 64 KiB. Throws SavedStateError where it would be larger. */
export function* stateChunks(
  { owner, savedAt }: StateHeader,
  snapshot: Snapshot,
  bytesMax = STATE_BYTES_MAX,
): Generator<Buffer> {
  const hash = createHash('sha256')
  const { node, proxy, server, authorities } = owner
  let text = line({ kprobe: KIND, version: STATE_VERSION, savedAt, node, proxy, server, authorities })
  let bytes = 0
  const chunk = (): Buffer => {
    const made = Buffer.from(text)
    text = ''
    bytes += made.length
    if (bytes > bytesMax) throw new SavedStateError('too-large', tooLarge(bytes, bytesMax))
    return made
  }
  for (const object of savedObjects(snapshot)) {
    const added = line(object)
    if (Buffer.byteLength(added) > LINE_BYTES_MAX) throw lineTooLong(Buffer.byteLength(added))
    text += added
    if (text.length < CHUNK_CHARS) continue
    const made = chunk()
    hash.update(made)
    yield made
  }
  hash.update(text)
  text += line({ sha256: hash.digest('hex') })
  yield chunk()
}

function tooLarge(bytes: number, bytesMax = STATE_BYTES_MAX): string {
  return `${bytes} B are more than the ${bytesMax} B that a saved state may have`
}

function lineTooLong(bytes: number): SavedStateError {
  return new SavedStateError('too-large', `it has a line of ${bytes} B; a line may have ${LINE_BYTES_MAX} B`)
}

function line(value: unknown): string {
  return `${JSON.stringify(value)}\n`
}

/** Reads a file that stateChunks() has made for this owner. Throws SavedStateError. */
export function readState(bytes: Buffer, owner: StateOwner) {
  const header = readHeader(bytes)
  const end = checkedEnd(bytes)
  checkOwner(header, owner)
  const pool = new ValuePool()
  const events: SnapshotEvent[] = []
  return stepsOver(linesIn(bytes, end), {
    each: line => events.push(readEvent(line, pool)),
    result: () => applyEvents(EMPTY_SNAPSHOT, events),
  })
}

/** The first bytes of every version. */
const MAGIC = JSON.stringify({ kprobe: KIND }).slice(0, -1)

function readHeader(bytes: Buffer): Json {
  if (!MAGIC.startsWith(bytes.toString('latin1', 0, MAGIC.length)))
    throw new SavedStateError('foreign', 'it is not a saved state of kprobe')
  const header = jsonLine(bytes.subarray(0, Math.max(0, bytes.indexOf('\n'))))
  if (header === undefined) throw torn()
  if (header.version !== STATE_VERSION)
    throw new SavedStateError(
      'version',
      `it has the format ${JSON.stringify(header.version)}, and this kprobe reads ${STATE_VERSION}`,
    )
  return header
}

function torn(): SavedStateError {
  return new SavedStateError('torn', 'it is incomplete or damaged: its checksum does not match')
}

/** The end of the lines that the last one vouches for. */
function checkedEnd(bytes: Buffer): number {
  const end = bytes.length < 2 ? 0 : bytes.lastIndexOf('\n', bytes.length - 2) + 1
  const sha256 = createHash('sha256').update(bytes.subarray(0, end)).digest('hex')
  if (!bytes.subarray(end).equals(Buffer.from(line({ sha256 })))) throw torn()
  return end
}

function checkOwner(header: Json, owner: StateOwner): void {
  const { node, proxy, server, authorities } = header
  if (node !== owner.node)
    throw new SavedStateError('node', `it is of the node ${JSON.stringify(node)}, and this is ${owner.node}`)
  if (proxy !== owner.proxy)
    throw new SavedStateError('proxy', `it is of ${proxyText(proxy)}, and this is ${proxyText(owner.proxy)}`)
  if (server !== owner.server)
    throw new SavedStateError(
      'cluster',
      `it is of the API server ${JSON.stringify(server)}, and this node uses ${owner.server}`,
    )
  const known: readonly unknown[] = Array.isArray(authorities) ? authorities : []
  const isSame =
    known.length === 0 ? owner.authorities.length === 0 : owner.authorities.some(each => known.includes(each))
  if (!isSame)
    throw new SavedStateError(
      'cluster',
      `it is of another cluster: ${owner.server} has another certificate authority there`,
    )
}

function proxyText(proxy: unknown): string {
  return proxy === '' ? 'the unnamed proxy' : `the proxy ${JSON.stringify(proxy)}`
}

/** The lines behind the header. */
function* linesIn(bytes: Buffer, end: number): IterableIterator<Buffer> {
  for (let at = bytes.indexOf('\n') + 1; at < end; ) {
    const next = bytes.indexOf('\n', at)
    yield bytes.subarray(at, next)
    at = next + 1
  }
}

function readEvent(line: Buffer, pool: ValuePool): SnapshotEvent {
  try {
    return savedEvent(jsonLine(line), pool)
  } catch (thrown) {
    if (thrown instanceof SavedStateError) throw thrown
    throw new SavedStateError('foreign', 'it holds no objects of kprobe', { cause: errorOf(thrown) })
  }
}

/** The mapping in these bytes; undefined for anything else. Throws SavedStateError for a line that is too long. */
function jsonLine(line: Buffer): Json | undefined {
  if (line.length > LINE_BYTES_MAX) throw lineTooLong(line.length)
  try {
    const value: unknown = JSON.parse(line.toString('utf8'))
    return isJson(value) ? value : undefined
  } catch {
    return undefined
  }
}

interface StateBytes {
  readonly bytes: Buffer
  readonly confirmedWallMs: number
}

const { O_CREAT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_RDONLY, O_WRONLY } = constants
/** Bits of a mode by which others than the owner may write. */
const OTHERS_WRITE = 0o022

/**
 * The file of one proxy in the folder of --state-dir. Every name in it is replaced as a whole: a reader finds the state
 * before or after a write, also when the machine loses its power in between.
 */
export class StateFile {
  readonly path: string
  readonly #folder: string

  constructor(folder: string, proxy: string) {
    this.#folder = folder
    this.path = join(folder, proxy === '' ? 'kprobe.state' : `kprobe-${proxy}.state`)
  }

  async read(): Promise<StateBytes | undefined> {
    try {
      if (!(await this.#isFolder())) return undefined
      const file = await open(this.path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK)
      try {
        return await readWhole(file, this.path)
      } finally {
        await file.close()
      }
    } catch (thrown) {
      if (codeOf(thrown) === 'ENOENT') return undefined
      throw failure(thrown)
    }
  }

  /** Replaces the file, and creates the folder. Gives the bytes. Throws SavedStateError. */
  async write(chunks: Iterable<Buffer>): Promise<number> {
    const draft = `${this.path}.new`
    try {
      if (!(await this.#isFolder())) await mkdir(this.#folder, { mode: 0o700 })
      // A process that was killed may have left its draft.
      await rm(draft, { force: true })
      const bytes = await writeNew(draft, chunks)
      await rename(draft, this.path)
      await syncFolder(this.#folder)
      return bytes
    } catch (thrown) {
      await rm(draft, { force: true }).catch(() => undefined)
      throw failure(thrown)
    }
  }

  /** Records that the state was confirmed at this time. Throws SavedStateError. */
  async confirm(wallMs: number): Promise<void> {
    try {
      await utimes(this.path, wallMs / 1_000, wallMs / 1_000)
    } catch (thrown) {
      throw failure(thrown)
    }
  }

  /** False when there is none. Throws SavedStateError where other users could replace what is in it. */
  async #isFolder(): Promise<boolean> {
    const stats = await stat(this.#folder).catch(error => {
      if (codeOf(error) === 'ENOENT') return undefined
      throw error
    })
    if (stats === undefined) return false
    if (!stats.isDirectory()) throw new SavedStateError('permissions', `${this.#folder} is not a folder`)
    checkOwnership(this.#folder, stats)
    return true
  }
}

function checkOwnership(path: string, { mode, uid }: Stats): void {
  const octal = (mode & 0o7777).toString(8).padStart(4, '0')
  if ((mode & OTHERS_WRITE) !== 0)
    throw new SavedStateError(
      'permissions',
      `other users may write to ${path} (mode ${octal}); run chmod go-w`,
    )
  if (uid !== 0 && uid !== process.geteuid?.())
    throw new SavedStateError(
      'permissions',
      `${path} belongs to the user ${uid}, neither to root nor to this process`,
    )
}

async function readWhole(file: FileHandle, path: string): Promise<StateBytes> {
  const stats = await file.stat()
  if (!stats.isFile()) throw new SavedStateError('foreign', 'it is not a regular file')
  checkOwnership(path, stats)
  const bytes = await readToEnd(file, STATE_BYTES_MAX, stats.size)
  if (bytes === undefined)
    throw new SavedStateError('too-large', tooLarge(Math.max(stats.size, STATE_BYTES_MAX + 1)))
  return { bytes, confirmedWallMs: stats.mtimeMs }
}

async function writeNew(path: string, chunks: Iterable<Buffer>): Promise<number> {
  const file = await open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600)
  try {
    let bytes = 0
    for (const chunk of chunks) {
      await file.writeFile(chunk)
      bytes += chunk.length
    }
    await file.sync()
    return bytes
  } finally {
    await file.close()
  }
}

/** Writes the folder to the disk: a loss of power may undo the rename otherwise. */
async function syncFolder(path: string): Promise<void> {
  const folder = await open(path, O_RDONLY | O_DIRECTORY)
  try {
    await folder.sync()
  } finally {
    await folder.close()
  }
}

function failure(thrown: unknown): SavedStateError {
  if (thrown instanceof SavedStateError) return thrown
  const reason = codeOf(thrown) === 'ELOOP' ? 'foreign' : 'unreadable'
  return new SavedStateError(reason, errorText(thrown), { cause: thrown })
}
