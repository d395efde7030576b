import { open, readFile, rm, stat } from 'node:fs/promises'
import type { Writable } from 'node:stream'
import { type Clock, within } from '../base/clock.ts'
import { count, oneLine } from '../base/text.ts'
import type { HelpPage } from '../config/help.ts'
import type { OptionalParts } from '../daemon/optional-parts.ts'
import type { PlanLine } from '../reconcile/dataplane.ts'

export interface Io {
  readonly out: (text: string) => void
  /** Writes bytes to the same stream as `out`. */
  readonly outBytes: (bytes: Uint8Array) => void
  readonly err: (text: string) => void
  /** Aborted when standard output fails, with the error as its reason. */
  readonly outLost: AbortSignal
  /** Resolves when all text for standard output is written or lost, or `signal` is aborted. */
  readonly outWritten: () => Promise<void>
  /** Bytes of standard output that its reader has not read yet. */
  readonly outBacklogBytes: () => number
  /** Standard output is a terminal, and NO_COLOR is not set. */
  readonly color: boolean
  readonly terminal: boolean
  /** Aborted by SIGINT, SIGTERM and SIGQUIT, with the name of the signal as its reason. */
  readonly signal: AbortSignal
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
  readonly parts: OptionalParts
}

/** Exit codes are the same for all commands. */
export const EXIT_FINE = 0
export const EXIT_FAILED = 1
export const EXIT_USAGE = 2
export const EXIT_DIFFERENT = 3
/** Rules of other programs, which the proof cannot follow, may decide about packets of Services. */
export const EXIT_UNKNOWN = 4

