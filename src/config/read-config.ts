import { SYNC_SHARE } from '../base/clock.ts'
import { nsToMs, TIMER_MS_MAX } from '../base/duration.ts'
import {
  type Cidr,
  familyOf,
  formatCidr,
  type Ip,
  isUnspecified,
  parseCidr,
  parseIp,
  whyNotIp,
} from '../base/ip.ts'
import { POLICIES } from '../model/balance.ts'
import {
  type BindAddress,
  type ClientConfig,
  type Config,
  type ConntrackConfig,
  type DetectLocal,
  type NodePortSelection,
  PROVING,
} from './config.ts'
import { type FeatureGates, isGateOn, misspelledGate } from './feature-gates.ts'
import { type FieldPath, fieldAt, isOfMode, isShared, type PathOf, pathsOf } from './fields.ts'
import { quote, readCidrs } from './flag.ts'
import { readBindAddress } from './flag-text.ts'
import { DEFAULT_MODE, MODE_NAMES, type ModeOptions, rowOf } from './modes.ts'
import type { OwnSettings } from './own-flags.ts'
import type { Settings } from './settings.ts'
import { modeOf, modeSettingsOf } from './settings-from-flags.ts'

/**
 * Makes a frozen Config of complete settings. Errors go into `settings.errors`; with an error, the result is invalid.
 */
export function readConfig(settings: Settings, own: OwnSettings & ModeOptions, hostName: string): Config {
  const { conntrackLower, master, ...flags } = own
  checkSettings(settings)
  const mode = modeSettingsOf(settings)
  const gates = settings.gates()
  return Object.freeze({
    ...flags,
    proxyMode: oneOf(settings, 'mode', MODE_NAMES) ?? DEFAULT_MODE,
    nodeName: readNodeName(settings, hostName),
    detectLocal: readDetectLocal(settings),
    masqueradeAll: settings.bool(mode.masqueradeAll),
    masqueradeBit: settings.number(mode.masqueradeBit),
    nodePortAddresses: readNodePortAddresses(settings),
    minSyncPeriodMs: timerMs(settings, mode.minSyncPeriod),
    syncShare: settings.number('syncShare') / 100 || SYNC_SHARE,
    syncPeriodMs: timerMs(settings, mode.syncPeriod),
    logFormat: oneOf(settings, 'logging.format', LOG_FORMATS) ?? 'text',
    verbosity: settings.number('logging.verbosity'),
    client: readClient(settings, master),
    bindAddress: readIp(settings),
    ...readServers(settings),
    bindAddressHardFail: settings.bool('bindAddressHardFail'),
    oomScoreAdj: settings.number('oomScoreAdj'),
    stateDir: readStateDir(settings),
    nodeCondition: readNodeCondition(settings),
    prove: oneOf(settings, 'prove', PROVING) ?? 'off',
    balance: oneOf(settings, 'balance', POLICIES) ?? 'random',
    conntrack: readConntrack(settings, conntrackLower),
    allowServiceExternalIps: isGateOn(gates, 'AllowServiceExternalIPs'),
    featureGates: otherGates(gates),
  })
}

function otherGates(gates: FeatureGates): FeatureGates {
  return Object.fromEntries(Object.entries(gates).filter(([name]) => name !== 'AllowServiceExternalIPs'))
}

const LOG_FORMATS = ['text', 'json'] as const

/** Reads one of a few words; undefined for an empty text and after an error. */
function oneOf<T extends string>(
  settings: Settings,
  path: PathOf<'text' | 'switch'>,
  words: readonly T[],
): T | undefined {
  const text = settings.text(path)
  const found = words.find(word => word === text)
  if (found === undefined && text !== '')
    settings.fail(path, `${quote(text)} is not one of ${words.join(', ')}`)
  return found
}

function readNodeName(settings: Settings, hostName: string): string {
  const name = (settings.text('hostnameOverride') || hostName).trim().toLowerCase()
  if (name === '')
    settings.fail('hostnameOverride', 'this machine has no host name; set the name of its Node')
  return name
}

function readStateDir(settings: Settings): string {
  const path = settings.text('stateDir')
  if (path !== '' && !path.startsWith('/'))
    settings.fail('stateDir', `${quote(path)} is not an absolute path`)
  return path
}

function readNodeCondition(settings: Settings): string {
  const type = settings.text('nodeCondition')
  const why = type === '' ? undefined : whyNotConditionType(type)
  if (why !== undefined) settings.fail('nodeCondition', `${quote(type)} ${why}`)
  return type
}

