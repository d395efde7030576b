import type { Config } from './config.ts'
import type { FieldKind, FieldValue } from './field-values.ts'
import { type FlagText, hostName, ipOf, listenAddress, onOrOff } from './flag-text.ts'

/** The settings that each mode keeps in its own section of the file, or in that of another mode. */
export type SettingOfMode = 'masqueradeAll' | 'masqueradeBit' | 'minSyncPeriod' | 'syncPeriod'

interface Format {
  readonly kind: FieldKind
  /** The default for an unset field and, unless the field is a pointer, for a zero value. */
  readonly fallback?: FieldValue
  /** Null differs from zero. */
  readonly pointer?: true
  /** A written file omits the field if it is empty. */
  readonly omitEmpty?: true
  /** Reads the text of a flag that does not stand for itself. */
  readonly fromFlag?: FlagText
  /** The least and the greatest number. */
  readonly range?: readonly [number, number]
  /** The least duration: 0, or anything longer. */
  readonly least?: 'zero' | 'more'
  /** Only the mode that has the name of the section checks the duration. */
  readonly checkedInMode?: true
  /** Only modes that keep this setting here read the field. */
  readonly ofMode?: SettingOfMode
}

type Flags =
  /** The flag of kube-proxy, without dashes. Beside a file it has no effect, except for logging. */
  | { readonly flag: string; readonly overFile?: string }
  /** kube-proxy has no flag for the field; this one of kprobe overrides the file, and errors name it. */
  | { readonly flag?: undefined; readonly overFile: string }
  | { readonly flag?: undefined; readonly overFile?: undefined; readonly fileOnly: true }

type Use =
  /** The member of Config that gets the value. APPLICATIONS defines how a change of that member is applied. */
  | { readonly sets: keyof Config; readonly unused?: undefined }
  /** kprobe does not use the field; a warning names it if it is set. */
  | { readonly sets?: undefined; readonly unused: true }

/** One field of kubeproxy.config.k8s.io/v1alpha1 as of Kubernetes 1.36, or one of kprobe's own. */
type Field = Format & Flags & Use

const SECOND = 1_000_000_000n
const INFINITE = Number.POSITIVE_INFINITY

/** The type that sig-network's documents name for a service proxy. */
const DEFAULT_CONDITION = 'ServiceProxyReady'

const CONNTRACK_SIZE = { kind: 'int32', pointer: true, range: [0, INFINITE], sets: 'conntrack' } as const
const TIMEOUT = { kind: 'duration', least: 'zero', sets: 'conntrack' } as const
const IPVS_TIMEOUT = { kind: 'duration', least: 'zero', checkedInMode: true, sets: 'ipvs' } as const
const LOG_BUFFER_SIZE = { kind: 'quantity', fallback: '0', unused: true } as const
const LOG_SPLIT = { kind: 'bool', omitEmpty: true, unused: true } as const

const MASQUERADE_ALL = {
  kind: 'bool',
  flag: 'masquerade-all',
  ofMode: 'masqueradeAll',
  sets: 'masqueradeAll',
} as const

const MASQUERADE_BIT = {
  kind: 'int32',
  pointer: true,
  fallback: 14,
  range: [0, 31],
  overFile: 'masquerade-bit',
  ofMode: 'masqueradeBit',
  sets: 'masqueradeBit',
} as const

const MIN_SYNC_PERIOD = {
  kind: 'duration',
  least: 'zero',
  overFile: 'min-sync-period',
  ofMode: 'minSyncPeriod',
  sets: 'minSyncPeriodMs',
} as const

const SYNC_PERIOD = {
  kind: 'duration',
  least: 'more',
  overFile: 'sync-period',
  ofMode: 'syncPeriod',
  sets: 'syncPeriodMs',
} as const

