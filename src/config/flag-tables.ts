import { DEFAULT_MODE, MODES } from '../modes/registry.ts'
import { boolFlag, durationFlag, type FlagSpec, grouped, integerFlag, listFlag, textFlag } from './flag.ts'

/** Joins words: `a, b or c`. */
function listOf(words: readonly string[], last: 'and' | 'or'): string {
  return words.join(', ').replace(/, (?!.*, )/, ` ${last} `)
}

const EVERY_ADDRESS = listOf(
  MODES.filter(({ settings }) => settings.everyAddress).map(({ title }) => title),
  'and',
)

/** Flags of the connection to relays. */
export const RELAY_CLIENT_FLAGS: readonly FlagSpec[] = grouped('Source and node', [
  textFlag(
    'relay-tls-ca',
    'FILE',
    'CA certificates that the certificates of relays must be signed by (PEM); needed at every address that is not loopback',
  ),
  textFlag(
    'relay-tls-server-name',
    'NAME',
    'DNS name in the certificates of relays; empty: the names of dns:///NAME:PORT, otherwise their IP addresses',
  ),
  textFlag('relay-tls-cert', 'FILE', 'certificate of this node for relays, of group system:nodes (PEM)'),
  textFlag('relay-tls-key', 'FILE', 'key of that certificate (PEM)'),
  textFlag(
    'relay-token-file',
    'FILE',
    'ServiceAccount token for relays, instead of a certificate; kprobe reads the file for each stream, so that it may rotate',
  ),
  textFlag(
    'relay-zone',
    'ZONE',
    'zone of this node: kprobe asks the relays of --source=relay:ADDRESS@ZONE of this zone first',
  ),
])

/** Flags of the source and the node. */
export const SOURCE_FLAGS: readonly FlagSpec[] = grouped('Source and node', [
  textFlag(
    'source',
    'SOURCE',
    'where Services come from: kube (the API server), file:PATH (YAML or JSON, or a folder), relay:ADDRESS[@ZONE],...',
    { default: 'kube' },
  ),
  textFlag(
    'relay-fallback',
    'SOURCE',
    'kube: read from the API server while no relay has answered for 30 to 60 s; empty: keep the last known state and wait for a relay',
  ),
  ...RELAY_CLIENT_FLAGS,
  textFlag(
    'config',
    'FILE',
    'KubeProxyConfiguration file (kubeproxy.config.k8s.io/v1alpha1). With --config all other kube-proxy flags are ignored except logging, --hostname-override, --master and those that `kprobe run --help` lists under "What to do"',
  ),
  textFlag('hostname-override', 'NAME', 'name of the Node object of this machine', {
    default: 'the host name',
  }),
  textFlag(
    'service-proxy-name',
    'NAME',
    'handle only Services with this value in the label service.kubernetes.io/service-proxy-name, including headless ones with externalIPs; empty: Services without the label. Proxies of several names run beside each other (not in IPVS mode)',
  ),
  textFlag(
    'bind-address',
    'IP',
    "node IP to use instead of the Node object's; also sets the primary IP family. kprobe does not listen on it. An unspecified address has no effect",
    { default: '0.0.0.0' },
  ),
  textFlag('kubeconfig', 'FILE', 'kubeconfig file; empty: the credentials of this pod'),
  textFlag('master', 'URL', 'API server URL; overrides that of the kubeconfig'),
  textFlag('kube-api-content-type', 'TYPE', 'content type to request from the API server', {
    default: 'application/vnd.kubernetes.protobuf',
  }),
  {
    name: 'kube-api-qps',
    kind: 'number',
    placeholder: 'RATE',
    default: '5',
    help: 'requests per second to the API server, on average; negative: no limit',
  },
  integerFlag('kube-api-burst', 'COUNT', 'requests to the API server that may be sent in a burst', {
    default: '10',
  }),
  listFlag(
    'feature-gates',
    'NAME=BOOL,...',
    'Kubernetes feature gates; AllowServiceExternalIPs=false ignores externalIPs',
  ),
])

