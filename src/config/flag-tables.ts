import { DEFAULT_MODE, MODES } from '../modes/registry.ts'
import { type FlagSpec, grouped } from './flag.ts'

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
  {
    name: 'relay-tls-ca',
    kind: 'text',
    placeholder: 'FILE',
    help: 'CA certificates that the certificates of relays must be signed by (PEM); needed at every address that is not loopback',
  },
  {
    name: 'relay-tls-server-name',
    kind: 'text',
    placeholder: 'NAME',
    help: 'DNS name in the certificates of relays; empty: the names of dns:///NAME:PORT, otherwise their IP addresses',
  },
  {
    name: 'relay-tls-cert',
    kind: 'text',
    placeholder: 'FILE',
    help: 'certificate of this node for relays, of group system:nodes (PEM)',
  },
  { name: 'relay-tls-key', kind: 'text', placeholder: 'FILE', help: 'key of that certificate (PEM)' },
  {
    name: 'relay-token-file',
    kind: 'text',
    placeholder: 'FILE',
    help: 'ServiceAccount token for relays, instead of a certificate; kprobe reads the file for each stream, so that it may rotate',
  },
  {
    name: 'relay-zone',
    kind: 'text',
    placeholder: 'ZONE',
    help: 'zone of this node: kprobe asks the relays of --source=relay:ADDRESS@ZONE of this zone first',
  },
])

/** Flags of the source and the node. */
export const SOURCE_FLAGS: readonly FlagSpec[] = grouped('Source and node', [
  {
    name: 'source',
    kind: 'text',
    placeholder: 'SOURCE',
    default: 'kube',
    help: 'where Services come from: kube (the API server), file:PATH (YAML or JSON, or a folder), relay:ADDRESS[@ZONE],...',
  },
  {
    name: 'relay-fallback',
    kind: 'text',
    placeholder: 'SOURCE',
    help: 'kube: read from the API server while no relay has answered for 30 to 60 s; empty: keep the last known state and wait for a relay',
  },
  ...RELAY_CLIENT_FLAGS,
  {
    name: 'config',
    kind: 'text',
    placeholder: 'FILE',
    help: 'KubeProxyConfiguration file (kubeproxy.config.k8s.io/v1alpha1). With --config all other kube-proxy flags are ignored except logging, --hostname-override, --master and those that `kprobe run --help` lists under "What to do"',
  },
  {
    name: 'hostname-override',
    kind: 'text',
    placeholder: 'NAME',
    default: 'the host name',
    help: 'name of the Node object of this machine',
  },
  {
    name: 'service-proxy-name',
    kind: 'text',
    placeholder: 'NAME',
    help: 'handle only Services with this value in the label service.kubernetes.io/service-proxy-name, including headless ones with externalIPs; empty: Services without the label. Proxies of several names run beside each other (not in IPVS mode)',
  },
  {
    name: 'bind-address',
    kind: 'text',
    placeholder: 'IP',
    default: '0.0.0.0',
    help: "node IP to use instead of the Node object's; also sets the primary IP family. kprobe does not listen on it. An unspecified address has no effect",
  },
  {
    name: 'kubeconfig',
    kind: 'text',
    placeholder: 'FILE',
    help: 'kubeconfig file; empty: the credentials of this pod',
  },
  {
    name: 'master',
    kind: 'text',
    placeholder: 'URL',
    help: 'API server URL; overrides that of the kubeconfig',
  },
  {
    name: 'kube-api-content-type',
    kind: 'text',
    placeholder: 'TYPE',
    default: 'application/vnd.kubernetes.protobuf',
    help: 'content type to request from the API server',
  },
  {
    name: 'kube-api-qps',
    kind: 'number',
    placeholder: 'RATE',
    default: '5',
    help: 'requests per second to the API server, on average; negative: no limit',
  },
  {
    name: 'kube-api-burst',
    kind: 'integer',
    placeholder: 'COUNT',
    default: '10',
    help: 'requests to the API server that may be sent in a burst',
  },
  {
    name: 'feature-gates',
    kind: 'list',
    placeholder: 'NAME=BOOL,...',
    help: 'Kubernetes feature gates; AllowServiceExternalIPs=false ignores externalIPs',
  },
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
  {
    name: 'detect-local-mode',
    kind: 'text',
    placeholder: 'MODE',
    default: 'ClusterCIDR',
    help: 'how traffic from pods of this node is recognized: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix',
  },
  {
    name: 'cluster-cidr',
    kind: 'text',
    placeholder: 'CIDR[,CIDR]',
    help: 'pod CIDR, at most one per IP family (for ClusterCIDR)',
  },
  {
    name: 'pod-bridge-interface',
    kind: 'text',
    placeholder: 'NAME',
    help: 'bridge that pods are attached to (for BridgeInterface)',
  },
  {
    name: 'pod-interface-name-prefix',
    kind: 'text',
    placeholder: 'PREFIX',
    help: 'name prefix of pod interfaces (for InterfaceNamePrefix)',
  },
  { name: 'masquerade-all', kind: 'bool', help: 'masquerade all traffic to cluster IPs' },
  {
    name: 'masquerade-bit',
    kind: 'integer',
    placeholder: 'BIT',
    default: '14',
    help: 'bit of the packet mark that requests masquerading, 0 to 31',
  },
  {
    name: 'nodeport-addresses',
    kind: 'list',
    placeholder: 'CIDR,...',
    default: 'primary',
    help: `node addresses that accept NodePort traffic: CIDRs, primary (the Node's first of each family), localhost and all, in any mixture; unset in ${EVERY_ADDRESS} mode: all addresses of the node`,
  },
  {
    name: 'allowed-external-cidrs',
    kind: 'list',
    placeholder: 'CIDR,...',
    help: 'ignore externalIPs outside these ranges; unset: allow all except addresses of this node',
  },
  {
    name: 'allowed-load-balancer-cidrs',
    kind: 'list',
    placeholder: 'CIDR,...',
    help: 'ignore load-balancer IPs outside these ranges; unset: allow all',
  },
  {
    name: 'connection-metrics-max',
    kind: 'integer',
    placeholder: 'COUNT',
    default: '0',
    help: 'count new connections per Service and endpoint while there are at most this many time series; 0 disables it',
  },
])

