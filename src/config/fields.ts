import { parseGoDuration } from '../base/duration.ts'
import { parseBool, quote } from './flag.ts'

/** The way in which Go's JSON decoder treats a field of KubeProxyConfiguration. */
type FieldKind =
  | 'text'
  /** A text for which `off` is a value: YAML takes that for false. */
  | 'switch'
  | 'bool'
  | 'int32'
  | 'uint32'
  | 'float'
  | 'duration'
  /** A duration as text, or as a number of nanoseconds. */
  | 'flush'
  | 'quantity'
  | 'texts'
  | 'gates'
  | 'vmodule'

export interface VmoduleItem {
  readonly filePattern: string
  readonly verbosity: number
}

/** Values by kind: a duration is a bigint of nanoseconds, but a number if it was given as one; a quantity is text. */
export type FieldValue =
  | string
  | boolean
  | number
  | bigint
  | readonly string[]
  | Readonly<Record<string, boolean>>
  | readonly VmoduleItem[]

/** One field of kubeproxy.config.k8s.io/v1alpha1 as of Kubernetes 1.36, or one of kprobe's own. */
interface Field {
  readonly kind: FieldKind
  /** The default for an unset field and, unless the field is a pointer, for a zero value. */
  readonly fallback?: FieldValue
  /** Null differs from zero. */
  readonly pointer?: true
  /** The flag of kube-proxy for the field, without dashes. */
  readonly flag?: string
  /** Names, in errors, the flag that sets the field. Other code makes that flag work: one for several fields, or of a mode. */
  readonly ownFlag?: string
  /** A written file omits the field if it is empty. */
  readonly omitEmpty?: true
  /** kprobe does not use the field; a warning names it if it is set. */
  readonly unused?: true
}

const SECOND = 1_000_000_000n