/** Flags that decide the path of packets. */
export const TRAFFIC_FLAGS: readonly FlagSpec[] = grouped('Traffic', [
  {
    name: 'proxy-mode',
    kind: 'text',
    placeholder: 'MODE',
    default: DEFAULT_MODE,
    help: listOf(
      MODES.map(({ name, purpose }) => (purpose === undefined ? name : `${name} (${purpose})`)),
      'or',
    ),
  },
  textFlag(
    'detect-local-mode',
    'MODE',
    'how traffic from pods of this node is recognized: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix',
    { default: 'ClusterCIDR' },
  ),
  textFlag('cluster-cidr', 'CIDR[,CIDR]', 'pod CIDR, at most one per IP family (for ClusterCIDR)'),
  textFlag('pod-bridge-interface', 'NAME', 'bridge that pods are attached to (for BridgeInterface)'),
  textFlag('pod-interface-name-prefix', 'PREFIX', 'name prefix of pod interfaces (for InterfaceNamePrefix)'),
  boolFlag('masquerade-all', 'masquerade all traffic to cluster IPs'),
  integerFlag('masquerade-bit', 'BIT', 'bit of the packet mark that requests masquerading, 0 to 31', {
    default: '14',
  }),
  listFlag(
    'nodeport-addresses',
    'CIDR,...',
    `node addresses that accept NodePort traffic: CIDRs, primary (the Node's first of each family), localhost and all, in any mixture; unset in ${EVERY_ADDRESS} mode: all addresses of the node`,
    { default: 'primary' },
  ),
  listFlag(
    'allowed-external-cidrs',
    'CIDR,...',
    'ignore externalIPs outside these ranges; unset: allow all except addresses of this node',
  ),
  listFlag(
    'allowed-load-balancer-cidrs',
    'CIDR,...',
    'ignore load-balancer IPs outside these ranges; unset: allow all',
  ),
  integerFlag(
    'connection-metrics-max',
    'COUNT',
    'count new connections per Service and endpoint while there are at most this many time series; 0 disables it',
    { default: '0' },
  ),
])

const PACE_FLAGS: readonly FlagSpec[] = grouped('Pace', [
  durationFlag('min-sync-period', '20ms', 'minimum time between two commits; 0 means the default'),
  durationFlag('sync-period', '10m', 'maximum interval between full resyncs; unset in IPVS mode: 30s'),
])

/** Heading of the flags that choose what `kprobe run` does. */
export const PROCESS_GROUP = 'What to do'

const PROCESS_FLAGS: readonly FlagSpec[] = grouped(PROCESS_GROUP, [
  textFlag('backend', 'BACKEND', 'netlink (write to the kernel) or dry-run (print the plan, write nothing)', {
    default: 'netlink',
  }),
  boolFlag('once', 'sync once, report, and exit 0 if the kernel holds the desired state'),
  boolFlag(
    'init-only',
    'do what needs full privileges, then exit; afterwards the daemon needs only CAP_NET_ADMIN',
  ),
  boolFlag('cleanup', "remove kprobe's objects from the kernel, then exit"),
  textFlag('write-config-to', 'FILE', 'write the effective KubeProxyConfiguration to this file, then exit'),
  boolFlag(
    'node-condition',
    'set the condition ServiceProxyReady of this Node once Services are verified in the kernel; --node-condition=TYPE sets that one. Needs the right to patch nodes/status',
  ),
  textFlag(
    'state-dir',
    'DIR',
    'folder for the last known Services, which are served after a reboot while the API server does not answer; empty: none are kept',
  ),
  boolFlag(
    'prove',
    'follow every packet through the rules in the kernel and report differences from what Kubernetes says: each change, and everything after the start, after repairs and every sync period (changes); --prove=full: everything after each sync; --prove=off: never; nftables, iptables and IPVS mode',
  ),
  boolFlag('version', 'print the version, then exit; --version=raw prints one field a line'),
  integerFlag('oom-score-adj', 'SCORE', 'oom_score_adj of this process, -1000 to 1000', { default: '-999' }),
])

const UI_ADDRESS_FLAG: FlagSpec = {
  name: 'ui-address',
  kind: 'text',
  placeholder: '[IP:]PORT',
  help: 'serve a web page for people at this address; a port alone is on loopback, any other address needs a token or client certificates; empty disables it',
}

/** Flags that mean something beside --ui-address alone. */
export const UI_FLAGS: readonly FlagSpec[] = [
  textFlag(
    'ui-token-file',
    'FILE',
    'file of the token that the web page demands, as a bearer token or as the password of any user',
  ),
  textFlag('ui-tls-cert', 'FILE', 'server certificate of the web page (PEM)'),
  textFlag('ui-tls-key', 'FILE', 'server key of the web page (PEM)'),
  textFlag(
    'ui-tls-client-ca',
    'FILE',
    'CA certificates that the certificates of its viewers must be signed by (PEM)',
  ),
]