const PACE_FLAGS: readonly FlagSpec[] = grouped('Pace', [
  {
    name: 'min-sync-period',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '20ms',
    help: 'minimum time between two commits; 0 means the default',
  },
  {
    name: 'sync-period',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '10m',
    help: 'maximum interval between full resyncs; unset in IPVS mode: 30s',
  },
])

/** Heading of the flags that choose what `kprobe run` does. */
export const PROCESS_GROUP = 'What to do'

const PROCESS_FLAGS: readonly FlagSpec[] = grouped(PROCESS_GROUP, [
  {
    name: 'backend',
    kind: 'text',
    placeholder: 'BACKEND',
    default: 'netlink',
    help: 'netlink (write to the kernel) or dry-run (print the plan, write nothing)',
  },
  { name: 'once', kind: 'bool', help: 'sync once, report, and exit 0 if the kernel holds the desired state' },
  {
    name: 'init-only',
    kind: 'bool',
    help: 'do what needs full privileges, then exit; afterwards the daemon needs only CAP_NET_ADMIN',
  },
  { name: 'cleanup', kind: 'bool', help: "remove kprobe's objects from the kernel, then exit" },
  {
    name: 'write-config-to',
    kind: 'text',
    placeholder: 'FILE',
    help: 'write the effective KubeProxyConfiguration to this file, then exit',
  },
  {
    name: 'node-condition',
    kind: 'bool',
    help: 'set the condition ServiceProxyReady of this Node once Services are verified in the kernel; --node-condition=TYPE sets that one. Needs the right to patch nodes/status',
  },
  {
    name: 'state-dir',
    kind: 'text',
    placeholder: 'DIR',
    help: 'folder for the last known Services, which are served after a reboot while the API server does not answer; empty: none are kept',
  },
  {
    name: 'prove',
    kind: 'bool',
    help: 'follow every packet through the rules in the kernel and report differences from what Kubernetes says: each change, and everything after the start, after repairs and every sync period (changes); --prove=full: everything after each sync; --prove=off: never; nftables, iptables and IPVS mode',
  },
  {
    name: 'version',
    kind: 'bool',
    help: 'print the version, then exit; --version=raw prints one field a line',
  },
  {
    name: 'oom-score-adj',
    kind: 'integer',
    placeholder: 'SCORE',
    default: '-999',
    help: 'oom_score_adj of this process, -1000 to 1000',
  },
])

