import { PLACEHOLDER_REASON, placeholderIn } from '../base/text.ts'
import { type Config, GATE_LOCALHOST } from './config.ts'
import {
  API_VERSION,
  ConfigFileError,
  type Environment,
  expandVariables,
  KIND,
  readConfigDocument,
} from './config-document.ts'
import { isRead } from './feature-gates.ts'
import { type ConfigError, FlagReader, type FlagSpec, parseBool, quote, readArguments } from './flag.ts'
import { BESIDE_FILE_FLAGS, KUBE_PROXY_FLAGS, RUN_FLAGS } from './flags.ts'
import { forwardsAny, MODE_ROWS, readModeOptions, rowOf, whyNotProvable } from './modes.ts'
import { readOwnSettings, refuseIdleApi, whyNotInstance } from './own-flags.ts'
import { readConfig } from './read-config.ts'
import type { Settings } from './settings.ts'
import {
  completeFileAddresses,
  completeFlagAddresses,
  completeSettings,
  foldPorts,
  modeOf,
  overlayLogging,
  settingsFromFlags,
} from './settings-from-flags.ts'

export type Parsed<T> =
  | { readonly kind: 'ok'; readonly value: T }
  | {
      readonly kind: 'errors'
      readonly errors: readonly ConfigError[]
      /** Values of the command's own flags. The command may check them, too, so that it reports all errors at once. */
      readonly extra?: FlagReader
    }

export interface ParseOptions {
  readonly hostName: string
  readonly extra?: readonly FlagSpec[]
  /** The variables for `$(NAME)` in the file; none if absent. */
  readonly env?: Environment
  /** The command is `kprobe api`, which uses no kernel: any proxy name is valid with any mode. */
  readonly modeless?: boolean
}

export interface LoadOptions extends ParseOptions {
  /** Reads the whole text of the file of --config. Throws ConfigFileError. */
  readonly readFile: (path: string) => Promise<string>
}

export interface ConfigFile {
  readonly path: string
  readonly text: string
}

export interface RunRequest {
  readonly config: Config
  /** The action, in kube-proxy's order of precedence: version, write-config, cleanup, init, run. */
  readonly action: 'run' | 'cleanup' | 'init' | 'write-config' | 'version'
  /** The action is `version`, in the form of --version=raw. */
  readonly rawVersion: boolean
  readonly writeConfigTo: string
  readonly configFile: ConfigFile | undefined
  /** Warnings for the log, one a line: unknown fields, flags that --config overrides, settings without effect. */
  readonly warnings: readonly string[]
  /** The configuration as kube-proxy's API type: writtenConfig prints it, publishedConfig serves it. */
  readonly settings: Settings
  readonly extra: FlagReader
}

/** Reads arguments and the file of --config into a RunRequest, or reports all errors in them. */
export async function loadConfig(argv: readonly string[], options: LoadOptions): Promise<Parsed<RunRequest>> {
  const path = readFlags(argv, options).text('config') ?? ''
  if (path === '') return parseRequest(argv, options, undefined)
  try {
    return parseRequest(argv, options, { path, text: await options.readFile(path) })
  } catch (error) {
    if (!(error instanceof ConfigFileError)) throw error
    const parsed = parseRequest(argv, options, { path, text: EMPTY_FILE })
    const unreadable = { path: `--config ${path}`, message: error.message }
    if (parsed.kind === 'errors') return { ...parsed, errors: [unreadable, ...parsed.errors] }
    return { kind: 'errors', errors: [unreadable], extra: parsed.value.extra }
  }
}

/** Replaces an unreadable file, so that the flags are still checked. */
const EMPTY_FILE = `apiVersion: ${API_VERSION}\nkind: ${KIND}\n`