const DETECTORS = ['ClusterCIDR', 'NodeCIDR', 'BridgeInterface', 'InterfaceNamePrefix'] as const

function readDetectLocal(settings: Settings): DetectLocal {
  const kind = oneOf(settings, 'detectLocalMode', DETECTORS)
  switch (kind) {
    case 'NodeCIDR':
      return { kind }
    case 'BridgeInterface':
      return { kind, name: readInterface(settings, 'detectLocal.bridgeInterface') }
    case 'InterfaceNamePrefix':
      return { kind, prefix: readInterface(settings, 'detectLocal.interfaceNamePrefix') }
    // All errors are reported in one round, and the intended mode may be ClusterCIDR.
    case 'ClusterCIDR':
    case undefined:
      return { kind: 'ClusterCIDR', cidrs: readClusterCidrs(settings) }
  }
}

function readInterface(settings: Settings, path: PathOf<'text'>): string {
  const name = settings.text(path)
  if (name === '') settings.fail(path, `is required with detectLocalMode ${settings.text('detectLocalMode')}`)
  // IFNAMSIZ without the final zero.
  else if (Buffer.byteLength(name) > 15 || /[\s/]/.test(name))
    settings.fail(path, `${quote(name)} is not an interface name (at most 15 bytes, no space, no slash)`)
  return name
}

function readClusterCidrs(settings: Settings): readonly Cidr[] {
  const texts = settings
    .text('clusterCIDR')
    .split(',')
    .map(text => text.trim())
    .filter(text => text !== '')
  const cidrs = readCidrs(texts, (index, message) =>
    texts.length === 1 ? settings.fail('clusterCIDR', message) : settings.fail('clusterCIDR', message, index),
  )
  const families = new Set(cidrs.map(({ ip }) => familyOf(ip)))
  if (texts.length > 2 || families.size < cidrs.length)
    settings.fail('clusterCIDR', 'takes one CIDR, or one per IP family')
  return cidrs
}

/** Keywords of nodePortAddresses beside `primary`, and the ranges that they stand for. */
const NODE_PORT_KEYWORDS: ReadonlyMap<string, readonly string[]> = new Map([
  ['localhost', ['127.0.0.0/8', '::1/128']],
  ['all', ['0.0.0.0/0', '::/0']],
])

function readNodePortAddresses(settings: Settings): NodePortSelection {
  const items = settings.texts('nodePortAddresses')
  const cidrs = items.flatMap((item, index) => {
    if (item === 'primary') return []
    const keyword = NODE_PORT_KEYWORDS.get(item)
    if (keyword !== undefined) return keyword.flatMap(text => parseCidr(text) ?? [])
    const fail = (_: number, message: string) =>
      settings.fail('nodePortAddresses', `${message}; keywords are primary, localhost and all`, index)
    return readCidrs([item], fail)
  })
  return {
    primary: items.includes('primary'),
    cidrs: [...new Map(cidrs.map(cidr => [formatCidr(cidr), cidr])).values()],
  }
}

/** Clamps a duration to the maximum of Node's timers, which is as good as never. */
function timerMs(settings: Settings, path: PathOf<'duration'>): number {
  return Math.min(nsToMs(settings.duration(path)), TIMER_MS_MAX)
}

/** Reads clientConnection. client-go replaces a zero by its own default; a negative value means no limit. */
function readClient(settings: Settings, master: string): ClientConfig {
  const qps = settings.number('clientConnection.qps')
  return {
    kubeconfig: settings.text('clientConnection.kubeconfig'),
    master,
    contentType: settings.text('clientConnection.contentType') || 'application/json',
    acceptContentTypes: settings.text('clientConnection.acceptContentTypes'),
    qps: qps === 0 ? 5 : Math.max(0, qps),
    burst: settings.number('clientConnection.burst') || 10,
  }
}

function readIp(settings: Settings): Ip | undefined {
  const text = settings.text('bindAddress')
  const ip = parseIp(text)
  if (ip === undefined) settings.fail('bindAddress', `${quote(text)} is ${whyNotIp(text)}`)
  return ip === undefined || isUnspecified(ip) ? undefined : ip
}

const METRICS_FALLBACK: BindAddress = { ip: '\x7f\0\0\x01', port: 10_249 }

function readServers(settings: Settings): Pick<Config, 'healthzBindAddress' | 'metricsBindAddress'> {
  const healthz = settings.text('healthzBindAddress')
  return {
    healthzBindAddress: healthz === '' ? undefined : readServer(settings, 'healthzBindAddress'),
    metricsBindAddress: readServer(settings, 'metricsBindAddress') ?? METRICS_FALLBACK,
  }
}

