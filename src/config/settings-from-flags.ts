import { familyOf, parseIp, whyNotIp } from '../base/ip.ts'
import type { BindAddress, ProxyMode } from './config.ts'
import { parseGates } from './feature-gates.ts'
import {
  FIELD_PATHS,
  type FieldPath,
  type FieldValue,
  fieldAt,
  flagValue,
  type ScalarKind,
  type VmoduleItem,
  whyNotValue,
} from './fields.ts'
import { type FlagReader, parseBool, quote } from './flag.ts'
import type { ModeFields, ModeSettings } from './modes/mode-row.ts'
import { DEFAULT_MODE, MODE_NAMES, MODE_ROWS, rowOf } from './modes.ts'
import { Settings } from './settings.ts'

const HEALTHZ_PORT = 10_256
const METRICS_PORT = 10_249

/** Gives the flags that kube-proxy maps to a field that depends on the mode. */
function pairingsOf({
  masqueradeAll,
  minSyncPeriod,
  syncPeriod,
  periodFlags,
}: ModeFields): readonly Pairing[] {
  return [
    { path: masqueradeAll, flag: 'masquerade-all', kind: 'bool' },
    { path: minSyncPeriod, flag: periodFlags.min, kind: 'duration' },
    { path: syncPeriod, flag: periodFlags.sync, kind: 'duration' },
  ]
}

/** Reads the flags of kube-proxy into the fields of its configuration file. An invalid text is an error of `reader`. */
export function settingsFromFlags(reader: FlagReader): Settings {
  const settings = new Settings(flagLabel)
  for (const path of FIELD_PATHS) {
    const { flag } = fieldAt(path)
    if (flag !== undefined) setFromFlag(settings, path, flag, reader)
  }
  for (const pairing of pairingsOf(modeSettingsOf(settings))) setScalar(settings, reader, pairing)
  // Flags of other modes have no effect, but kube-proxy parses their texts, too.
  const others = MODE_ROWS.map(({ settings: { periodFlags } }) => periodFlags)
  const idle = new Set(others.flatMap(flags => Object.values(flags)))
  for (const flag of Object.values(modeSettingsOf(settings).periodFlags)) idle.delete(flag)
  for (const flag of idle) readScalar(reader, flag, 'duration')
  return settings
}

function flagLabel(path: FieldPath): string {
  const { flag, ownFlag = flag } = fieldAt(path)
  return ownFlag === undefined ? path : `--${ownFlag}`
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
    if (!path.startsWith('logging.') || !fromFlags.says(path)) continue
    const value = fromFlags.value(path)
    if (value !== undefined) settings.set(path, { value, label: fromFlags.label(path), exact: true })
  }
  if (!fromFlags.says('logging.vmodule')) return
  const value = [...fromFlags.vmodule(), ...before]
  settings.set('logging.vmodule', { value, label: fromFlags.label('logging.vmodule') })
}

/** Applies --hostname-override, which overrides a file. */
export function overlayHostName(settings: Settings, reader: FlagReader): void {
  const text = reader.text('hostname-override') ?? ''
  if (text === '') return
  const value = text.trim().toLowerCase()
  if (value === '') reader.fail('--hostname-override', 'is blank')
  settings.set('hostnameOverride', { value, label: '--hostname-override', exact: true })
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
    settings.set(path, { value: after, label, exact: true })
    return false
  }).map(({ flag }) => `--${flag}`)
}

const PORT_FLAGS = [
  { flag: 'healthz-port', path: 'healthzBindAddress', fallback: HEALTHZ_PORT },
  { flag: 'metrics-port', path: 'metricsBindAddress', fallback: METRICS_PORT },
] as const