/** Reads arguments and a file whose text is known; ignores --config in `argv`. */
export function parseRequest(
  argv: readonly string[],
  options: ParseOptions,
  file: ConfigFile | undefined,
): Parsed<RunRequest> {
  const reader = readFlags(argv, options)
  for (const argument of reader.positionals)
    if (argument !== '') reader.fail(quote(argument), 'no such argument; flags begin with --')
  for (const { name, choices, check } of options.extra ?? [])
    if (check !== undefined) check(reader)
    else if (choices !== undefined) reader.oneOf(name, choices, '')
  refusePlaceholders(reader, options)
  const own = readOwnSettings(reader)
  const { settings, errors, doubts, warnings } =
    file === undefined ? fromFlags(reader) : fromFile(reader, file, options.env ?? {})
  completeSettings(settings, reader)
  const config = readConfig(settings, { ...own, ...readModeOptions(settings, reader) }, options.hostName)
  // Relayed connections end with the process.
  if (own.once && forwardsAny(config) && options.modeless !== true)
    reader.fail(
      '--once',
      rowOf(config.proxyMode).forwards === true
        ? `cannot be combined with ${config.proxyMode} mode, which relays only while kprobe runs`
        : 'cannot be combined with localhost in nodePortAddresses: its node ports are relayed only while kprobe runs',
    )
  if (options.modeless !== true) refuseIdleApi(reader, own)
  const { serviceProxyName, proxyMode } = config
  const isNamed = serviceProxyName !== undefined && options.modeless !== true
  const unsupported = isNamed ? whyNotInstance(serviceProxyName, proxyMode) : undefined
  if (unsupported !== undefined) reader.fail('--service-proxy-name', unsupported)
  if (options.modeless !== true) refuseUnproved(config, settings, options)
  const action = readAction(reader)
  const all = withoutEchoes([...reader.errors, ...errors, ...settings.errors])
  if (all.length > 0) {
    // A misspelled name often causes the error in another setting.
    const beside = doubts.map(message => ({ path: 'warning', message }))
    const errors = firstOf([...all, ...beside], more => ({ path: 'and', message: more }))
    return { kind: 'errors', errors, extra: reader }
  }
  return {
    kind: 'ok',
    value: {
      config,
      action,
      rawVersion: reader.text('version') === 'raw',
      writeConfigTo: reader.text('write-config-to') ?? '',
      configFile: file,
      warnings: [
        ...firstOf([...doubts, ...warnings], more => `and ${more}`),
        ...withoutEffect(config, settings, reader),
        ...idleSettings(config, settings),
      ],
      settings,
      extra: reader,
    },
  }
}

/** Maximum number of reported findings: a file of another kind has thousands, and a watched file has them at each change. */
const FINDINGS_MAX = 100

function firstOf<T>(findings: readonly T[], andMore: (text: string) => T): readonly T[] {
  const more = findings.length - FINDINGS_MAX
  return more <= 0 ? findings : [...findings.slice(0, FINDINGS_MAX), andMore(`${more} more of this kind`)]
}

/** Reads the flags without a check of their values. */
export function readFlags(argv: readonly string[], { extra = [] }: Pick<ParseOptions, 'extra'>): FlagReader {
  return new FlagReader(readArguments(argv, [...RUN_FLAGS, ...extra]))
}

function refusePlaceholders(reader: FlagReader, { extra = [] }: ParseOptions): void {
  for (const { name } of [...RUN_FLAGS, ...extra]) {
    const left = placeholderIn(reader.all(name).join())
    if (left !== undefined) reader.fail(`--${name}`, `${left} ${PLACEHOLDER_REASON}`)
  }
}

/** Removes errors that only repeat that a placeholder, which has its own error, is an invalid value. */
function withoutEchoes(errors: readonly ConfigError[]): readonly ConfigError[] {
  const isReport = ({ message }: ConfigError) => message.endsWith(PLACEHOLDER_REASON)
  const isEcho = ({ message }: ConfigError) => placeholderIn(message) !== undefined
  return errors.some(isReport) ? errors.filter(error => isReport(error) || !isEcho(error)) : errors
}

interface Source {
  readonly settings: Settings
  readonly errors: readonly ConfigError[]
  /** Warnings that strict decoding would report as errors. */
  readonly doubts: readonly string[]
  readonly warnings: readonly string[]
}

function fromFlags(reader: FlagReader): Source {
  const settings = settingsFromFlags(reader)
  completeFlagAddresses(settings)
  const idle = (reader.text('write-config-to') ?? '') === '' ? foldPorts(settings, reader) : []
  const warnings = idle.map(
    flag =>
      `${flag} is ignored: the address has a port already; ${flag.replace('port', 'bind-address')} sets both`,
  )
  return { settings, errors: [], doubts: [], warnings }
}

/** Reads the file. Invalid flags are errors even if the file overrides them, as in kube-proxy. */
function fromFile(reader: FlagReader, file: ConfigFile, env: Environment): Source {
  const flags = settingsFromFlags(reader)
  const { text, errors } = expandVariables(file, env)
  const document = readConfigDocument(text, file.path)
  overlayLogging(document.settings, flags)
  completeFileAddresses(document.settings)
  const ignored = [...KUBE_PROXY_FLAGS, 'healthz-port', 'metrics-port'].filter(
    flag => reader.given(flag) && !BESIDE_FILE_FLAGS.includes(flag) && !isUnusedBare(flag),
  )
  const names = ignored.map(flag => `--${flag}`).join(', ')
  const warning = `ignored because --config is given: ${names}`
  return {
    ...document,
    settings: document.settings,
    errors: [...errors, ...document.errors],
    doubts: document.warnings,
    warnings: names === '' ? [] : [warning],
  }
}