/** The flag for the daemon's socket, also of commands that query the daemon. */
export const ADMIN_SOCKET_FLAG: FlagSpec = {
  name: 'admin-socket',
  kind: 'text',
  placeholder: 'PATH',
  help: 'unix socket that other kprobe commands query; empty disables it',
}

/** The flag for the daemon's socket, of commands that compute the daemon's state. */
export const MODEL_SOCKET_FLAG: FlagSpec = {
  ...ADMIN_SOCKET_FLAG,
  default: '/run/kprobe/admin.sock',
  help: 'unix socket of the daemon whose configuration and objects are used; it is an error when no daemon answers at a given socket; with --service-proxy-name=NAME the default is /run/kprobe/admin-NAME.sock',
}

const TELEMETRY_FLAGS: readonly FlagSpec[] = grouped('Health, metrics and logs', [
  textFlag(
    'healthz-bind-address',
    'IP[:PORT]',
    'address for /healthz and /livez; an address alone gets port 10256',
    {
      default: '0.0.0.0:10256',
    },
  ),
  integerFlag(
    'healthz-port',
    'PORT',
    '0: no health server; another port only goes to an address that has none (deprecated)',
    { default: '10256', hidden: true },
  ),
  textFlag(
    'metrics-bind-address',
    'IP[:PORT]',
    'address for /metrics, /configz, /flagz, /statusz, /proxyMode; an address alone gets port 10249',
    { default: '127.0.0.1:10249' },
  ),
  integerFlag(
    'metrics-port',
    'PORT',
    'a port other than 0 only goes to an address that has none (deprecated)',
    { default: '10249', hidden: true },
  ),
  boolFlag('bind-address-hard-fail', 'exit if the health or metrics address is in use, instead of retrying'),
  ADMIN_SOCKET_FLAG,
  textFlag('logging-format', 'FORMAT', 'text or json', { default: 'text' }),
  {
    name: 'v',
    short: 'v',
    kind: 'integer',
    placeholder: 'LEVEL',
    default: '0',
    help:
      'log level: 0 logs problems and state changes, 1 prints the table of Services and its changes without a terminal, too, ' +
      '2 adds commits, drift and API server lists, 4 adds the metrics at exit',
  },
])

const CONNTRACK_FLAGS: readonly FlagSpec[] = grouped('Connection tracking', [
  integerFlag(
    'conntrack-max-per-core',
    'COUNT',
    'conntrack entries per core; 0 keeps nf_conntrack_max and ignores --conntrack-min',
    { default: '32768' },
  ),
  integerFlag('conntrack-min', 'COUNT', 'minimum nf_conntrack_max', { default: '131072' }),
  durationFlag(
    'conntrack-tcp-timeout-established',
    '24h',
    "nf_conntrack_tcp_timeout_established; 0 keeps the kernel's value",
  ),
  durationFlag(
    'conntrack-tcp-timeout-close-wait',
    '1h',
    "nf_conntrack_tcp_timeout_close_wait; 0 keeps the kernel's value",
  ),
  durationFlag(
    'conntrack-tcp-timeout-fin-wait',
    '0s',
    "nf_conntrack_tcp_timeout_fin_wait; 0 keeps the kernel's value",
  ),
  durationFlag(
    'conntrack-tcp-timeout-time-wait',
    '0s',
    "nf_conntrack_tcp_timeout_time_wait; 0 keeps the kernel's value",
  ),
  boolFlag(
    'conntrack-tcp-be-liberal',
    'accept TCP segments outside the window (nf_conntrack_tcp_be_liberal)',
  ),
  durationFlag('conntrack-udp-timeout', '0s', "nf_conntrack_udp_timeout; 0 keeps the kernel's value"),
  durationFlag(
    'conntrack-udp-timeout-stream',
    '0s',
    "nf_conntrack_udp_timeout_stream; 0 keeps the kernel's value",
  ),
  boolFlag('conntrack-lower', 'also lower conntrack values that an operator has raised, as kube-proxy does'),
])

/** Flags that only the daemon uses. */
export const DAEMON_FLAGS: readonly FlagSpec[] = [
  ...PACE_FLAGS,
  ...PROCESS_FLAGS,
  ...TELEMETRY_FLAGS,
  ...grouped('Web page', [UI_ADDRESS_FLAG, ...UI_FLAGS]),
  ...CONNTRACK_FLAGS,
]
