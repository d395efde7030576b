import type { ExplainFlag } from './flag.ts'

/**
 * Flags of kube-proxy 1.36 that this build does not act on. They are refused by name: a flag that is accepted and
 * ignored would leave its user with a node that does not do what the manifest says.
 */
const NOT_ACTED_ON = {
  bool: [
    'bind-address-hard-fail',
    'conntrack-tcp-be-liberal',
    'init-only',
    'iptables-localhost-nodeports',
    'ipvs-strict-arp',
    'log-json-split-stream',
    'log-text-split-stream',
    'profiling',
  ],
  value: [
    'bind-address',
    'boot-id-file',
    'config',
    'config-sync-period',
    'conntrack-max-per-core',
    'conntrack-min',
    'conntrack-tcp-timeout-close-wait',
    'conntrack-tcp-timeout-established',
    'conntrack-udp-timeout',
    'conntrack-udp-timeout-stream',
    'feature-gates',
    'healthz-bind-address',
    'healthz-port',
    'ipvs-exclude-cidrs',
    'ipvs-min-sync-period',
    'ipvs-scheduler',
    'ipvs-sync-period',
    'ipvs-tcp-timeout',
    'ipvs-tcpfin-timeout',
    'ipvs-udp-timeout',
    'kube-api-burst',
    'kube-api-content-type',
    'kube-api-qps',
    'kubeconfig',
    'log-flush-frequency',
    'log-json-info-buffer-size',
    'log-text-info-buffer-size',
    'machine-id-file',
    'master',
    'metrics-bind-address',
    'metrics-port',
    'oom-score-adj',
    'show-hidden-metrics-for-version',
    'vmodule',
    'write-config-to',
  ],
  windowsBool: ['enable-dsr', 'forward-healthcheck-vip', 'windows-service'],
  windowsValue: ['network-name', 'root-hnsendpoint-name', 'source-vip'],
} as const

/** Flags that have another name or place here. */
const ELSEWHERE: Readonly<Record<string, { readonly takesValue: boolean; readonly message: string }>> = {
  cleanup: { takesValue: false, message: 'is a command here: run `kprobe cleanup`' },
  'iptables-masquerade-bit': {
    takesValue: true,
    message:
      'belongs to the iptables mode, which this build does not have; in nftables mode it is --masquerade-bit',
  },
}

/** Explains a flag of kube-proxy's that our table does not have. */
export const explainKubeProxyFlag: ExplainFlag = name => {
  const elsewhere = Object.hasOwn(ELSEWHERE, name) ? ELSEWHERE[name] : undefined
  if (elsewhere !== undefined) return elsewhere
  const { bool, value, windowsBool, windowsValue } = NOT_ACTED_ON
  const has = (names: readonly string[]) => names.includes(name)
  if (has(windowsBool) || has(windowsValue))
    return { takesValue: has(windowsValue), message: 'is for Windows nodes; kprobe runs on Linux' }
  if (!has(bool) && !has(value)) return undefined
  return {
    takesValue: has(value),
    message: 'is a flag of kube-proxy that this build does not act on; leave it out',
  }
}