const UNUSED_BARE_FLAGS = ['boot-id-file', 'machine-id-file'] as const

function isUnusedBare(flag: string): boolean {
  return UNUSED_BARE_FLAGS.some(each => each === flag)
}

/** The flag that has effect only in modes with a counter for each endpoint. */
const COUNTING = 'connection-metrics-max'

function withoutEffect({ balance }: Config, settings: Settings, reader: FlagReader): readonly string[] {
  const bare = UNUSED_BARE_FLAGS.filter(flag => reader.text(flag)).map(flag => `--${flag}`)
  const labels = [...settings.unusedLabels(), ...bare]
  const mode = rowOf(modeOf(settings))
  const own = mode.settings.ownFlags ?? []
  const others = new Set(
    MODE_ROWS.flatMap(of => of.settings.ownFlags ?? []).filter(flag => !own.includes(flag)),
  )
  const idle = [...others].filter(({ name }) => reader.given(name))
  const counts = mode.settings.countsConnections === true || (reader.text(COUNTING) ?? '0') === '0'
  const balances = mode.settings.balances === true || balance === 'random'
  const names = [
    ...idle.map(({ name }) => name),
    ...(counts ? [] : [COUNTING]),
    ...(balances ? [] : ['balance']),
  ]
    .map(name => `--${name}`)
    .join(', ')
  return [
    ...(labels.length === 0 ? [] : [`no effect in kprobe: ${labels.join(', ')}`]),
    ...(names === '' ? [] : [`no effect in ${mode.title} mode: ${names}`]),
    ...idleGates(settings),
  ]
}

/** kube-proxy takes the gates of all components, because manifests give each component the same list. */
function idleGates(settings: Settings): readonly string[] {
  const idle = Object.keys(settings.gates()).filter(name => !isRead(name) && name !== GATE_LOCALHOST)
  const names = firstOf(idle.map(quote), more => `and ${more}`).join(', ')
  return names === '' ? [] : [`no effect in kprobe: feature gates ${names}`]
}

/** A command with a flag of this name reports the error itself. */
function refuseUnproved(
  { prove, proxyMode }: Config,
  settings: Settings,
  { extra = [] }: ParseOptions,
): void {
  const isOfRun = !extra.some(({ name }) => name === 'prove')
  const why = isOfRun && prove !== 'off' ? whyNotProvable({ proxyMode }) : undefined
  if (why !== undefined) settings.fail('prove', why)
}

/** Gives warnings about settings without effect: `ofCluster` need the API server and a kernel that is kept up to date, others the latter. */
function idleSettings(
  { stateDir, nodeCondition, prove, source, once, backend }: Config,
  settings: Settings,
): readonly string[] {
  const keepsNoKernel = [...(once ? ['--once'] : []), ...(backend === 'dry-run' ? ['--backend=dry-run'] : [])]
  const ofCluster = [
    ...(stateDir === '' ? [] : [settings.label('stateDir')]),
    ...(nodeCondition === '' ? [] : [settings.label('nodeCondition')]),
  ]
  return [
    ...noEffect([...(source.kind === 'file' ? ['--source=file'] : []), ...keepsNoKernel], ofCluster),
    ...noEffect(keepsNoKernel, prove === 'off' ? [] : [settings.label('prove')]),
  ]
}

function noEffect(because: readonly string[], labels: readonly string[]): readonly string[] {
  const isIdle = because.length > 0 && labels.length > 0
  return isIdle ? [`no effect with ${because.join(', ')}: ${labels.join(', ')}`] : []
}

function readAction(reader: FlagReader): RunRequest['action'] {
  const [cleanup, init] = [reader.bool('cleanup'), reader.bool('init-only')]
  if (isVersion(reader)) return 'version'
  if (reader.text('write-config-to')) return 'write-config'
  if (cleanup) return 'cleanup'
  return init ? 'init' : 'run'
}

function isVersion(reader: FlagReader): boolean {
  const text = reader.text('version')
  if (text === undefined || text === 'raw') return text === 'raw'
  const value = parseBool(text)
  if (value === undefined) reader.fail('--version', `${quote(text)} is not true, false or raw`)
  return value === true
}