function setFromFlag(settings: Settings, path: FieldPath, flag: string, reader: FlagReader): void {
  if (!reader.given(flag)) return
  const { kind } = fieldAt(path)
  const label = `--${flag}`
  if (kind === 'texts') settings.set(path, { value: reader.list(flag), label, exact: true })
  else if (kind === 'vmodule') settings.set(path, { value: readVmodule(reader, flag), label })
  else if (kind === 'gates') setGates(settings, reader)
  else {
    const value = isAddress(path) ? readAddress(reader, path, flag) : readScalar(reader, flag, kind)
    if (value !== undefined) settings.set(path, { value, label, exact: true })
  }
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

/** A flag that sets a field which the table of fields does not pair it with. */
interface Pairing {
  readonly path: FieldPath
  readonly flag: string
  readonly kind: ScalarKind
}

function setScalar(settings: Settings, reader: FlagReader, { path, flag, kind }: Pairing): void {
  const value = readScalar(reader, flag, kind)
  if (value !== undefined) settings.set(path, { value, label: `--${flag}`, exact: true })
}

function readScalar(reader: FlagReader, flag: string, kind: ScalarKind): FieldValue | undefined {
  const text = reader.text(flag)
  if (text === undefined) return undefined
  const value = flagValue(kind, text)
  if (value === undefined) reader.fail(`--${flag}`, whyNotValue(kind, text))
  return value
}

type AddressPath = 'bindAddress' | 'healthzBindAddress' | 'metricsBindAddress'

function isAddress(path: FieldPath): path is AddressPath {
  return path === 'bindAddress' || path === 'healthzBindAddress' || path === 'metricsBindAddress'
}

/** Reads an address. An empty text keeps the default, as kube-proxy does in contrast to its help. */
function readAddress(reader: FlagReader, path: AddressPath, flag: string): string | undefined {
  const text = reader.text(flag) ?? ''
  if (text === '' || parseIp(text) !== undefined) return text === '' ? undefined : text
  const parts = path === 'bindAddress' ? undefined : splitHostPort(text)
  if (parts === undefined) reader.fail(`--${flag}`, `${quote(text)} is ${whyNotIp(text)}${OR_PORT[path]}`)
  else if (parseIp(parts.host) === undefined)
    reader.fail(`--${flag}`, `${quote(parts.host)} is ${whyNotIp(parts.host)}`)
  else return text
  return undefined
}

const OR_PORT: Readonly<Record<AddressPath, string>> = {
  bindAddress: '',
  healthzBindAddress: `, with or without :PORT`,
  metricsBindAddress: `, with or without :PORT`,
}

/** Reads `file=2,other*=4`. */
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

/**
 * Splits `192.0.2.1:80` or `[2001:db8::1]:80` as Go's net.SplitHostPort does; undefined if the text has another form.
 */
function splitHostPort(text: string): { readonly host: string; readonly port: string } | undefined {
  const match = /^(?:\[([^[\]]*)\]|([^[\]:]*)):([^[\]:]*)$/.exec(text)
  return match === null ? undefined : { host: match[1] ?? match[2] ?? '', port: match[3] ?? '' }
}

/** Adds a port to an address without one. An invalid text passes unchanged, for a later check to refuse. */
function withPort(text: string, port: number): string {
  if (splitHostPort(text) !== undefined || parseIp(text) === undefined) return text
  return text.includes(':') ? `[${text}]:${port}` : `${text}:${port}`
}

/** Reads an address to listen at, or gives the reason why it is invalid. */
export function readBindAddress(
  text: string,
): { readonly address: BindAddress } | { readonly problem: string } {
  const parts = splitHostPort(text)
  if (parts === undefined) return { problem: `${quote(text)} is not written IP:PORT or [IP]:PORT` }
  const ip = parseIp(parts.host)
  if (ip === undefined) return { problem: `${quote(parts.host)} is ${whyNotIp(parts.host)}` }
  const port = /^\d{1,5}$/.test(parts.port) ? Number(parts.port) : 0
  if (port < 1 || port > 65_535) return { problem: `${quote(parts.port)} is not a port from 1 to 65535` }
  return { address: { ip, port } }
}

/** Gives the flags that kube-proxy names after a mode, or does not have; they also override a file. */
function ownPairings({ masqueradeBit, minSyncPeriod, syncPeriod }: ModeFields): readonly Pairing[] {
  return [
    { path: masqueradeBit, flag: 'masquerade-bit', kind: 'int32' },
    { path: minSyncPeriod, flag: 'min-sync-period', kind: 'duration' },
    { path: syncPeriod, flag: 'sync-period', kind: 'duration' },
    { path: 'conntrack.tcpFinWaitTimeout', flag: 'conntrack-tcp-timeout-fin-wait', kind: 'duration' },
    { path: 'conntrack.tcpTimeWaitTimeout', flag: 'conntrack-tcp-timeout-time-wait', kind: 'duration' },
    { path: 'stateDir', flag: 'state-dir', kind: 'text' },
  ]
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
  if (!settings.says('healthzBindAddress'))
    setQuietly(settings, 'healthzBindAddress', `0.0.0.0:${HEALTHZ_PORT}`)
  if (!settings.says('metricsBindAddress'))
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
  for (const pairing of ownPairings(modeSettingsOf(settings))) setOwn(settings, reader, pairing)
  setSwitch(settings, reader, {
    path: 'nodeCondition',
    flag: 'node-condition',
    meant: DEFAULT_CONDITION,
    none: '',
  })
  setSwitch(settings, reader, { path: 'prove', flag: 'prove', meant: 'full', none: 'off' })
  completePeriods(settings)
  if (settings.text('detectLocalMode') === '') setQuietly(settings, 'detectLocalMode', 'ClusterCIDR')
  if (settings.texts('nodePortAddresses').length === 0 && modeSettingsOf(settings).everyAddress !== true)
    setQuietly(settings, 'nodePortAddresses', ['primary'])
}

/** Sets a field by a flag that stands for `meant` if it has no value of its own, and for `none` if it is false. */
function setSwitch(
  settings: Settings,
  reader: FlagReader,
  {
    path,
    flag,
    meant,
    none,
  }: { readonly path: FieldPath; readonly flag: string } & Record<'meant' | 'none', string>,
): void {
  const text = reader.text(flag)
  if (text === undefined) return
  const isOn = parseBool(text)
  const value = isOn === true ? meant : isOn === false ? none : text
  settings.set(path, { value, label: `--${flag}`, exact: true })
}

/** The type that sig-network's documents name for a service proxy. */
const DEFAULT_CONDITION = 'ServiceProxyReady'

function completePeriods(settings: Settings): void {
  const { minSyncPeriod, syncPeriod, defaultSyncPeriod } = modeSettingsOf(settings)
  if (!settings.says(syncPeriod)) setQuietly(settings, syncPeriod, defaultSyncPeriod)
  if (settings.duration(minSyncPeriod) !== 0n) return
  const syncNs = settings.duration(syncPeriod)
  const least = syncNs > 0n && syncNs < MIN_SYNC_PERIOD_NS ? syncNs : MIN_SYNC_PERIOD_NS
  setQuietly(settings, minSyncPeriod, least)
}

/** Sets a field that two flags name. Both may be given if they agree; a flag overrides a file. */
function setOwn(settings: Settings, reader: FlagReader, pairing: Pairing): void {
  const { path, flag } = pairing
  const theirs = settings.label(path)
  const given = settings.says(path) && reader.given(flag)
  const before = settings.value(path)
  setScalar(settings, reader, pairing)
  if (given && theirs.startsWith('--') && before !== settings.value(path))
    reader.fail(`--${flag}`, `means the same as ${theirs} and differs from it`)
}

/** Sets a default. Errors still use the label of the unset field. */
function setQuietly(settings: Settings, path: FieldPath, value: string | bigint | readonly string[]): void {
  settings.set(path, { value, label: settings.label(path), exact: true, filledIn: true })
}
