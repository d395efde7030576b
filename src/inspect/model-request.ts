import { buildInfo, buildText } from '../base/build-info.ts'
import { failureText } from '../base/errors.ts'
import { type Command, EXIT_FAILED, type Io } from '../cli/io.ts'
import {
  helpOf,
  type RequestOptions,
  type RunCommand,
  readRequest,
  runAsked,
  usageErrors,
} from '../cli/request.ts'
import { type FlagTexts, modelFlags } from '../config/daemon-config.ts'
import { type ConfigError, type FlagReader, quote } from '../config/flag.ts'
import { MODEL_FLAGS, MODEL_SOCKET_FLAG, WITHOUT_EFFECT } from '../config/flags.ts'
import { type RunRequest, readFlags } from '../config/load-config.ts'
import { defaultAdminSocket } from '../config/own-flags.ts'
import { networkNamespace } from '../daemon/instance-lock.ts'
import { isDnsLabel, isJson } from '../model/fields.ts'
import { askDaemon, versionIn } from './admin-client.ts'

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

interface FlagDifference {
  readonly flag: string
  readonly here: string
  readonly there: string
}

export function flagDifferences(here: FlagTexts, there: FlagTexts): readonly FlagDifference[] {
  return Object.entries(here).flatMap(([flag, text]) => {
    const other = there[flag]
    return other === undefined || other === text ? [] : [{ flag, here: text, there: other }]
  })
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

/** Makes a command that computes the state of `kprobe run`: see readModelRequest. */
export function modelCommand<Asked extends object>(own: RunCommand<Asked, ModelRequest>): Command {
  const details = [...(own.details ?? []), FROM_DAEMON, WITHOUT_EFFECT]
  return {
    help: () => helpOf({ ...own, details }, [...MODEL_FLAGS, MODEL_SOCKET_FLAG, ...own.flags]),
    run: (argv, io) => runAsked(own, io, options => readModelRequest(argv, io, options)),
  }
}
