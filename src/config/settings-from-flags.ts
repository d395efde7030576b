import { familyOf, parseIp } from '../base/ip.ts'
import type { ProxyMode } from './config.ts'
import { parseGates } from './feature-gates.ts'
import {
  type FieldValue,
  flagValue,
  isScalar,
  type ScalarKind,
  type VmoduleItem,
  whyNotValue,
} from './field-values.ts'
import { FIELD_PATHS, type FieldPath, fieldAt, isOfMode, isShared } from './fields.ts'
import { type FlagReader, quote } from './flag.ts'
import { withPort } from './flag-text.ts'
import type { ModeSettings } from './modes/mode-row.ts'
import { DEFAULT_MODE, MODE_NAMES, rowOf } from './modes.ts'
import { Settings } from './settings.ts'

const HEALTHZ_PORT = 10_256
const METRICS_PORT = 10_249

/** Reads the flags of kube-proxy into the fields of its configuration file. An invalid text is an error of `reader`. */
export function settingsFromFlags(reader: FlagReader): Settings {
  const settings = new Settings(path => {
    const { flag, overFile = flag } = fieldAt(path)
    return overFile === undefined ? path : `--${overFile}`
  })
  // The mode is a field itself, and decides which sections the flags of all modes set.
  for (const path of FIELD_PATHS) if (!isShared(path)) setFromFlag(settings, reader, path)
  const mode = modeSettingsOf(settings)
  const shared = FIELD_PATHS.filter(isShared)
  const used = shared.filter(path => isOfMode(path, mode))
  for (const path of used) setFromFlag(settings, reader, path)
  // Flags of other modes have no effect, but kube-proxy parses their texts, too.
  const usedFlags = used.map(path => fieldAt(path).flag)
  const idle = new Set(shared.map(path => fieldAt(path).flag).filter(flag => !usedFlags.includes(flag)))
  for (const flag of idle) if (flag !== undefined) readScalar(reader, flag, 'duration')
  return settings
}

/** Applies the flags of logging, which override a file. Their module levels come before those of the file. */
export function overlayLogging(settings: Settings, fromFlags: Settings): void {
  const before = settings.vmodule()
  // kube-proxy registers these two flags again for the file, which resets the file's values.
  for (const format of ['json', 'text'] as const) {
    const path = `logging.options.${format}.splitStream` as const
    settings.set(path, { value: false, label: settings.label(path) })
  }
  for (const path of FIELD_PATHS) {
    if (!path.startsWith('logging.') || !fromFlags.isSet(path)) continue
    const value = fromFlags.value(path)
    if (value !== undefined) settings.set(path, { value, label: fromFlags.label(path), zeroCounts: true })
  }
  if (!fromFlags.isSet('logging.vmodule')) return
  const value = [...fromFlags.vmodule(), ...before]
  settings.set('logging.vmodule', { value, label: fromFlags.label('logging.vmodule') })
}

/**
 * Applies --healthz-port and --metrics-port: 0 removes the address. Another port, or the default, goes to an address
 * that has none. The default addresses have a port, so that these flags alone change nothing, as in kube-proxy. Gives
 * the flags that had no effect.
 */
export function foldPorts(settings: Settings, reader: FlagReader): readonly string[] {
  return PORT_FLAGS.filter(({ flag, path, fallback }) => {
    const given = readScalar(reader, flag, 'int32')
    const port = typeof given === 'number' ? given : fallback
    const before = settings.text(path)
    const after = port === 0 ? '' : withPort(before, port)
    if (after === before) return typeof given === 'number'
    const label = typeof given === 'number' ? `--${flag}` : settings.label(path)
    settings.set(path, { value: after, label, zeroCounts: true })
    return false
  }).map(({ flag }) => `--${flag}`)
}

const PORT_FLAGS = [
  { flag: 'healthz-port', path: 'healthzBindAddress', fallback: HEALTHZ_PORT },
  { flag: 'metrics-port', path: 'metricsBindAddress', fallback: METRICS_PORT },
] as const

