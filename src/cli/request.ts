import { failureText } from '../base/errors.ts'
import { oneLine } from '../base/text.ts'
import type { Config } from '../config/config.ts'
import { readConfigFile } from '../config/config-document.ts'
import { type ConfigError, FlagReader, type FlagSpec, quote, readArguments } from '../config/flag.ts'
import { HELP_FLAG } from '../config/flags.ts'
import { helpText } from '../config/help.ts'
import { loadConfig, type RunRequest } from '../config/load-config.ts'
import { type Command, EXIT_FAILED, EXIT_USAGE, type Io } from './io.ts'

export interface RequestOptions {
  readonly command: string
  /** Flags of the command besides those of `run`. */
  readonly extra: readonly FlagSpec[]
  /** The command does not use the kernel. */
  readonly modeless?: boolean
  /** Checks the command's own flags even if other flags are invalid. Reports errors to the reader. */
  readonly check?: (reader: FlagReader) => Promise<unknown>
}

/**
 * Reads the arguments of a command that accepts those of `kprobe run`. Reports all errors, and gives the exit code
 * then.
 */
export async function readRequest(
  argv: readonly string[],
  io: Io,
  { command, check, ...options }: RequestOptions,
): Promise<RunRequest | number> {
  const parsed = await loadConfig(argv, {
    hostName: io.hostName,
    env: process.env,
    ...options,
    readFile: readConfigFile,
  })
  if (parsed.kind === 'errors') {
    const { errors, extra } = parsed
    if (extra !== undefined) await check?.(extra)
    return usageErrors(io, command, [...errors, ...(extra?.errors ?? [])])
  }
  usageWarnings(io, command, parsed.value.warnings)
  return parsed.value
}

export function usageErrors(io: Io, command: string, errors: readonly ConfigError[]): number {
  const lines = new Set(
    errors.map(({ path, message }) => `kprobe ${command}: ${oneLine(`${path}: ${message}`)}\n`),
  )
  for (const line of lines) io.err(line)
  io.err(`see \`kprobe ${command} --help\`\n`)
  return EXIT_USAGE
}

export function usageWarnings(io: Io, command: string, warnings: readonly string[]): void {
  for (const warning of warnings) io.err(`kprobe ${command}: ${oneLine(warning)}\n`)
}

interface CommandHelp {
  readonly name: string
  /** Follow the name in the usage line. */
  readonly usage?: string
  readonly description: string
  readonly details?: readonly string[]
}

export function helpOf(
  { name, usage = '[flags]', description, details = [] }: CommandHelp,
  flags: readonly FlagSpec[],
) {
  const more = details.length === 0 ? {} : { details }
  return helpText({ usage: `kprobe ${name} ${usage}`, description, ...more, flags: [...flags, HELP_FLAG] })
}

/** A command that takes none of the flags of `kprobe run`. */
interface OwnCommand<Asked> extends CommandHelp {
  readonly flags: readonly FlagSpec[]
  /** The command reads its arguments itself; else each one is an error. */
  readonly takesArguments?: true
  /** Reads what is asked. Reports errors to the reader, and may give undefined then. */
  readonly read: (reader: FlagReader, io: Io) => Asked | undefined
  /** Gives the exit code. What it throws is printed as a failure of the command. */
  readonly run: (asked: Asked, io: Io) => Promise<number>
}

/** Fails for a word that a command does not know, or for want of one: `what` names it as the usage does. */
export function failWord(reader: FlagReader, what: string, word: string | undefined, known: string): void {
  if (word === undefined) reader.fail(what, `is missing; ${known}`)
  else reader.fail(quote(word), `no such argument; ${known}`)
}

export function ownCommand<Asked extends object>(own: OwnCommand<Asked>): Command {
  const { name, flags } = own
  return {
    help: () => helpOf(own, flags),
    async run(argv, io) {
      const reader = new FlagReader(readArguments(argv, flags))
      if (own.takesArguments !== true)
        for (const argument of reader.positionals) reader.fail(quote(argument), 'no such argument')
      const asked = own.read(reader, io)
      if (reader.errors.length > 0 || asked === undefined) return usageErrors(io, name, reader.errors)
      return await orFailed(io, name, () => own.run(asked, io))
    },
  }
}

/** A command that accepts the flags of `kprobe run`. */
export interface RunCommand<Asked, Request extends RunRequest = RunRequest> extends CommandHelp {
  readonly flags: readonly FlagSpec[]
  /** Reads the command's own flags, also if others are invalid. Reports errors to the reader, and may give undefined then. */
  readonly read: (reader: FlagReader, config?: Config) => Asked | undefined | Promise<Asked | undefined>
  /** Gives the exit code. What it throws is printed as a failure of the command. */
  readonly run: (asked: Asked, request: Request, io: Io) => Promise<number>
}

interface FlaggedCommand<Asked> extends RunCommand<Asked> {
  /** Flags in the help besides those of the command. */
  readonly listed: readonly FlagSpec[]
  /** The command does not use the kernel. */
  readonly modeless?: true
}

export function flaggedCommand<Asked extends object>(own: FlaggedCommand<Asked>): Command {
  return {
    help: () => helpOf(own, own.listed),
    run: (argv, io) =>
      runAsked(own, io, options => readRequest(argv, io, { ...options, modeless: own.modeless === true })),
  }
}

/** Reads everything and runs the command. */
export async function runAsked<Asked, Request extends RunRequest>(
  { name, flags, read, run }: RunCommand<Asked, Request>,
  io: Io,
  readAll: (options: RequestOptions) => Promise<Request | number>,
): Promise<number> {
  const request = await readAll({ command: name, extra: flags, check: async reader => await read(reader) })
  if (typeof request === 'number') return request
  const { config, extra } = request
  const asked = await read(extra, config)
  if (extra.errors.length > 0 || asked === undefined) return usageErrors(io, name, extra.errors)
  return await orFailed(io, name, () => run(asked, request, io))
}

/** Makes a command of the arguments behind `--`, which are not its own. */
export function behindDashes(make: (rest: readonly string[]) => Command): Command {
  return {
    help: () => make([]).help(),
    run(argv, io) {
      const border = argv.indexOf('--')
      return border < 0 ? make([]).run(argv, io) : make(argv.slice(border + 1)).run(argv.slice(0, border), io)
    },
  }
}

/** Gives the exit code of `run`. Prints what it throws as a failure of the command. */
export async function orFailed(io: Io, command: string, run: () => Promise<number>): Promise<number> {
  try {
    return await run()
  } catch (error) {
    io.err(`kprobe ${command}: ${oneLine(failureText(error))}\n`)
    return EXIT_FAILED
  }
}
