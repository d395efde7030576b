/** How Go's JSON decoder treats a field of KubeProxyConfiguration. */
export type FieldKind =
  | 'text'
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
  'conntrack.tcpFinWaitTimeout': { kind: 'duration', omitEmpty: true },
  'conntrack.tcpTimeWaitTimeout': { kind: 'duration', omitEmpty: true },
  'conntrack.udpStreamTimeout': { kind: 'duration', flag: 'conntrack-udp-timeout-stream' },
  'conntrack.udpTimeout': { kind: 'duration', flag: 'conntrack-udp-timeout' },
  'detectLocal.bridgeInterface': { kind: 'text', flag: 'pod-bridge-interface' },
  'detectLocal.interfaceNamePrefix': { kind: 'text', flag: 'pod-interface-name-prefix' },
  detectLocalMode: { kind: 'text', flag: 'detect-local-mode' },
  enableProfiling: { kind: 'bool', flag: 'profiling', unused: true },
  featureGates: { kind: 'gates', flag: 'feature-gates', omitEmpty: true },
  healthzBindAddress: { kind: 'text', flag: 'healthz-bind-address' },
  hostnameOverride: { kind: 'text' },
  'iptables.localhostNodePorts': {
    kind: 'bool',
    pointer: true,
    fallback: true,
    flag: 'iptables-localhost-nodeports',
  },
  'iptables.masqueradeAll': { kind: 'bool' },
  'iptables.masqueradeBit': { kind: 'int32', pointer: true, fallback: 14, flag: 'iptables-masquerade-bit' },
  'iptables.minSyncPeriod': { kind: 'duration' },
  'iptables.syncPeriod': { kind: 'duration' },
  'ipvs.excludeCIDRs': { kind: 'texts', flag: 'ipvs-exclude-cidrs' },
  'ipvs.minSyncPeriod': { kind: 'duration' },
  'ipvs.scheduler': { kind: 'text', flag: 'ipvs-scheduler' },
  'ipvs.strictARP': { kind: 'bool', flag: 'ipvs-strict-arp' },
  'ipvs.syncPeriod': { kind: 'duration' },
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
  'nftables.masqueradeAll': { kind: 'bool' },
  'nftables.masqueradeBit': { kind: 'int32', pointer: true, fallback: 14 },
  'nftables.minSyncPeriod': { kind: 'duration' },
  'nftables.syncPeriod': { kind: 'duration' },
  nodePortAddresses: { kind: 'texts', flag: 'nodeport-addresses' },
  oomScoreAdj: { kind: 'int32', pointer: true, fallback: -999, flag: 'oom-score-adj' },
  portRange: { kind: 'text', unused: true },
  showHiddenMetricsForVersion: { kind: 'text', flag: 'show-hidden-metrics-for-version', unused: true },
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