const UI_ADDRESS_FLAG: FlagSpec = {
  name: 'ui-address',
  kind: 'text',
  placeholder: '[IP:]PORT',
  help: 'serve a web page for people at this address; a port alone is on loopback, any other address needs a token or client certificates; empty disables it',
}

/** Flags that mean something beside --ui-address alone. */
export const UI_FLAGS: readonly FlagSpec[] = [
  {
    name: 'ui-token-file',
    kind: 'text',
    placeholder: 'FILE',
    help: 'file of the token that the web page demands, as a bearer token or as the password of any user',
  },
  {
    name: 'ui-tls-cert',
    kind: 'text',
    placeholder: 'FILE',
    help: 'server certificate of the web page (PEM)',
  },
  { name: 'ui-tls-key', kind: 'text', placeholder: 'FILE', help: 'server key of the web page (PEM)' },
  {
    name: 'ui-tls-client-ca',
    kind: 'text',
    placeholder: 'FILE',
    help: 'CA certificates that the certificates of its viewers must be signed by (PEM)',
  },
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
  {
    name: 'healthz-bind-address',
    kind: 'text',
    placeholder: 'IP[:PORT]',
    default: '0.0.0.0:10256',
    help: 'address for /healthz and /livez; an address alone gets port 10256',
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
    help: 'address for /metrics, /configz, /flagz, /statusz, /proxyMode; an address alone gets port 10249',
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
    help: 'exit if the health or metrics address is in use, instead of retrying',
  },
  ADMIN_SOCKET_FLAG,
  { name: 'logging-format', kind: 'text', placeholder: 'FORMAT', default: 'text', help: 'text or json' },
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
  {
    name: 'conntrack-max-per-core',
    kind: 'integer',
    placeholder: 'COUNT',
    default: '32768',
    help: 'conntrack entries per core; 0 keeps nf_conntrack_max and ignores --conntrack-min',
  },
  {
    name: 'conntrack-min',
    kind: 'integer',
    placeholder: 'COUNT',
    default: '131072',
    help: 'minimum nf_conntrack_max',
  },
  {
    name: 'conntrack-tcp-timeout-established',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '24h',
    help: "nf_conntrack_tcp_timeout_established; 0 keeps the kernel's value",
  },
  {
    name: 'conntrack-tcp-timeout-close-wait',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '1h',
    help: "nf_conntrack_tcp_timeout_close_wait; 0 keeps the kernel's value",
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
    help: 'accept TCP segments outside the window (nf_conntrack_tcp_be_liberal)',
  },
  {
    name: 'conntrack-udp-timeout',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '0s',
    help: "nf_conntrack_udp_timeout; 0 keeps the kernel's value",
  },
  {
    name: 'conntrack-udp-timeout-stream',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '0s',
    help: "nf_conntrack_udp_timeout_stream; 0 keeps the kernel's value",
  },
  {
    name: 'conntrack-lower',
    kind: 'bool',
    help: 'also lower conntrack values that an operator has raised, as kube-proxy does',
  },
])

/** Flags that only the daemon uses. */
export const DAEMON_FLAGS: readonly FlagSpec[] = [
  ...PACE_FLAGS,
  ...PROCESS_FLAGS,
  ...TELEMETRY_FLAGS,
  ...grouped('Web page', [UI_ADDRESS_FLAG, ...UI_FLAGS]),
  ...CONNTRACK_FLAGS,
]