export interface Command {
  help(): HelpPage
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

/** Reads a file; undefined if it does not exist or is not readable: settings of an absent module are absent. */
export async function readText(path: string): Promise<string | undefined> {
  try {
    return (await readFile(path, 'utf8')).trim()
  } catch (error) {
    if (!isErrno(error)) throw error
    return undefined
  }
}

/**
 * Writes a text file. When that fails, as on a full disk, what a regular file held before is put back, and a file that
 * was not there is removed. Devices and pipes are written to as they are. Throws what the file system throws.
 */
export async function writeWholeFile(path: string, text: string): Promise<void> {
  const found = await stat(path).catch(() => undefined)
  const before = found?.isFile() === true ? await readFile(path).catch(() => undefined) : undefined
  // The file is not truncated first: if the write fails, the old text still fits into its blocks.
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

/**
 * Prints warnings after the results: in one terminal or pipe, those would push them out of sight. `rest` ends a list
 * that is cut short.
 */
export async function writeWarnings(
  warnings: readonly string[],
  io: Io,
  { max = Number.POSITIVE_INFINITY, rest = '' } = {},
): Promise<void> {
  if (warnings.length === 0) return
  await io.outWritten()
  for (const warning of warnings.slice(0, max)) io.err(`${oneLine(warning)}\n`)
  const more = warnings.length - max
  if (more > 0) io.err(`and ${count(more, 'more warning')}; ${rest}\n`)
}

const GAP = '   '
/** Turns bold letters on and off. */
export const BOLD = ['\u001b[1m', '\u001b[22m'] as const

export interface TableOptions {
  readonly color: boolean
  /**
   * Maximum width of a column: a longer cell does not widen its column, but shifts the rest of its row. Unset: no
   * limit.
   */
  readonly widest?: number
}

/** Formats aligned columns with a heading, one line a row; cells from outside cannot break the lines. */
export function tableText(
  heading: readonly string[],
  rows: readonly (readonly string[])[],
  options: TableOptions,
): string {
  const clean = rows.map(row => row.map(oneLine))
  const { widest = Number.POSITIVE_INFINITY } = options
  const widths = heading.map((title, column) =>
    clean
      .map(row => row[column]?.length ?? 0)
      .filter(length => length <= widest)
      .reduce((width, length) => Math.max(width, length), title.length),
  )
  const line = (cells: readonly string[]) =>
    cells
      .map((cell, column) => cell.padEnd(column === cells.length - 1 ? 0 : (widths[column] ?? 0)))
      .join(GAP)
      .trimEnd()
  const [on, off] = options.color ? BOLD : ['', '']
  return [on + line(heading) + off, ...clean.map(line), ''].join('\n')
}

const SIGNS: Readonly<Record<PlanLine['verb'], string>> = { add: '+', change: '~', remove: '-' }
const LINES_PER_TEXT = 1_000

/** Formats a plan as text: a heading for each Service, a line for each object. Gives texts of many lines. */
export function* planLines(lines: Iterable<PlanLine>): Generator<string> {
  let text: string[] = []
  let heading: string | undefined
  for (const line of lines) {
    const { service } = line
    const title = service === undefined ? 'shared by all Services' : `Service ${oneLine(service)}`
    if (title !== heading) text.push(`${title}:\n`)
    heading = title
    text.push(`  ${planLine(line)}\n`)
    if (text.length < LINES_PER_TEXT) continue
    yield text.join('')
    text = []
  }
  if (text.length > 0) yield text.join('')
}

export function planLine({ verb, object }: Pick<PlanLine, 'verb' | 'object'>): string {
  return `${SIGNS[verb]} ${oneLine(object)}`
}

/**
 * A standard stream whose reader may go away (`kprobe dump | head`) or whose file may fail (a full disk). After a
 * failure it drops all output: the command runs to its end, and a daemon serves on.
 */
export class Outlet {
  readonly #stream: Writable
  readonly #lost = new AbortController()
  #used = false
  #failure: NodeJS.ErrnoException | undefined

  constructor(stream: Writable) {
    this.#stream = stream
    stream.on('error', (error: NodeJS.ErrnoException) => this.#lose(error))
  }

  /** Aborted when writing fails, with the error as its reason. */
  get lost(): AbortSignal {
    return this.#lost.signal
  }

  /** The reason why writing failed; undefined if the reader merely closed the pipe (EPIPE). */
  get failure(): Error | undefined {
    return this.#failure?.code === 'EPIPE' ? undefined : this.#failure
  }

  /** Written bytes that the reader has not read yet; a reader may be slow, or stall. */
  get backlogBytes(): number {
    return this.#stream.writableLength
  }

  write(text: string | Uint8Array): void {
    if (this.#failure !== undefined) return
    this.#used = true
    try {
      this.#stream.write(text)
    } catch (error) {
      // Node 20 throws errors of writes to a file.
      if (!isErrno(error)) throw error
      this.#lose(error)
    }
  }

  /** Resolves when all output is written or lost, or `stop` is aborted. */
  async written(stop: AbortSignal): Promise<void> {
    if (this.#used && this.#failure === undefined) await unlessAborted(this.#taken(), stop)
  }

  /** Waits in the same way. Gives a stalled reader a moment more after `stop`, and then records a failure. */
  async drained({ stop, clock }: { readonly stop: AbortSignal; readonly clock: Clock }): Promise<void> {
    if (!this.#used || this.#failure !== undefined) return
    const taken = this.#taken()
    await unlessAborted(taken, stop)
    // A reader that works needs less for the rest.
    if (!(await within(clock, 300, taken)))
      this.#failure ??= new Error(`reader stopped with ${this.backlogBytes} bytes unwritten`)
    // Node reports an error one turn after the write has ended.
    await new Promise(done => setImmediate(done))
  }

  /** An empty write ends after those before it. */
  #taken(): Promise<void> {
    return new Promise(done => this.#stream.write('', () => done()))
  }

  #lose(error: NodeJS.ErrnoException): void {
    if (this.#failure !== undefined) return
    this.#failure = error
    this.#lost.abort(error)
  }
}

/** Waits for the work or the signal. Nothing of it stays at the signal, which lives for as long as the process. */
function unlessAborted(work: Promise<void>, signal: AbortSignal): Promise<void> {
  return new Promise(resolve => {
    const end = (): void => {
      signal.removeEventListener('abort', end)
      resolve()
    }
    signal.addEventListener('abort', end)
    void work.then(end)
    if (signal.aborted) end()
  })
}

export function aborted(signal: AbortSignal): Promise<void> {
  return new Promise(resolve => {
    signal.addEventListener('abort', () => resolve(), { once: true })
    if (signal.aborted) resolve()
  })
}

function isErrno(error: unknown): error is NodeJS.ErrnoException {
  return error instanceof Error && 'code' in error
}
