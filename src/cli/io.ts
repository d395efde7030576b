import { open, readFile, rm, stat } from 'node:fs/promises'
import type { HelpPage } from '../config/help.ts'

/** The parts of the process that a command may use. */
export interface Io {
  /** Standard output, for results. */
  readonly out: (text: string) => void
  /** The same for bytes. */
  readonly outBytes: (bytes: Uint8Array) => void
  /** Standard error, for everything else. */
  readonly err: (text: string) => void
  /** Aborted when standard output fails, with the error as its reason. */
  readonly outLost: AbortSignal
  /** Resolves when all text for standard output is written or lost, or `signal` is aborted. */
  readonly outWritten: () => Promise<void>
  /** Bytes of standard output that its reader has not read yet. */
  readonly outBacklogBytes: () => number
  /** Standard output is a terminal, and NO_COLOR is not set. */
  readonly color: boolean
  /** Standard output is a terminal. */
  readonly terminal: boolean
  /** Aborted by SIGINT, SIGTERM and SIGQUIT, with the name of the signal as its reason. */
  readonly signal: AbortSignal
  /** Width of the terminal; undefined when there is none. */
  readonly columns?: number | undefined
  /** Runs `run` at each of these signals, which otherwise end the process. The result ends this. */
  readonly on: (signal: 'SIGHUP' | 'SIGUSR2', run: () => void) => () => void
  /**
   * Stops this process until the shell continues it, as Ctrl-Z does; undefined unless standard input and output are
   * terminals on which a command can draw.
   */
  readonly suspend?: (() => void) | undefined
  readonly hostName: string
  readonly processId: number
}

/** Exit codes are the same for all commands. */
export const EXIT_FINE = 0
export const EXIT_FAILED = 1
export const EXIT_USAGE = 2
export const EXIT_DIFFERENT = 3

export interface Command {
  help(): HelpPage
  /** Runs the command. Gives the exit code. */
  run(argv: readonly string[], io: Io): Promise<number>
}

/** Lends a resource, and closes it when `use` has ended. */
export async function lent<T extends { close(): unknown }, R>(
  resource: T,
  use: (resource: T) => R | Promise<R>,
): Promise<R> {
  try {
    return await use(resource)
  } finally {
    await resource.close()
  }
}

/**
 * Writes a text file. When that fails, as on a full disk, what a regular file held before is put back, and a file that
 * was not there is removed. Devices and pipes are written to as they are. Throws what the file system throws.
 */
export async function writeWholeFile(path: string, text: string): Promise<void> {
  const found = await stat(path).catch(() => undefined)
  const before = found?.isFile() === true ? await readFile(path).catch(() => undefined) : undefined
  // Without truncation first: the file keeps its blocks, into which the old text fits again.
  const file = await open(path, before === undefined ? 'w' : 'r+', 0o644)
  try {
    const bytes = Buffer.from(text)
    await file.writeFile(bytes)
    if (before !== undefined) await file.truncate(bytes.length)
  } catch (error) {
    if (found === undefined) await rm(path, { force: true })
    if (before !== undefined) {
      await writeAt(file, before)
      await file.truncate(before.length)
    }
    throw error
  } finally {
    await file.close()
  }
}

async function writeAt(file: Awaited<ReturnType<typeof open>>, bytes: Buffer): Promise<void> {
  for (let at = 0; at < bytes.length; )
    at += (await file.write(bytes, at, bytes.length - at, at)).bytesWritten
}
