import { constants, type Stats } from 'node:fs'
import { type FileHandle, mkdir, open, rename, rm, stat, utimes } from 'node:fs/promises'
import { join } from 'node:path'
import { errorText } from '../../base/errors.ts'
import { SavedStateError, STATE_BYTES_MAX, tooLarge } from './state-format.ts'

/** What a file held, and when the state in it was confirmed last, in milliseconds since 1970. */
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

  /** `proxy` is empty for the unnamed proxy. */
  constructor(folder: string, proxy: string) {
    this.#folder = folder
    this.path = join(folder, proxy === '' ? 'kprobe.state' : `kprobe-${proxy}.state`)
  }

  /** Undefined when there is no file. Throws SavedStateError. */
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
  if (stats.size > STATE_BYTES_MAX) throw new SavedStateError('too-large', tooLarge(stats.size))
  const bytes = Buffer.alloc(stats.size)
  let length = 0
  while (length < bytes.length) {
    const { bytesRead } = await file.read(bytes, length, bytes.length - length, length)
    if (bytesRead === 0) break
    length += bytesRead
  }
  return { bytes: bytes.subarray(0, length), confirmedWallMs: stats.mtimeMs }
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

/** Without it, a loss of power may undo the rename. */
async function syncFolder(path: string): Promise<void> {
  const folder = await open(path, O_RDONLY | O_DIRECTORY)
  try {
    await folder.sync()
  } finally {
    await folder.close()
  }
}

function codeOf(error: unknown): unknown {
  return error instanceof Error && 'code' in error ? error.code : undefined
}

function failure(thrown: unknown): SavedStateError {
  if (thrown instanceof SavedStateError) return thrown
  const reason = codeOf(thrown) === 'ELOOP' ? 'foreign' : 'unreadable'
  return new SavedStateError(reason, errorText(thrown), { cause: thrown })
}
