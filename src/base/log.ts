import { type DestinationStream, type Logger, pino } from 'pino'
import { errorText } from './errors.ts'
import { LineWriter } from './line-writer.ts'
import { oneLine } from './text.ts'

export type Log = Logger

export interface LogOptions {
  readonly format: 'text' | 'json'
  /** kube-proxy's -v: 0 logs what an operator must know, 2 adds each commit, 4 adds everything. */
  readonly verbosity: number
  /** Destination of the lines; standard error except in tests. Lines are written at once: none is lost in a crash. */
  readonly destination?: DestinationStream
}

/** A log whose form and amount can change while it is in use. */
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
