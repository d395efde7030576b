import { access, constants, stat } from 'node:fs/promises'
import type { ApiTlsConfig, BindAddress, Config } from '../config/config.ts'
import { type FlagReader, quote } from '../config/flag.ts'
import { defaultApiAddress, readApiAddress, readApiTls } from '../config/own-flags.ts'

/** The task of one `kprobe api`. */
export interface ApiWanted {
  readonly print: 'state' | 'states' | 'differences' | undefined
  readonly programs: readonly ApiProgram[]
  /** Each program ends after one run. */
  readonly once: boolean
  readonly timeoutMs: number
  /** Undefined if the command serves no API. */
  readonly listen: string | undefined
  readonly tls: ApiTlsConfig | undefined
  /** The address of the metrics server. The default is none, because `kprobe run` uses the default port. */
  readonly metrics: BindAddress | undefined
}

export interface ApiArguments {
  readonly config: Pick<Config, 'once' | 'serviceProxyName' | 'metricsBindAddress'>
  /** The arguments after `--`. */
  readonly args: readonly string[]
  /** PATH; undefined when there is none. */
  readonly path: string | undefined
}

const TIMEOUT_MS = 60_000

/** Reads the flags of `kprobe api`; errors go to the reader. */
export async function readApiWanted(
  reader: FlagReader,
  { config, args, path }: ApiArguments,
): Promise<ApiWanted> {
  const fail = (message: string) => reader.fail('--exec', message)
  const programs = await Promise.all(
    reader.all('exec').map(given => readApiProgram(given, { args, path, fail })),
  )
  const prints = reader.bool('print')
  const serves = reader.given('listen') || (!prints && programs.length === 0)
  refuseWithoutPrint(reader, prints)
  refuseWithoutProgram(reader, programs, args)
  refuseEnds(reader, config)
  const tls = readApiTls(reader)
  if (tls !== undefined && !serves) reader.fail('--api-tls-cert', 'is for a server')
  if (reader.given('api') && serves && !reader.given('listen'))
    reader.fail('--api', 'is for `kprobe run`; `kprobe api` listens at --listen')
  return {
    print: prints ? printed(reader) : undefined,
    programs,
    once: config.once,
    timeoutMs: reader.durationMs('exec-timeout', { fallbackMs: TIMEOUT_MS }),
    listen: serves
      ? (readApiAddress(reader, 'listen') ?? defaultApiAddress(config.serviceProxyName))
      : undefined,
    tls,
    metrics: reader.given('metrics-bind-address') ? config.metricsBindAddress : undefined,
  }
}

function printed(reader: FlagReader): ApiWanted['print'] {
  if (reader.bool('diff')) return 'differences'
  return reader.bool('watch') ? 'states' : 'state'
}

function refuseWithoutPrint(reader: FlagReader, prints: boolean): void {
  for (const name of ['diff', 'watch'])
    if (reader.given(name) && !prints) reader.fail(`--${name}`, 'is for --print')
  if (reader.bool('diff') && reader.bool('watch'))
    reader.fail('--diff', 'cannot be combined with --watch: choose changes or whole states')
}

function refuseWithoutProgram(
  reader: FlagReader,
  programs: readonly ApiProgram[],
  args: readonly string[],
): void {
  if (args.some(arg => arg.includes('\0'))) reader.fail('--', 'an argument has a zero byte in it')
  if (programs.length === 0) {
    if (args.length > 0) reader.fail('--', 'arguments are for the programs of --exec')
    if (reader.given('exec-timeout')) reader.fail('--exec-timeout', 'is for --exec')
  } else if (args.length > 0 && programs.every(isLine))
    reader.fail('--', 'arguments are for programs; a line that the shell runs contains its own')
}

/** Refuses --once where the command would end anyway, or could not end. */
function refuseEnds(reader: FlagReader, { once }: ApiArguments['config']): void {
  if (!once) return
  if (!reader.given('exec')) reader.fail('--once', 'is for --exec; --print alone exits without it')
  for (const name of ['listen', 'watch', 'diff'])
    if (name === 'listen' ? reader.given(name) : reader.bool(name))
      reader.fail('--once', `cannot be combined with --${name}, which does not exit`)
}

/** The program of one --exec. */
export interface ApiProgram {
  /** The value of --exec. */
  readonly name: string
  /** A path, or a name that is searched in PATH. */
  readonly command: string
  readonly args: readonly string[]
}

interface ApiProgramOptions {
  /** The arguments after `--`. */
  readonly args: readonly string[]
  /** PATH; undefined when there is none. */
  readonly path: string | undefined
  /** Reports why the program cannot be used. */
  readonly fail: (message: string) => void
}

const SHELL = '/bin/sh'

/**
 * Reads one --exec. Its value is a program, which gets the arguments after `--`. A value with spaces that names no
 * program is a line for the shell, with its own arguments.
 */
export async function readApiProgram(
  given: string,
  { args, path, fail }: ApiProgramOptions,
): Promise<ApiProgram> {
  const program = { name: given, command: given, args }
  if (given.trim() === '' || given.includes('\0')) {
    fail(`${quote(given)} names no program`)
    return program
  }
  const whyNot = await whyNotProgram(given, path)
  if (whyNot !== ABSENT || !/\s/.test(given)) {
    if (whyNot !== undefined) fail(`${quote(given)}: ${whyNot}`)
    return program
  }
  const problem = await whyNotLine(given, path)
  if (problem !== undefined) fail(`${quote(given)}: ${problem}`)
  return { name: given, command: SHELL, args: ['-c', `${PIPEFAIL}; ${given}`] }
}

/**
 * Makes a pipe fail with any of its commands, if the shell can. The test runs in a subshell, because a shell without
 * the option (dash 0.5.12) would exit.
 */
const PIPEFAIL = '(set -o pipefail) 2>/dev/null && set -o pipefail'

export function isLine({ name, command }: ApiProgram): boolean {
  return name !== command
}

/** Only a path that does not exist is known to fail beforehand. The shell reports other errors with its exit code. */
async function whyNotLine(line: string, path: string | undefined): Promise<string | undefined> {
  if ((await whyNotProgram(SHELL, path)) !== undefined)
    return `no program has this name, and there is no ${SHELL} to run it as a line; put arguments of a program after --`
  const [, first] = /^\s*([\w./+-]*\/[\w./+-]*)(?:\s|$)/.exec(line) ?? []
  const whyNot = first === undefined ? undefined : await whyNotProgram(first, path)
  return whyNot === undefined ? undefined : `${first}: ${whyNot}`
}

const ABSENT = 'no such program'
/** The search path that execvp(3) uses without PATH. */
const DEFAULT_PATH = '/bin:/usr/bin'

async function whyNotProgram(command: string, path = DEFAULT_PATH): Promise<string | undefined> {
  if (command.includes('/')) return await whyNotFile(command)
  const found = await Promise.all(path.split(':').map(folder => whyNotFile(`${folder || '.'}/${command}`)))
  if (found.includes(undefined)) return undefined
  return found.find(whyNot => whyNot !== ABSENT) ?? ABSENT
}

async function whyNotFile(file: string): Promise<string | undefined> {
  try {
    if (!(await stat(file)).isFile()) return 'is not a file'
    await access(file, constants.X_OK)
    return undefined
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? error.code : undefined
    // A line may exceed the maximum length of a name.
    if (code === 'ENOENT' || code === 'ENOTDIR' || code === 'ENAMETOOLONG') return ABSENT
    return code === 'EACCES' ? 'is not executable' : String(error)
  }
}