/** Fields in alphabetical order, as kube-proxy writes them. */
const FIELDS = {
  // kprobe's own: kube-proxy's files do not have it, so that an empty one is not written.
  balance: { kind: 'text', omitEmpty: true, overFile: 'balance', sets: 'balance' },
  bindAddress: {
    kind: 'text',
    fallback: '0.0.0.0',
    flag: 'bind-address',
    sets: 'bindAddress',
    fromFlag: ipOf,
  },
  bindAddressHardFail: { kind: 'bool', flag: 'bind-address-hard-fail', sets: 'bindAddressHardFail' },
  'clientConnection.acceptContentTypes': { kind: 'text', sets: 'client', fileOnly: true },
  'clientConnection.burst': {
    kind: 'int32',
    fallback: 10,
    flag: 'kube-api-burst',
    sets: 'client',
    range: [0, INFINITE],
  },
  'clientConnection.contentType': {
    kind: 'text',
    fallback: 'application/vnd.kubernetes.protobuf',
    flag: 'kube-api-content-type',
    sets: 'client',
  },
  'clientConnection.kubeconfig': { kind: 'text', flag: 'kubeconfig', sets: 'client' },
  'clientConnection.qps': { kind: 'float', fallback: 5, flag: 'kube-api-qps', sets: 'client' },
  clusterCIDR: { kind: 'text', flag: 'cluster-cidr', sets: 'detectLocal' },
  configSyncPeriod: {
    kind: 'duration',
    fallback: 900n * SECOND,
    flag: 'config-sync-period',
    unused: true,
    least: 'more',
  },
  'conntrack.maxPerCore': { ...CONNTRACK_SIZE, fallback: 32_768, flag: 'conntrack-max-per-core' },
  'conntrack.min': { ...CONNTRACK_SIZE, fallback: 131_072, flag: 'conntrack-min' },
  'conntrack.tcpBeLiberal': { kind: 'bool', flag: 'conntrack-tcp-be-liberal', sets: 'conntrack' },
  'conntrack.tcpCloseWaitTimeout': {
    ...TIMEOUT,
    pointer: true,
    fallback: 3_600n * SECOND,
    flag: 'conntrack-tcp-timeout-close-wait',
  },
  'conntrack.tcpEstablishedTimeout': {
    ...TIMEOUT,
    pointer: true,
    fallback: 86_400n * SECOND,
    flag: 'conntrack-tcp-timeout-established',
  },
  // These two are kprobe's own. A written file contains them only if they are set, so that kube-proxy can read it.
  'conntrack.tcpFinWaitTimeout': { ...TIMEOUT, omitEmpty: true, overFile: 'conntrack-tcp-timeout-fin-wait' },
  'conntrack.tcpTimeWaitTimeout': {
    ...TIMEOUT,
    omitEmpty: true,
    overFile: 'conntrack-tcp-timeout-time-wait',
  },
  'conntrack.udpStreamTimeout': { ...TIMEOUT, flag: 'conntrack-udp-timeout-stream' },
  'conntrack.udpTimeout': { ...TIMEOUT, flag: 'conntrack-udp-timeout' },
  'detectLocal.bridgeInterface': { kind: 'text', flag: 'pod-bridge-interface', sets: 'detectLocal' },
  'detectLocal.interfaceNamePrefix': { kind: 'text', flag: 'pod-interface-name-prefix', sets: 'detectLocal' },
  detectLocalMode: { kind: 'text', flag: 'detect-local-mode', sets: 'detectLocal' },
  enableProfiling: { kind: 'bool', flag: 'profiling', unused: true },
  featureGates: { kind: 'gates', flag: 'feature-gates', omitEmpty: true, sets: 'featureGates' },
  healthzBindAddress: {
    kind: 'text',
    flag: 'healthz-bind-address',
    sets: 'healthzBindAddress',
    fromFlag: listenAddress,
  },
  hostnameOverride: { kind: 'text', overFile: 'hostname-override', sets: 'nodeName', fromFlag: hostName },
  'iptables.localhostNodePorts': {
    kind: 'bool',
    pointer: true,
    fallback: true,
    flag: 'iptables-localhost-nodeports',
    sets: 'iptables',
  },
  'iptables.masqueradeAll': MASQUERADE_ALL,
  'iptables.masqueradeBit': { ...MASQUERADE_BIT, flag: 'iptables-masquerade-bit' },
  'iptables.minSyncPeriod': { ...MIN_SYNC_PERIOD, flag: 'iptables-min-sync-period' },
  'iptables.syncPeriod': { ...SYNC_PERIOD, flag: 'iptables-sync-period' },
  'ipvs.excludeCIDRs': { kind: 'texts', flag: 'ipvs-exclude-cidrs', sets: 'ipvs' },
  'ipvs.minSyncPeriod': { ...MIN_SYNC_PERIOD, flag: 'ipvs-min-sync-period' },
  'ipvs.scheduler': { kind: 'text', flag: 'ipvs-scheduler', sets: 'ipvs' },
  'ipvs.strictARP': { kind: 'bool', flag: 'ipvs-strict-arp', sets: 'ipvs' },
  'ipvs.syncPeriod': { ...SYNC_PERIOD, flag: 'ipvs-sync-period' },
  'ipvs.tcpFinTimeout': { ...IPVS_TIMEOUT, flag: 'ipvs-tcpfin-timeout' },
  'ipvs.tcpTimeout': { ...IPVS_TIMEOUT, flag: 'ipvs-tcp-timeout' },
  'ipvs.udpTimeout': { ...IPVS_TIMEOUT, flag: 'ipvs-udp-timeout' },
  'logging.flushFrequency': {
    kind: 'flush',
    fallback: 5n * SECOND,
    flag: 'log-flush-frequency',
    unused: true,
    least: 'more',
  },
  'logging.format': {
    kind: 'text',
    fallback: 'text',
    flag: 'logging-format',
    omitEmpty: true,
    sets: 'logFormat',
  },
  'logging.options.json.infoBufferSize': { ...LOG_BUFFER_SIZE, flag: 'log-json-info-buffer-size' },
  'logging.options.json.splitStream': { ...LOG_SPLIT, flag: 'log-json-split-stream' },
  'logging.options.text.infoBufferSize': { ...LOG_BUFFER_SIZE, flag: 'log-text-info-buffer-size' },
  'logging.options.text.splitStream': { ...LOG_SPLIT, flag: 'log-text-split-stream' },
  'logging.verbosity': { kind: 'uint32', flag: 'v', sets: 'verbosity' },
  'logging.vmodule': { kind: 'vmodule', flag: 'vmodule', omitEmpty: true, unused: true },
  metricsBindAddress: {
    kind: 'text',
    flag: 'metrics-bind-address',
    sets: 'metricsBindAddress',
    fromFlag: listenAddress,
  },
  mode: { kind: 'text', flag: 'proxy-mode', sets: 'proxyMode' },
  'nftables.masqueradeAll': MASQUERADE_ALL,
  'nftables.masqueradeBit': MASQUERADE_BIT,
  'nftables.minSyncPeriod': { ...MIN_SYNC_PERIOD, flag: 'iptables-min-sync-period' },
  'nftables.syncPeriod': { ...SYNC_PERIOD, flag: 'iptables-sync-period' },
  // kprobe's own: kube-proxy's files do not have it, so that an empty one is not written.
  nodeCondition: {
    kind: 'text',
    omitEmpty: true,
    overFile: 'node-condition',
    sets: 'nodeCondition',
    fromFlag: onOrOff(DEFAULT_CONDITION, ''),
  },
  nodePortAddresses: { kind: 'texts', flag: 'nodeport-addresses', sets: 'nodePortAddresses' },
  oomScoreAdj: {
    kind: 'int32',
    pointer: true,
    fallback: -999,
    flag: 'oom-score-adj',
    sets: 'oomScoreAdj',
    range: [-1_000, 1_000],
  },
  portRange: { kind: 'text', unused: true, fileOnly: true },
  // kprobe's own.
  prove: {
    kind: 'switch',
    omitEmpty: true,
    overFile: 'prove',
    sets: 'prove',
    fromFlag: onOrOff('full', 'off'),
  },
  showHiddenMetricsForVersion: { kind: 'text', flag: 'show-hidden-metrics-for-version', unused: true },
  // kprobe's own: kube-proxy's files do not have it, so that an empty one is not written.
  stateDir: { kind: 'text', omitEmpty: true, overFile: 'state-dir', sets: 'stateDir' },
  // kprobe's own.
  syncShare: { kind: 'float', omitEmpty: true, range: [0, 100], overFile: 'sync-share', sets: 'syncShare' },
  windowsRunAsService: { kind: 'bool', omitEmpty: true, unused: true, fileOnly: true },
  'winkernel.enableDSR': { kind: 'bool', unused: true, fileOnly: true },
  'winkernel.forwardHealthCheckVip': { kind: 'bool', unused: true, fileOnly: true },
  'winkernel.networkName': { kind: 'text', unused: true, fileOnly: true },
  'winkernel.rootHnsEndpointName': { kind: 'text', unused: true, fileOnly: true },
  'winkernel.sourceVip': { kind: 'text', unused: true, fileOnly: true },
} as const satisfies Readonly<Record<string, Field>>