/** Fields in alphabetical order, as kube-proxy writes them. */
const FIELDS = {
  bindAddress: { kind: 'text', fallback: '0.0.0.0', flag: 'bind-address' },
  bindAddressHardFail: { kind: 'bool', flag: 'bind-address-hard-fail' },
  'clientConnection.acceptContentTypes': { kind: 'text' },
  'clientConnection.burst': { kind: 'int32', fallback: 10, flag: 'kube-api-burst' },
  'clientConnection.contentType': {
    kind: 'text',
    fallback: 'application/vnd.kubernetes.protobuf',
    flag: 'kube-api-content-type',
  },
  'clientConnection.kubeconfig': { kind: 'text', flag: 'kubeconfig' },
  'clientConnection.qps': { kind: 'float', fallback: 5, flag: 'kube-api-qps' },
  clusterCIDR: { kind: 'text', flag: 'cluster-cidr' },
  configSyncPeriod: { kind: 'duration', fallback: 900n * SECOND, flag: 'config-sync-period', unused: true },
  'conntrack.maxPerCore': { kind: 'int32', pointer: true, fallback: 32_768, flag: 'conntrack-max-per-core' },
  'conntrack.min': { kind: 'int32', pointer: true, fallback: 131_072, flag: 'conntrack-min' },
  'conntrack.tcpBeLiberal': { kind: 'bool', flag: 'conntrack-tcp-be-liberal' },
  'conntrack.tcpCloseWaitTimeout': {
    kind: 'duration',
    pointer: true,
    fallback: 3_600n * SECOND,
    flag: 'conntrack-tcp-timeout-close-wait',
  },
  'conntrack.tcpEstablishedTimeout': {
    kind: 'duration',
    pointer: true,
    fallback: 86_400n * SECOND,
    flag: 'conntrack-tcp-timeout-established',
  },
  // These two are kprobe's own. A written file contains them only if they are set, so that kube-proxy can read it.
  'conntrack.tcpFinWaitTimeout': {
    kind: 'duration',
    omitEmpty: true,
    ownFlag: 'conntrack-tcp-timeout-fin-wait',
  },
  'conntrack.tcpTimeWaitTimeout': {
    kind: 'duration',
    omitEmpty: true,
    ownFlag: 'conntrack-tcp-timeout-time-wait',
  },
  'conntrack.udpStreamTimeout': { kind: 'duration', flag: 'conntrack-udp-timeout-stream' },
  'conntrack.udpTimeout': { kind: 'duration', flag: 'conntrack-udp-timeout' },
  'detectLocal.bridgeInterface': { kind: 'text', flag: 'pod-bridge-interface' },
  'detectLocal.interfaceNamePrefix': { kind: 'text', flag: 'pod-interface-name-prefix' },
  detectLocalMode: { kind: 'text', flag: 'detect-local-mode' },
  enableProfiling: { kind: 'bool', flag: 'profiling', unused: true },
  featureGates: { kind: 'gates', flag: 'feature-gates', omitEmpty: true },
  healthzBindAddress: { kind: 'text', flag: 'healthz-bind-address' },
  hostnameOverride: { kind: 'text', ownFlag: 'hostname-override' },
  'iptables.localhostNodePorts': {
    kind: 'bool',
    pointer: true,
    fallback: true,
    flag: 'iptables-localhost-nodeports',
  },
  'iptables.masqueradeAll': { kind: 'bool', ownFlag: 'masquerade-all' },
  'iptables.masqueradeBit': { kind: 'int32', pointer: true, fallback: 14, flag: 'iptables-masquerade-bit' },
  'iptables.minSyncPeriod': { kind: 'duration', ownFlag: 'min-sync-period' },
  'iptables.syncPeriod': { kind: 'duration', ownFlag: 'sync-period' },
  'ipvs.excludeCIDRs': { kind: 'texts', flag: 'ipvs-exclude-cidrs' },
  'ipvs.minSyncPeriod': { kind: 'duration', ownFlag: 'min-sync-period' },
  'ipvs.scheduler': { kind: 'text', flag: 'ipvs-scheduler' },
  'ipvs.strictARP': { kind: 'bool', flag: 'ipvs-strict-arp' },
  'ipvs.syncPeriod': { kind: 'duration', ownFlag: 'sync-period' },
  'ipvs.tcpFinTimeout': { kind: 'duration', flag: 'ipvs-tcpfin-timeout' },
  'ipvs.tcpTimeout': { kind: 'duration', flag: 'ipvs-tcp-timeout' },
  'ipvs.udpTimeout': { kind: 'duration', flag: 'ipvs-udp-timeout' },
  'logging.flushFrequency': {
    kind: 'flush',
    fallback: 5n * SECOND,
    flag: 'log-flush-frequency',
    unused: true,
  },
  'logging.format': { kind: 'text', fallback: 'text', flag: 'logging-format', omitEmpty: true },
  'logging.options.json.infoBufferSize': {
    kind: 'quantity',
    fallback: '0',
    flag: 'log-json-info-buffer-size',
    unused: true,
  },
  'logging.options.json.splitStream': {
    kind: 'bool',
    flag: 'log-json-split-stream',
    omitEmpty: true,
    unused: true,
  },
  'logging.options.text.infoBufferSize': {
    kind: 'quantity',
    fallback: '0',
    flag: 'log-text-info-buffer-size',
    unused: true,
  },
  'logging.options.text.splitStream': {
    kind: 'bool',
    flag: 'log-text-split-stream',
    omitEmpty: true,
    unused: true,
  },
  'logging.verbosity': { kind: 'uint32', flag: 'v' },
  'logging.vmodule': { kind: 'vmodule', flag: 'vmodule', omitEmpty: true, unused: true },
  metricsBindAddress: { kind: 'text', flag: 'metrics-bind-address' },
  mode: { kind: 'text', flag: 'proxy-mode' },
  'nftables.masqueradeAll': { kind: 'bool', ownFlag: 'masquerade-all' },
  'nftables.masqueradeBit': { kind: 'int32', pointer: true, fallback: 14, ownFlag: 'masquerade-bit' },
  'nftables.minSyncPeriod': { kind: 'duration', ownFlag: 'min-sync-period' },
  'nftables.syncPeriod': { kind: 'duration', ownFlag: 'sync-period' },
  // kprobe's own: kube-proxy's files do not have it, so that an empty one is not written.
  nodeCondition: { kind: 'text', omitEmpty: true, ownFlag: 'node-condition' },
  nodePortAddresses: { kind: 'texts', flag: 'nodeport-addresses' },
  oomScoreAdj: { kind: 'int32', pointer: true, fallback: -999, flag: 'oom-score-adj' },
  portRange: { kind: 'text', unused: true },
  // kprobe's own.
  prove: { kind: 'switch', omitEmpty: true, ownFlag: 'prove' },
  showHiddenMetricsForVersion: { kind: 'text', flag: 'show-hidden-metrics-for-version', unused: true },
  // kprobe's own: kube-proxy's files do not have it, so that an empty one is not written.
  stateDir: { kind: 'text', omitEmpty: true, ownFlag: 'state-dir' },
  windowsRunAsService: { kind: 'bool', omitEmpty: true, unused: true },
  'winkernel.enableDSR': { kind: 'bool', unused: true },
  'winkernel.forwardHealthCheckVip': { kind: 'bool', unused: true },
  'winkernel.networkName': { kind: 'text', unused: true },
  'winkernel.rootHnsEndpointName': { kind: 'text', unused: true },
  'winkernel.sourceVip': { kind: 'text', unused: true },
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

const INT32_MIN = -(2 ** 31)
const INT32_MAX = 2 ** 31 - 1

export type ScalarKind = Exclude<FieldKind, 'texts' | 'gates' | 'vmodule'>

/** Valid values of each kind of field, for errors. */
const EXPECTED: Readonly<Record<FieldKind, string>> = {
  text: 'a text',
  switch: 'a text',
  bool: 'true or false',
  int32: `a whole number from ${INT32_MIN} to ${INT32_MAX}`,
  // klog counts in 31 bits.
  uint32: `a whole number from 0 to ${INT32_MAX}`,
  float: 'a number',
  duration: 'a duration such as 30s, 1m30s or 20ms',
  flush: 'a duration such as 30s, or a number of nanoseconds',
  quantity: 'a size such as 512, 4k or 1Mi',
  texts: 'a list of texts',
  gates: 'a mapping of names to true or false',
  vmodule: 'a list of mappings with filePattern and verbosity',
}

export function whyNotValue(kind: FieldKind, value: unknown): string {
  return `${describe(value)} is not ${EXPECTED[kind]}`
}

function describe(value: unknown): string {
  if (value === null) return 'null'
  if (typeof value === 'string') return quote(value)
  return typeof value === 'object' ? (Array.isArray(value) ? 'a list' : 'a mapping') : String(value)
}

/** Reads a scalar of the file; undefined if this kind of field cannot hold it. */
export function scalarValue(kind: ScalarKind, scalar: unknown): FieldValue | undefined {
  switch (kind) {
    case 'text':
      return typeof scalar === 'string' ? scalar : undefined
    case 'switch':
      return scalar === false ? 'off' : scalarValue('text', scalar)
    case 'bool':
      return typeof scalar === 'boolean' ? scalar : undefined
    case 'int32':
      return wholeNumber(scalar, INT32_MIN, INT32_MAX)
    case 'uint32':
      return wholeNumber(scalar, 0, INT32_MAX)
    case 'float':
      return typeof scalar === 'number' ? singlePrecision(scalar) : undefined
    case 'duration':
      return typeof scalar === 'string' ? parseGoDuration(scalar) : undefined
    case 'flush':
      return typeof scalar === 'string'
        ? parseGoDuration(scalar)
        : wholeNumber(scalar, Number.MIN_SAFE_INTEGER, Number.MAX_SAFE_INTEGER)
    case 'quantity':
      return typeof scalar === 'string' || typeof scalar === 'number'
        ? parseQuantity(String(scalar))?.text
        : undefined
  }
}

/** Gives the shortest decimal that equals `value` as a Go float32; undefined if it exceeds the range. */
function singlePrecision(value: number): number | undefined {
  const single = Math.fround(value)
  if (!Number.isFinite(single)) return undefined
  for (let digits = 1; digits < 9; digits++) {
    const short = Number(single.toPrecision(digits))
    if (Math.fround(short) === single) return short
  }
  return single
}

function wholeNumber(scalar: unknown, min: number, max: number): number | undefined {
  return typeof scalar === 'number' && Number.isInteger(scalar) && scalar >= min && scalar <= max
    ? scalar
    : undefined
}

/** Reads the text of a flag as pflag and Go's strconv do; numbers may be hexadecimal. */
export function flagValue(kind: ScalarKind, text: string): FieldValue | undefined {
  switch (kind) {
    case 'text':
    case 'switch':
      return text
    case 'bool':
      return parseBool(text)
    case 'int32':
      return scalarValue(kind, parseInteger(text))
    case 'uint32':
      return scalarValue(kind, /^\d+$/.test(text) ? Number(text) : undefined)
    case 'float':
      return /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(text) ? scalarValue(kind, Number(text)) : undefined
    case 'duration':
    case 'flush':
      return parseGoDuration(text)
    case 'quantity':
      return scalarValue(kind, text)
  }
}

function parseInteger(text: string): number | undefined {
  const [, sign, digits = ''] = /^([-+]?)(0x[\da-f]+|0b[01]+|0o?[0-7]+|[1-9]\d*|0)$/i.exec(text) ?? []
  if (sign === undefined) return undefined
  const value = Number(digits.replace(/^0(?=[0-7])/, '0o'))
  return sign === '-' ? -value : value
}

const DECIMAL: readonly string[] = ['', 'k', 'M', 'G', 'T', 'P', 'E']
const BINARY: readonly string[] = ['', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei']

/** A size in bytes as Kubernetes writes quantities (`512`, `2k`, `1.5Ki`). */
interface Quantity {
  readonly bytes: bigint
  /**
   * The text as Kubernetes prints it: whole bytes in the shortest form, with the same kind of unit (`1.5Ki` becomes
   * `1536`).
   */
  readonly text: string
}

/** Reads a quantity of bytes, rounded up to whole bytes; undefined if invalid. */
export function parseQuantity(text: string): Quantity | undefined {
  const match = /^([+-]?)(\d*)(?:\.(\d*))?(?:([kMGTPE]|[KMGTPE]i|[num])|[eE]([+-]?\d{1,2}))?$/.exec(
    text.trim(),
  )
  const [, sign = '', whole = '', fraction = '', suffix = '', exponent = '0'] = match ?? []
  if (match === null || (whole === '' && fraction === '') || whole.length + fraction.length > 40)
    return undefined
  const binary = suffix.endsWith('i')
  const scale = (binary ? BINARY : DECIMAL).indexOf(suffix)
  const tens = BigInt(Number(exponent) + decimalShift(suffix, scale, binary) - fraction.length)
  const digits = BigInt(`${whole}${fraction}`) * (binary ? 1_024n ** BigInt(scale) : 1n)
  const size = tens >= 0n ? digits * 10n ** tens : divideUp(digits, 10n ** -tens)
  const bytes = sign === '-' ? -size : size
  const whole10 = exponent === '0' && tens >= 0n
  return { bytes, text: binary || whole10 ? shortest(bytes, binary) : text.trim() }
}

/** Gives the power of ten of a suffix, less the digits of the fraction. */
function decimalShift(suffix: string, scale: number, binary: boolean): number {
  if (binary) return 0
  return scale >= 0 ? scale * 3 : -3 * ('mun'.indexOf(suffix) + 1)
}

function divideUp(value: bigint, by: bigint): bigint {
  return (value + by - 1n) / by
}

function shortest(bytes: bigint, binary: boolean): string {
  const base = binary ? 1_024n : 1_000n
  const units = binary ? BINARY : DECIMAL
  let rest = bytes
  let power = 0
  while (rest !== 0n && rest % base === 0n && power < units.length - 1) {
    rest /= base
    power++
  }
  return `${rest}${units[power]}`
}
