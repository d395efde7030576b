import { type DestinationStream, type Logger, pino } from 'pino'
import { oneLine } from './text.ts'

export type Log = Logger

export interface LogOptions {
  readonly format: 'text' | 'json'
  /** kube-proxy's -v: 0 tells what an operator must know, 2 adds each commit, 4 adds everything. */
  readonly verbosity: number
  /** Where lines go; standard error unless a test says otherwise. Written synchronously: no line is lost in a crash. */
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
  const json = options.destination ?? standardError()
  const text = textStream(json)
  let { format } = options
  const log = pino(
    {
      level: levelOf(options.verbosity),
      base: null,
      timestamp: () => `,"time":"${new Date().toISOString()}"`,
      formatters: { level: label => ({ level: label }) },
    },
    { write: line => (format === 'json' ? json : text).write(line) },
  )
  return {
    log,
    set(now) {
      format = now.format
      log.level = levelOf(now.verbosity)
    },
  }
}

function levelOf(verbosity: number): 'trace' | 'debug' | 'info' {
  return verbosity >= 4 ? 'trace' : verbosity >= 2 ? 'debug' : 'info'
}

/** Lines that cannot be written (a full disk) are lost: nothing is left to tell it with, and Services need the daemon. */
function standardError(): DestinationStream {
  const destination = pino.destination({ fd: 2, sync: true })
  destination.on('error', () => undefined)
  return destination
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
function textStream(destination: DestinationStream): DestinationStream {
  return {
    write(json) {
      const { level, time, msg, ...fields } = readRecord(json)
      const facts = Object.entries(fields).map(([name, value]) => ` ${name}=${textOf(value)}`)
      destination.write(`${MARKS[String(level)] ?? '?'} ${time} ${oneLine(String(msg))}${facts.join('')}\n`)
    },
  }
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