function setFromFlag(settings: Settings, reader: FlagReader, path: FieldPath): void {
  const { kind, flag } = fieldAt(path)
  if (flag === undefined || !reader.given(flag)) return
  const label = `--${flag}`
  if (kind === 'texts') settings.set(path, { value: reader.list(flag), label, zeroCounts: true })
  else if (kind === 'vmodule') settings.set(path, { value: readVmodule(reader, flag), label })
  else if (kind === 'gates') setGates(settings, reader)
  else setScalar(settings, reader, path, flag)
}

function setGates(settings: Settings, reader: FlagReader): void {
  const label = '--feature-gates'
  const parsed = parseGates(reader.all('feature-gates'))
  if ('problem' in parsed) reader.fail(label, parsed.problem)
  else {
    const itemLabels = Object.keys(parsed.gates).map(() => label)
    settings.set('featureGates', { value: parsed.gates, label, itemLabels })
  }
}

function setScalar(settings: Settings, reader: FlagReader, path: FieldPath, flag: string): void {
  const { kind, fromFlag } = fieldAt(path)
  const text = reader.text(flag)
  if (text === undefined || !isScalar(kind)) return
  const label = `--${flag}`
  const fail = (message: string): void => reader.fail(label, message)
  const value = fromFlag === undefined ? readScalar(reader, flag, kind) : fromFlag(text, fail)
  if (value !== undefined) settings.set(path, { value, label, zeroCounts: true })
}

function readScalar(reader: FlagReader, flag: string, kind: ScalarKind): FieldValue | undefined {
  const text = reader.text(flag)
  if (text === undefined) return undefined
  const value = flagValue(kind, text)
  if (value === undefined) reader.fail(`--${flag}`, whyNotValue(kind, text))
  return value
}

function readVmodule(reader: FlagReader, flag: string): readonly VmoduleItem[] {
  const items: VmoduleItem[] = []
  for (const pair of reader.list(flag)) {
    const [, filePattern = '', level = ''] = /^([^=]+)=(\d{1,10})$/.exec(pair) ?? []
    const verbosity = flagValue('uint32', level)
    if (typeof verbosity === 'number') items.push({ filePattern, verbosity })
    else reader.fail(`--${flag}`, `${quote(pair)} is not written PATTERN=LEVEL`)
  }
  return items
}

/** Gives the requested mode; the default for an unknown one, which readConfig reports. */
export function modeOf(settings: Settings): ProxyMode {
  const mode = settings.text('mode')
  return MODE_NAMES.includes(mode) ? mode : DEFAULT_MODE
}

export function modeSettingsOf(settings: Settings): ModeSettings {
  return rowOf(modeOf(settings)).settings
}

/** kprobe's default, also for a zero: commits cost little. */
const MIN_SYNC_PERIOD_NS = 20_000_000n

/**
 * Completes the addresses of a file. An address gets its default port. An empty one gets the default for the family of
 * bindAddress.
 */
export function completeFileAddresses(settings: Settings): void {
  const bind = parseIp(settings.text('bindAddress'))
  const v6 = bind === undefined || familyOf(bind) === 'IPv6'
  const defaults = v6 ? { healthz: '[::]', metrics: '[::1]' } : { healthz: '0.0.0.0', metrics: '127.0.0.1' }
  completeAddress(settings, 'healthzBindAddress', { host: defaults.healthz, port: HEALTHZ_PORT })
  completeAddress(settings, 'metricsBindAddress', { host: defaults.metrics, port: METRICS_PORT })
}

/** Completes the addresses of flags, before the flags for ports. The family of --bind-address has no effect here. */
export function completeFlagAddresses(settings: Settings): void {
  if (!settings.isSet('healthzBindAddress'))
    setQuietly(settings, 'healthzBindAddress', `0.0.0.0:${HEALTHZ_PORT}`)
  if (!settings.isSet('metricsBindAddress'))
    setQuietly(settings, 'metricsBindAddress', `127.0.0.1:${METRICS_PORT}`)
}