function readServer(settings: Settings, path: PathOf<'text'>): BindAddress | undefined {
  const read = readBindAddress(settings.text(path))
  if ('address' in read) return read.address
  settings.fail(path, read.problem)
  return undefined
}

function readConntrack(settings: Settings, lower: boolean): ConntrackConfig {
  const timeoutMs = (path: PathOf<'duration'>) => nsToMs(settings.duration(path)) || undefined
  return {
    maxPerCore: settings.number('conntrack.maxPerCore'),
    min: settings.number('conntrack.min'),
    tcpEstablishedTimeoutMs: timeoutMs('conntrack.tcpEstablishedTimeout'),
    tcpCloseWaitTimeoutMs: timeoutMs('conntrack.tcpCloseWaitTimeout'),
    tcpFinWaitTimeoutMs: timeoutMs('conntrack.tcpFinWaitTimeout'),
    tcpTimeWaitTimeoutMs: timeoutMs('conntrack.tcpTimeWaitTimeout'),
    tcpBeLiberal: settings.bool('conntrack.tcpBeLiberal'),
    udpTimeoutMs: timeoutMs('conntrack.udpTimeout'),
    udpStreamTimeoutMs: timeoutMs('conntrack.udpStreamTimeout'),
    lower,
  }
}

/** Applies the checks of kube-proxy that reading a value does not include. Errors go into `settings.errors`. */
function checkSettings(settings: Settings): void {
  checkNumbers(settings)
  checkDurations(settings)
  checkPeriods(settings)
  checkGates(settings)
}

function checkNumbers(settings: Settings): void {
  for (const path of pathsOf('int32', 'float')) {
    const { range: [min, max] = ANY } = fieldAt(path)
    const value = settings.number(path)
    if (value < min || value > max)
      settings.fail(path, max < ANY[1] ? `${value} is not from ${min} to ${max}` : NEGATIVE)
  }
}

const ANY = [Number.NEGATIVE_INFINITY, Number.POSITIVE_INFINITY] as const
const NEGATIVE = 'cannot be negative'

/** Checks the durations that the mode uses. Errors in its periods come last. */
function checkDurations(settings: Settings): void {
  const mode = rowOf(modeOf(settings))
  const isChecked = (path: FieldPath): boolean =>
    fieldAt(path).checkedInMode === true ? path.startsWith(`${mode.name}.`) : isOfMode(path, mode.settings)
  const paths = pathsOf('duration', 'flush').filter(isChecked)
  const inOrder = [...paths.filter(path => !isShared(path)), ...paths.filter(isShared)]
  const those = (least: 'zero' | 'more') => inOrder.filter(path => fieldAt(path).least === least)
  for (const path of those('zero')) if (settings.duration(path) < 0n) settings.fail(path, NEGATIVE)
  for (const path of those('more'))
    if (settings.duration(path) <= 0n) settings.fail(path, 'must be longer than 0')
}

function checkPeriods(settings: Settings): void {
  const { minSyncPeriod: min, syncPeriod: sync } = modeSettingsOf(settings)
  if (settings.duration(sync) > 0n && settings.duration(min) > settings.duration(sync))
    settings.fail(min, `cannot be longer than ${settings.label(sync)}`)
}

/** Refuses only gates that kprobe reads and that are misspelled. */
function checkGates(settings: Settings): void {
  for (const [index, name] of Object.keys(settings.gates()).entries()) {
    const meant = misspelledGate(name)
    if (meant !== undefined && meant !== name)
      settings.fail(
        'featureGates',
        `${quote(name)}: unrecognized feature gate; did you mean ${meant}?`,
        index,
      )
  }
}

/** Conditions that kubelet, or the cloud's controller, sets itself. */
const TAKEN: readonly string[] = [
  'Ready',
  'MemoryPressure',
  'DiskPressure',
  'PIDPressure',
  'NetworkUnavailable',
]
const TYPE = /^([a-z0-9]([-a-z0-9.]*[a-z0-9])?\/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$/

/** Gives the reason why a text cannot be the type of the condition; undefined if it can. */
export function whyNotConditionType(type: string): string | undefined {
  if (TAKEN.includes(type)) return 'is a condition that kubelet or a cloud controller sets; use another type'
  // The API server's limit for the type of a condition (metav1.Condition).
  return TYPE.test(type) && type.length <= 316
    ? undefined
    : 'is not the type of a condition, such as ServiceProxyReady or example.com/ServiceProxyReady'
}
