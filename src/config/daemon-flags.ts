import { type FlagSpec, grouped } from './flag.ts'

const PACE_FLAGS: readonly FlagSpec[] = grouped('Pace', [
  {
    name: 'min-sync-period',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '20ms',
    help: 'least distance between two commits; 0 means the default',
  },
  {
    name: 'sync-period',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '10m',
    help: 'longest time between two looks at the whole kernel state; unset in the mode ipvs: 30s',
  },
])

const PROCESS_FLAGS: readonly FlagSpec[] = grouped('What to do', [
  {
    name: 'backend',
    kind: 'text',
    placeholder: 'BACKEND',
    default: 'netlink',
    help: 'netlink (the kernel), or dry-run (print what would be done, write nothing)',
  },
  {
    name: 'once',
    kind: 'bool',
    default: 'false',
    help: 'sync once, report, and exit 0 when the kernel holds the wanted state',
  },
  {
    name: 'init-only',
    kind: 'bool',
    default: 'false',
    help: 'do what needs full privileges, then exit; afterwards CAP_NET_ADMIN is enough',
  },
  { name: 'cleanup', kind: 'bool', default: 'false', help: 'remove what is ours from the kernel, then exit' },
  {
    name: 'write-config-to',
    kind: 'text',
    placeholder: 'FILE',
    default: '',
    help: 'write the effective configuration to this file as a KubeProxyConfiguration, then exit',
  },
  {
    name: 'version',
    kind: 'bool',
    default: 'false',
    help: 'print the version, then exit; --version=raw prints it for machines',
  },
  {
    name: 'oom-score-adj',
    kind: 'integer',
    placeholder: 'SCORE',
    default: '-999',
    help: 'how readily the kernel ends this process when memory is short, -1000 to 1000',
  },
])

/** Of the daemon, and of commands that ask it. */
export const ADMIN_SOCKET_FLAG: FlagSpec = {
  name: 'admin-socket',
  kind: 'text',
  placeholder: 'PATH',
  default: '',
  help: 'unix socket for the other commands; unset: none',
}

const TELEMETRY_FLAGS: readonly FlagSpec[] = grouped('Health, metrics and logs', [
  {
    name: 'healthz-bind-address',
    kind: 'text',
    placeholder: 'IP[:PORT]',
    default: '0.0.0.0:10256',
    help: 'where /healthz and /livez answer; without a port, 10256 is added',
  },
  {
    name: 'healthz-port',
    kind: 'integer',
    placeholder: 'PORT',
    default: '10256',
    help: '0: no health server; another port only goes to an address that has none (deprecated)',
    hidden: true,
  },
  {
    name: 'metrics-bind-address',
    kind: 'text',
    placeholder: 'IP[:PORT]',
    default: '127.0.0.1:10249',
    help: 'where /metrics and its neighbours answer; without a port, 10249 is added',
  },
  {
    name: 'metrics-port',
    kind: 'integer',
    placeholder: 'PORT',
    default: '10249',
    help: 'a port other than 0 only goes to an address that has none (deprecated)',
    hidden: true,
  },
  {
    name: 'bind-address-hard-fail',
    kind: 'bool',
    default: 'false',
    help: 'exit when an address of health or metrics is taken, instead of trying again',
  },
  ADMIN_SOCKET_FLAG,
  { name: 'logging-format', kind: 'text', placeholder: 'FORMAT', default: 'text', help: 'text or json' },
  { name: 'v', short: 'v', kind: 'integer', placeholder: 'LEVEL', default: '0', help: 'how much is logged' },
])

const CONNTRACK_FLAGS: readonly FlagSpec[] = grouped('Connection tracking', [
  {
    name: 'conntrack-max-per-core',
    kind: 'integer',
    placeholder: 'COUNT',
    default: '32768',
    help: 'entries a processor; 0 leaves the limit and --conntrack-min alone',
  },
  {
    name: 'conntrack-min',
    kind: 'integer',
    placeholder: 'COUNT',
    default: '131072',
    help: 'least number of entries in all',
  },
  {
    name: 'conntrack-tcp-timeout-established',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '24h',
    help: 'how long an idle TCP connection is remembered; 0 leaves it alone',
  },
  {
    name: 'conntrack-tcp-timeout-close-wait',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '1h',
    help: 'how long a TCP connection in CLOSE_WAIT is remembered; 0 leaves it alone',
  },
  {
    name: 'conntrack-tcp-timeout-fin-wait',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '0s',
    help: "nf_conntrack_tcp_timeout_fin_wait; 0 keeps the kernel's value",
  },
  {
    name: 'conntrack-tcp-timeout-time-wait',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '0s',
    help: "nf_conntrack_tcp_timeout_time_wait; 0 keeps the kernel's value",
  },
  {
    name: 'conntrack-tcp-be-liberal',
    kind: 'bool',
    default: 'false',
    help: 'take TCP segments outside the window for valid ones',
  },
  {
    name: 'conntrack-udp-timeout',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '0s',
    help: 'how long a UDP flow without an answer is remembered; 0 leaves it alone',
  },
  {
    name: 'conntrack-udp-timeout-stream',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '0s',
    help: 'how long a UDP flow with answers is remembered; 0 leaves it alone',
  },
  {
    name: 'conntrack-lower',
    kind: 'bool',
    default: 'false',
    help: 'lower larger values that are set in the kernel, too, as kube-proxy does',
  },
])

/** What only the daemon needs. */
export const DAEMON_FLAGS: readonly FlagSpec[] = [
  ...PACE_FLAGS,
  ...PROCESS_FLAGS,
  ...TELEMETRY_FLAGS,
  ...CONNTRACK_FLAGS,
]
