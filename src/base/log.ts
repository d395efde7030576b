import { constants, fstatSync, openSync, writeSync } from 'node:fs'
import { type DestinationStream, type Logger, pino } from 'pino'
import { errorText } from './errors.ts'
import { oneLine } from './text.ts'

export type Log = Logger

export interface LogOptions {
  readonly format: 'text' | 'json'
  /** kube-proxy's -v: 0 logs what an operator must know, 2 adds each commit, 4 adds everything. */
  readonly verbosity: number
  /** Destination of the lines; standard error except in tests. Lines are written at once: none is lost in a crash. */
  readonly destination?: DestinationStream
}

export interface AdjustableLog {
  readonly log: Log
  set(options: Pick<LogOptions, 'format' | 'verbosity'>): void
}

/** Messages carry their facts as fields; values from outside never reach the message text itself. */
export function createLog(options: LogOptions): Log {
  return openLog(options).log
}

export function openLog(options: LogOptions): AdjustableLog {
  let { format } = options
  const render = (json: string) => (format === 'json' ? json : textLine(json))
  const destination = options.destination ?? standardError(lines => render(lostRecord(lines)))
  const log = pino(
    {
      level: levelOf(options.verbosity),
      base: null,
      timestamp: () => `,"time":"${new Date().toISOString()}"`,
      formatters: { level: label => ({ level: label }) },
      serializers: { err: errorRecord },
    },
    { write: json => destination.write(render(json)) },
  )
  return {
    log,
    set(now) {
      format = now.format
      log.level = levelOf(now.verbosity)
    },
  }
}

/** Writes an error as pino does; its message does not repeat causes that it already contains. */
function errorRecord(error: unknown): unknown {
  return error instanceof Error ? { ...pino.stdSerializers.err(error), message: errorText(error) } : error
}

function levelOf(verbosity: number): 'trace' | 'debug' | 'info' {
  return verbosity >= 4 ? 'trace' : verbosity >= 2 ? 'debug' : 'info'
}

/** Writes each line before the caller continues, unless the output is full. */
function standardError(lostLine: (lines: number) => string): DestinationStream {
  return new LineWriter({ fd: 2, lostLine })
}

function lostRecord(lines: number): string {
  const msg = 'log lines are missing here; they could not be written'
  return `${JSON.stringify({ level: 'warn', time: new Date().toISOString(), lines, msg })}\n`
}

const MARKS: Readonly<Record<string, string>> = {
  trace: 'T',
  debug: 'D',
  info: 'I',
  warn: 'W',
  error: 'E',
  fatal: 'F',
}

/** `I 2026-11-21T10:00:00.000Z message field=value`: a line for people, still one record a line. */
function textLine(json: string): string {
  const { level, time, msg, ...fields } = readRecord(json)
  const facts = Object.entries(fields).map(([name, value]) => ` ${name}=${textOf(value)}`)
  return `${MARKS[String(level)] ?? '?'} ${time} ${oneLine(String(msg))}${facts.join('')}\n`
}

function readRecord(json: string): Readonly<Record<string, unknown>> {
  const record: unknown = JSON.parse(json)
  return typeof record === 'object' && record !== null ? { ...record } : {}
}

function textOf(value: unknown): string {
  if (typeof value === 'string' && /^[\w./:@+-]+$/.test(value)) return value
  if (isError(value)) return oneLine(JSON.stringify(value.message))
  return oneLine(JSON.stringify(value) ?? String(value))
}

function isError(value: unknown): value is { readonly message: string } {
  return typeof value === 'object' && value !== null && 'stack' in value && 'message' in value
}

interface LineWriterOptions {
  readonly fd: number
  /** A line that reports how many before it were lost. */
  readonly lostLine: (lines: number) => string
}

const NOTHING: Readonly<Uint8Array> = new Uint8Array(0)

/**
 * Writes lines to a descriptor at once, so that none is missing after a crash, and never waits for a reader: what a full
 * pipe does not take is lost, as is what a full disk does not, and reported when there is room again. Holds at most the
 * rest of one line.
 */
export class LineWriter {
  readonly #options: LineWriterOptions
  readonly #fd: number
  #rest: Uint8Array = NOTHING
  #lost = 0

  constructor(options: LineWriterOptions) {
    this.#options = options
    this.#fd = withoutWaiting(options.fd)
  }

  write(line: string): void {
    if (this.#rest.length > 0) this.#put(this.#rest)
    if (this.#rest.length === 0 && this.#lost > 0 && this.#begin(this.#options.lostLine(this.#lost)))
      this.#lost = 0
    if (this.#rest.length > 0 || this.#lost > 0 || !this.#begin(line)) this.#lost++
  }

  /** Returns false when none of the line was taken. */
  #begin(line: string): boolean {
    const bytes = Buffer.from(line)
    this.#put(bytes)
    if (this.#rest.length < bytes.length) return true
    this.#rest = NOTHING
    return false
  }

  #put(bytes: Uint8Array): void {
    try {
      this.#rest = bytes.subarray(writeSync(this.#fd, bytes))
    } catch {
      // Full, or closed: no reader is left, and Services need the daemon.
      this.#rest = bytes
    }
  }
}

/** A pipe opened once more: not to wait is a property of what is open, which other processes may share. */
function withoutWaiting(fd: number): number {
  try {
    if (!fstatSync(fd).isFIFO()) return fd
    return openSync(`/proc/self/fd/${fd}`, constants.O_WRONLY | constants.O_NONBLOCK)
  } catch {
    // Without /proc, or with a pipe of another user, it is written to as it is.
    return fd
  }
}
