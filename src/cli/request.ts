import { buildInfo, buildText } from '../base/build-info.ts'
import { failureText } from '../base/errors.ts'
import { oneLine } from '../base/text.ts'
import type { Config } from '../config/config.ts'
import { readConfigFile } from '../config/config-document.ts'
import { type FlagDifference, type FlagTexts, flagDifferences, modelFlags } from '../config/daemon-config.ts'
import { type ConfigError, FlagReader, type FlagSpec, quote, readArguments } from '../config/flag.ts'
import { HELP_FLAG, MODEL_FLAGS, MODEL_SOCKET_FLAG, WITHOUT_EFFECT } from '../config/flags.ts'
import { helpText } from '../config/help.ts'
import { loadConfig, type RunRequest, readFlags } from '../config/load-config.ts'
import { defaultAdminSocket } from '../config/own-flags.ts'
import { networkNamespace } from '../daemon/instance-lock.ts'
import { isDnsLabel, isJson } from '../model/fields.ts'
import { askDaemon, versionIn } from './admin-client.ts'
import { type Command, EXIT_FAILED, EXIT_USAGE, type Io } from './io.ts'

interface RequestOptions {
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

/** The task of a command, with the origin of its configuration and objects. */
export interface ModelRequest extends RunRequest {
  /** The daemon's admin socket, which gives both; undefined if both come from flags and the source. */
  readonly daemon: string | undefined
  /** Notices about that origin; printed before anything is read. */
  readonly notices: readonly string[]
}

/** Flags that select a source. With one of them, a command reads the objects itself, with its own flags. */
const SOURCE_FLAGS: readonly string[] = ['config', 'kubeconfig', 'master', 'source']

function namesSource(given: FlagReader): boolean {
  return SOURCE_FLAGS.some(flag => given.given(flag))
}

const FROM_DAEMON =
  'Configuration and objects are those of the daemon at --admin-socket. Flags are needed only where no daemon answers, ' +
  'or with --source, --config, --kubeconfig or --master: then the command reads the objects itself.'

/**
 * Reads the arguments of a command that computes the state of `kprobe run`. Without a flag that names a source, the
 * configuration is that of the daemon at the admin socket, if one answers. Reports all errors, and gives the exit code
 * then.
 */
export async function readModelRequest(
  argv: readonly string[],
  io: Io,
  options: RequestOptions,
): Promise<ModelRequest | number> {
  const given = readFlags(argv, options)
  const hasSource = namesSource(given)
  const daemon = await findDaemon(given, !hasSource)
  const isUsed = daemon.kind === 'found' && !hasSource
  const request = await readRequest(isUsed ? withFlags(argv, daemon, given) : argv, io, options)
  if (typeof request === 'number') return request
  if (daemon.kind === 'failed') {
    io.err(`kprobe ${options.command}: ${daemon.message}\n`)
    return EXIT_FAILED
  }
  if (daemon.kind === 'absent') {
    const notice = `kprobe ${options.command}: no daemon answers at ${daemon.socket} (--admin-socket names another socket); reading the API server`
    return { ...request, daemon: undefined, notices: hasSource ? [] : [notice] }
  }
  const differing = flagDifferences(modelFlags(request.config), daemon.flags)
  if (isUsed && differing.length > 0)
    return usageErrors(io, options.command, contradictions(differing, daemon.socket))
  const notices = differing.map(
    ({ flag, here, there }) =>
      `kprobe ${options.command}: --${flag} is ${shown(here)}; the daemon at ${daemon.socket} has ${shown(there)}`,
  )
  return { ...request, daemon: isUsed ? daemon.socket : undefined, notices }
}

function contradictions(differing: readonly FlagDifference[], socket: string): readonly ConfigError[] {
  return differing.map(({ flag, here, there }) => ({
    path: `--${flag}`,
    message: `is ${shown(here)}; the daemon at ${socket} has ${shown(there)}; omit the flag, or give --source to use your own flags`,
  }))
}

function shown(text: string): string {
  return text === '' ? 'unset' : quote(text)
}

type Found = { readonly kind: 'found'; readonly socket: string; readonly flags: FlagTexts }

/** Queries the daemon. A failure is an error if --admin-socket was given, or if no flag names a source. */
async function findDaemon(
  given: FlagReader,
  isNeeded: boolean,
): Promise<
  | Found
  | { readonly kind: 'absent'; readonly socket: string }
  | { readonly kind: 'failed'; readonly message: string }
> {
  const asked = given.text('admin-socket') ?? ''
  const socket = asked === '' ? defaultAdminSocket(given.text('service-proxy-name') || undefined) : asked
  try {
    const flags = await checkDaemon(socket)
    if (flags !== undefined) return { kind: 'found', socket, flags }
    if (asked !== '') throw new Error(`no daemon answers at ${socket}`)
  } catch (error) {
    if (asked !== '' || isNeeded) return { kind: 'failed', message: failureText(error) }
  }
  return { kind: 'absent', socket }
}

/**
 * Reads the daemon's flags; undefined if no daemon answers. Throws for a daemon of another version or network namespace,
 * and for a socket of another program; the command can read objects itself unless `otherwise` is false.
 */
export async function checkDaemon(
  socket: string,
  { otherwise = true }: { readonly otherwise?: boolean } = {},
): Promise<FlagTexts | undefined> {
  const answer = await askDaemon(socket, '/config')
  if (answer === undefined) return undefined
  const version = versionIn(answer, socket)
  const { network, flags } = isJson(answer) ? answer : {}
  const ours = buildText(buildInfo())
  if (version !== ours)
    throw new Error(
      `${socket}: the daemon is kprobe ${version}, this command is ${ours}; run the daemon's own${otherwise ? ', or give --source' : ''}`,
    )
  if (network !== (await networkNamespace()))
    throw new Error(
      `${socket}: the daemon runs in another network namespace; ${otherwise ? 'give --source to read objects here' : 'run the command there'}`,
    )
  if (!isJson(flags)) throw new Error(`${socket}: /config has no flags`)
  return Object.fromEntries(Object.entries(flags).map(([flag, text]) => [flag, String(text)]))
}

/**
 * Puts the daemon's flags before the arguments. Lists add up, so that a given flag replaces that of the daemon; feature
 * gates merge by name.
 */
function withFlags(argv: readonly string[], { flags }: Found, given: FlagReader): readonly string[] {
  const missing = Object.entries(flags).filter(
    ([flag, text]) => text !== '' && (flag === 'feature-gates' || !given.given(flag)),
  )
  return [...missing.map(([flag, text]) => `--${flag}=${text}`), ...argv]
}

export const NAMESPACE_FLAG = {
  name: 'namespace',
  short: 'n',
  kind: 'text',
  placeholder: 'NAMESPACE',
} as const

/** Reads the namespace; empty without the flag. Reports errors to the reader. */
export function readNamespace(reader: FlagReader): string {
  const name = reader.text('namespace') ?? ''
  if (name !== '' && !isDnsLabel(name))
    reader.fail('--namespace', `${quote(name)} is not the name of a namespace`)
  return name
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

function helpOf(
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

/** Makes a command that computes the state of `kprobe run`: see readModelRequest. */
export function modelCommand<Asked extends object>(own: RunCommand<Asked, ModelRequest>): Command {
  const details = [...(own.details ?? []), FROM_DAEMON, WITHOUT_EFFECT]
  return {
    help: () => helpOf({ ...own, details }, [...MODEL_FLAGS, MODEL_SOCKET_FLAG, ...own.flags]),
    run: (argv, io) => runAsked(own, io, options => readModelRequest(argv, io, options)),
  }
}

async function runAsked<Asked, Request extends RunRequest>(
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