function completeAddress(
  settings: Settings,
  path: 'healthzBindAddress' | 'metricsBindAddress',
  fallback: { readonly host: string; readonly port: number },
): void {
  const text = settings.text(path)
  const value = text === '' ? `${fallback.host}:${fallback.port}` : withPort(text, fallback.port)
  settings.set(path, { value, label: settings.label(path) })
}

/**
 * Fills in the defaults of kprobe after file or flags are read. An empty mode means nftables here. kube-proxy reads the
 * iptables section for an empty mode, so that this section applies where the nftables section is unset.
 */
export function completeSettings(settings: Settings, reader: FlagReader): void {
  if (settings.text('mode') === '') {
    setQuietly(settings, 'mode', DEFAULT_MODE)
    settings.inherit('nftables.masqueradeAll', 'iptables.masqueradeAll')
    settings.inherit('nftables.masqueradeBit', 'iptables.masqueradeBit')
    settings.inherit('nftables.minSyncPeriod', 'iptables.minSyncPeriod')
    settings.inherit('nftables.syncPeriod', 'iptables.syncPeriod')
  }
  const mode = modeSettingsOf(settings)
  for (const path of OVERRIDDEN) if (isOfMode(path, mode)) override(settings, reader, path)
  completePeriods(settings)
  if (settings.text('detectLocalMode') === '') setQuietly(settings, 'detectLocalMode', 'ClusterCIDR')
  if (settings.texts('nodePortAddresses').length === 0 && modeSettingsOf(settings).everyAddress !== true)
    setQuietly(settings, 'nodePortAddresses', ['primary'])
}

const OVER_FILE = FIELD_PATHS.map(path => ({ path, ...fieldAt(path) })).filter(
  ({ overFile }) => overFile !== undefined,
)
/** Fields with a flag that overrides the file, in the order of errors: those of the mode before the others. */
const OVERRIDDEN: readonly FieldPath[] = [
  ...OVER_FILE.filter(({ fromFlag }) => fromFlag !== undefined),
  ...OVER_FILE.filter(({ ofMode }) => ofMode !== undefined),
  ...OVER_FILE.filter(({ fromFlag, ofMode }) => fromFlag === undefined && ofMode === undefined),
].map(({ path }) => path)

function completePeriods(settings: Settings): void {
  const { minSyncPeriod, syncPeriod, defaultSyncPeriod } = modeSettingsOf(settings)
  if (!settings.isSet(syncPeriod)) setQuietly(settings, syncPeriod, defaultSyncPeriod)
  if (settings.duration(minSyncPeriod) !== 0n) return
  const syncNs = settings.duration(syncPeriod)
  const least = syncNs > 0n && syncNs < MIN_SYNC_PERIOD_NS ? syncNs : MIN_SYNC_PERIOD_NS
  setQuietly(settings, minSyncPeriod, least)
}

/** Sets a field by the flag that overrides the file. A flag of kube-proxy may be given, too, if both agree. */
function override(settings: Settings, reader: FlagReader, path: FieldPath): void {
  const { overFile } = fieldAt(path)
  if (overFile === undefined) return
  const theirs = settings.label(path)
  const given = settings.isSet(path) && reader.given(overFile)
  const before = settings.value(path)
  setScalar(settings, reader, path, overFile)
  if (given && theirs.startsWith('--') && before !== settings.value(path))
    reader.fail(`--${overFile}`, `means the same as ${theirs} and differs from it`)
}

function setQuietly(settings: Settings, path: FieldPath, value: string | bigint | readonly string[]): void {
  settings.set(path, { value, label: settings.label(path), zeroCounts: true, filledIn: true })
}
