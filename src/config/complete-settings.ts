import { familyOf, parseIp } from '../base/ip.ts'
import type { ModeFields } from '../modes/mode.ts'
import { DEFAULT_MODE } from '../modes/registry.ts'
import { isGateOn, whyNotGate } from './feature-gates.ts'
import { type FieldPath, type PathOf, parseQuantity } from './fields.ts'
import { type FlagReader, parseBool, quote } from './flag.ts'
import type { Settings } from './settings.ts'
import {
  HEALTHZ_PORT,
  METRICS_PORT,
  modeSettingsOf,
  type Pairing,
  setScalar,
  withPort,
} from './settings-from-flags.ts'

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
  setNodeCondition(settings, reader)
  setProving(settings, reader)
  completePeriods(settings)
  if (settings.text('detectLocalMode') === '') setQuietly(settings, 'detectLocalMode', 'ClusterCIDR')
  if (settings.texts('nodePortAddresses').length === 0 && modeSettingsOf(settings).everyAddress !== true)
    setQuietly(settings, 'nodePortAddresses', ['primary'])
}

/** The flag has a value where another type is wanted. */
function setNodeCondition(settings: Settings, reader: FlagReader): void {
  const text = reader.text('node-condition')
  if (text === undefined) return
  const isOn = parseBool(text)
  const value = isOn === true ? DEFAULT_CONDITION : isOn === false ? '' : text
  settings.set('nodeCondition', { value, label: '--node-condition', exact: true })
}

/** As above: the flag alone means `changes`. */
function setProving(settings: Settings, reader: FlagReader): void {
  const text = reader.text('prove')
  if (text === undefined) return
  const isOn = parseBool(text)
  const value = isOn === true ? 'changes' : isOn === false ? 'off' : text
  settings.set('prove', { value, label: '--prove', exact: true })
}

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

/** Ranges that kube-proxy checks in every mode. */
const RANGES: readonly { readonly path: PathOf<'int32'>; readonly min: number; readonly max: number }[] = [
  { path: 'clientConnection.burst', min: 0, max: Number.POSITIVE_INFINITY },
  { path: 'conntrack.maxPerCore', min: 0, max: Number.POSITIVE_INFINITY },
  { path: 'conntrack.min', min: 0, max: Number.POSITIVE_INFINITY },
  { path: 'iptables.masqueradeBit', min: 0, max: 31 },
  { path: 'nftables.masqueradeBit', min: 0, max: 31 },
  { path: 'oomScoreAdj', min: -1_000, max: 1_000 },
]

const NOT_NEGATIVE: readonly PathOf<'duration'>[] = [
  'conntrack.tcpCloseWaitTimeout',
  'conntrack.tcpEstablishedTimeout',
  'conntrack.tcpFinWaitTimeout',
  'conntrack.tcpTimeWaitTimeout',
  'conntrack.udpStreamTimeout',
  'conntrack.udpTimeout',
]

const POSITIVE: readonly PathOf<'duration' | 'flush'>[] = ['configSyncPeriod', 'logging.flushFrequency']

/** The minor version of Kubernetes before that of the kube-proxy that kprobe replaces. */
const PREVIOUS_MINOR = '1.35'

/** Applies the checks of kube-proxy that reading a value does not include. Errors go into `settings.errors`. */
export function checkSettings(settings: Settings): void {
  for (const { path, min, max } of RANGES) {
    const value = settings.number(path)
    if (value < min || value > max)
      settings.fail(path, max < Number.POSITIVE_INFINITY ? `${value} is not from ${min} to ${max}` : NEGATIVE)
  }
  const { minSyncPeriod, syncPeriod, notNegative: ofMode = [] } = modeSettingsOf(settings)
  for (const path of [...NOT_NEGATIVE, ...ofMode, minSyncPeriod])
    if (settings.duration(path) < 0n) settings.fail(path, NEGATIVE)
  for (const path of [...POSITIVE, syncPeriod])
    if (settings.duration(path) <= 0n) settings.fail(path, 'must be longer than 0')
  checkPeriods(settings)
  checkGates(settings)
  checkLogging(settings)
  const version = settings.text('showHiddenMetricsForVersion')
  if (version !== '' && version !== PREVIOUS_MINOR)
    settings.fail(
      'showHiddenMetricsForVersion',
      `${quote(version)} is not the previous minor version, ${PREVIOUS_MINOR}`,
    )
}

const NEGATIVE = 'cannot be negative'

function checkPeriods(settings: Settings): void {
  const { minSyncPeriod: min, syncPeriod: sync } = modeSettingsOf(settings)
  if (settings.duration(sync) > 0n && settings.duration(min) > settings.duration(sync))
    settings.fail(min, `cannot be longer than ${settings.label(sync)}`)
}

function checkGates(settings: Settings): void {
  for (const [index, [name, value]] of Object.entries(settings.gates()).entries()) {
    const why = whyNotGate(name, value)
    if (why !== undefined) settings.fail('featureGates', `${quote(name)}: ${why}`, index)
  }
}

function checkLogging(settings: Settings): void {
  const format = settings.text('logging.format')
  if (format !== 'text' && format !== 'json')
    settings.fail('logging.format', `${quote(format)} is not one of text, json`)
  const vmodule = settings.vmodule()
  if (format === 'json' && vmodule.length > 0)
    settings.fail('logging.vmodule', 'is for the log format text only')
  for (const [index, { filePattern }] of vmodule.entries())
    if (filePattern === '' || /[=,]/.test(filePattern))
      settings.fail('logging.vmodule', `${quote(filePattern)} is not a file pattern`, index)
  if (!isGateOn(settings.gates(), 'LoggingAlphaOptions')) checkAlphaLogging(settings)
}

function checkAlphaLogging(settings: Settings): void {
  for (const format of ['text', 'json'] as const) {
    const split = `logging.options.${format}.splitStream` as const
    if (settings.bool(split)) settings.fail(split, NEEDS_GATE)
    const size = `logging.options.${format}.infoBufferSize` as const
    const { bytes } = parseQuantity(settings.text(size)) ?? { bytes: 0n }
    if (bytes !== 0n) settings.fail(size, NEEDS_GATE)
  }
}

const NEEDS_GATE = 'needs the feature gate LoggingAlphaOptions'

/** The type that sig-network's documents name for a service proxy. */
const DEFAULT_CONDITION = 'ServiceProxyReady'

/** Conditions that kubelet, or the cloud's controller, sets itself. */
const TAKEN: readonly string[] = [
  'Ready',
  'MemoryPressure',
  'DiskPressure',
  'PIDPressure',
  'NetworkUnavailable',
]
const TYPE_LENGTH_MAX = 316
const TYPE = /^([a-z0-9]([-a-z0-9.]*[a-z0-9])?\/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$/

/** Gives the reason why a text cannot be the type of the condition; undefined if it can. */
export function whyNotConditionType(type: string): string | undefined {
  if (TAKEN.includes(type)) return 'is a condition that kubelet or a cloud controller sets; use another type'
  return TYPE.test(type) && type.length <= TYPE_LENGTH_MAX
    ? undefined
    : 'is not the type of a condition, such as ServiceProxyReady or example.com/ServiceProxyReady'
}
