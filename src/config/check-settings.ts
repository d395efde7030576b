import { isGateOn, whyNotGate } from './feature-gates.ts'
import type { PathOf } from './fields.ts'
import { quote } from './flag-reader.ts'
import { modeSettingsOf } from './mode-fields.ts'
import { parseQuantity } from './quantity.ts'
import type { Settings } from './settings.ts'

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