/** The path of a field, such as `conntrack.min`. */
export type FieldPath = keyof typeof FIELDS

export type PathOf<K extends FieldKind> = {
  readonly [P in FieldPath]: (typeof FIELDS)[P]['kind'] extends K ? P : never
}[FieldPath]

export function fieldAt(path: FieldPath): Field {
  return FIELDS[path]
}

export function isFieldPath(path: string): path is FieldPath {
  return Object.hasOwn(FIELDS, path)
}

export const FIELD_PATHS: readonly FieldPath[] = Object.keys(FIELDS).filter(isFieldPath)

/** Lists the names below a prefix: those of the document for the empty one, `min` and others for `conntrack`. */
export function namesBelow(prefix: string): readonly string[] {
  const start = prefix === '' ? '' : `${prefix}.`
  const below = FIELD_PATHS.filter(path => path.startsWith(start))
  return [...new Set(below.map(path => path.slice(start.length).split('.')[0] ?? ''))]
}

/** Lists the paths of the fields of some kinds. */
export function pathsOf<K extends FieldKind>(...kinds: readonly K[]): readonly PathOf<K>[] {
  return FIELD_PATHS.filter((path): path is PathOf<K> => kinds.some(kind => kind === fieldAt(path).kind))
}

export function isOfMode(path: FieldPath, mode: Readonly<Record<SettingOfMode, FieldPath>>): boolean {
  const { ofMode } = fieldAt(path)
  return ofMode === undefined || mode[ofMode] === path
}

/**
 * Tests whether kube-proxy keeps one value for all modes, and writes it to the section of the mode: so the periods and
 * masqueradeAll, while masqueradeBit has a value in each section.
 */
export function isShared(path: FieldPath): boolean {
  const { ofMode } = fieldAt(path)
  return ofMode !== undefined && ofMode !== 'masqueradeBit'
}
