import { type ExplainFlag, type FlagSpec, grouped } from './flag.ts'

/** Checked as kube-proxy checks them, and silently without effect, as there. */
export const OTHER_MODE_FLAGS: readonly FlagSpec[] = grouped(
  'Of other modes: without effect in nftables mode',
  [
    {
      name: 'iptables-masquerade-bit',
      kind: 'integer',
      placeholder: 'BIT',
      default: '14',
      help: 'counts like --masquerade-bit when no --proxy-mode is given',
    },
    {
      name: 'iptables-localhost-nodeports',
      kind: 'bool',
      default: 'true',
      help: 'NodePorts at loopback addresses',
    },
    {
      name: 'ipvs-sync-period',
      kind: 'duration',
      placeholder: 'DURATION',
      default: '30s',
      help: 'period of looks at the kernel',
    },
    {
      name: 'ipvs-min-sync-period',
      kind: 'duration',
      placeholder: 'DURATION',
      default: '1s',
      help: 'least distance between commits',
    },
    { name: 'ipvs-scheduler', kind: 'text', placeholder: 'NAME', default: '', help: 'how IPVS balances' },
    {
      name: 'ipvs-exclude-cidrs',
      kind: 'list',
      placeholder: 'CIDR,...',
      default: '',
      help: 'virtual servers that cleaning leaves alone',
    },
    { name: 'ipvs-strict-arp', kind: 'bool', default: 'false', help: 'answer ARP requests strictly' },
    {
      name: 'ipvs-tcp-timeout',
      kind: 'duration',
      placeholder: 'DURATION',
      default: '0s',
      help: 'of idle TCP connections',
    },
    {
      name: 'ipvs-tcpfin-timeout',
      kind: 'duration',
      placeholder: 'DURATION',
      default: '0s',
      help: 'of TCP connections after a FIN',
    },
    {
      name: 'ipvs-udp-timeout',
      kind: 'duration',
      placeholder: 'DURATION',
      default: '0s',
      help: 'of UDP flows',
    },
  ],
)

/** Taken so that a manifest of kube-proxy keeps working; whoever sets them is told. */
export const UNUSED_FLAGS: readonly FlagSpec[] = grouped('Without effect here', [
  {
    name: 'boot-id-file',
    kind: 'text',
    placeholder: 'FILE',
    default: '',
    help: 'of a library that kube-proxy contains',
  },
  {
    name: 'machine-id-file',
    kind: 'text',
    placeholder: 'FILE',
    default: '',
    help: 'of a library that kube-proxy contains',
  },
  {
    name: 'config-sync-period',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '15m',
    help: 'period of informers; a watch here needs none',
  },
  {
    name: 'log-flush-frequency',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '5s',
    help: 'log lines are written at once',
  },
  {
    name: 'log-json-info-buffer-size',
    kind: 'text',
    placeholder: 'SIZE',
    default: '0',
    help: 'log lines are written at once',
  },
  { name: 'log-json-split-stream', kind: 'bool', default: 'false', help: 'log lines go to standard error' },
  {
    name: 'log-text-info-buffer-size',
    kind: 'text',
    placeholder: 'SIZE',
    default: '0',
    help: 'log lines are written at once',
  },
  { name: 'log-text-split-stream', kind: 'bool', default: 'false', help: 'log lines go to standard error' },
  { name: 'profiling', kind: 'bool', default: 'false', help: 'no profiles are served' },
  {
    name: 'show-hidden-metrics-for-version',
    kind: 'text',
    placeholder: 'VERSION',
    default: '',
    help: 'no metric is hidden',
  },
  {
    name: 'vmodule',
    kind: 'list',
    placeholder: 'PATTERN=LEVEL,...',
    default: '',
    help: 'levels for source files of kube-proxy',
  },
])

/** Flags of kube-proxy's that only its builds for Windows know. */
const WINDOWS_FLAGS: Readonly<Record<string, 'bool' | 'text'>> = {
  'enable-dsr': 'bool',
  'forward-healthcheck-vip': 'bool',
  'network-name': 'text',
  'root-hnsendpoint-name': 'text',
  'source-vip': 'text',
  'windows-service': 'bool',
}

export const explainWindowsFlag: ExplainFlag = name => {
  const kind = Object.hasOwn(WINDOWS_FLAGS, name) ? WINDOWS_FLAGS[name] : undefined
  if (kind === undefined) return undefined
  return { takesValue: kind === 'text', message: 'is for Windows nodes; kprobe runs on Linux' }
}
