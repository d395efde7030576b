import { DEFAULT_ADMIN_SOCKET } from '../base/api-address.ts'
import { FIELD_PATHS, fieldAt } from './fields.ts'
import { type FlagSpec, flag, flagGroup, flags, grouped } from './flag.ts'
import { DEFAULT_MODE, MODE_ROWS } from './modes.ts'

function listOf(words: readonly string[], last: 'and' | 'or'): string {
  return words.join(', ').replace(/, (?!.*, )/, ` ${last} `)
}

const EVERY_ADDRESS = listOf(
  MODE_ROWS.filter(({ settings }) => settings.everyAddress).map(({ title }) => title),
  'and',
)

export const RELAY_CLIENT_FLAGS = flagGroup('Source and node', {
  '--relay-tls-ca FILE':
    'CA certificates that the certificates of relays must be signed by (PEM); needed at every address that is not loopback',
  '--relay-tls-server-name NAME':
    'DNS name in the certificates of relays; empty: the names of dns:///NAME:PORT, otherwise their IP addresses',
  '--relay-tls-cert FILE': 'certificate of this node for relays, of group system:nodes (PEM)',
  '--relay-tls-key FILE': 'key of that certificate (PEM)',
  '--relay-token-file FILE':
    'ServiceAccount token for relays, instead of a certificate; kprobe reads the file for each stream, so that it may rotate',
  '--relay-zone ZONE':
    'zone of this node; kprobe uses relays of this zone first (--source=relay:ADDRESS@ZONE)',
})

const SOURCE_FLAGS: readonly FlagSpec[] = grouped('Source and node', [
  ...flags({
    '--source SOURCE = kube':
      'where Services come from: kube (the API server), file:PATH (YAML or JSON, or a folder), relay:ADDRESS[@ZONE],...',
    '--relay-fallback SOURCE':
      'kube: read from the API server while no relay has answered for 30 to 60 s; empty: keep the last known state and wait for a relay',
  }),
  ...RELAY_CLIENT_FLAGS,
  ...flags({
    '--config FILE':
      'KubeProxyConfiguration file (kubeproxy.config.k8s.io/v1alpha1). With --config all other kube-proxy flags are ignored except logging, --hostname-override, --master and those that `kprobe run --help` lists under "What to do"',
    '--hostname-override NAME = the host name': 'name of the Node object of this machine',
    '--service-proxy-name NAME':
      'handle only Services with this value in the label service.kubernetes.io/service-proxy-name, including headless ones with externalIPs; empty: Services without the label. Proxies of several names run beside each other (not in IPVS mode)',
    '--bind-address IP = 0.0.0.0':
      "node IP to use instead of the Node object's; also sets the primary IP family. kprobe does not listen on it. An unspecified address has no effect",
    '--kubeconfig FILE': 'kubeconfig file; empty: the credentials of this pod',
    '--master URL': 'API server URL; overrides that of the kubeconfig',
    '--kube-api-content-type TYPE = application/vnd.kubernetes.protobuf':
      'content type to request from the API server',
    '--kube-api-qps RATE = 5': 'requests per second to the API server, on average; negative: no limit',
    '--kube-api-burst COUNT = 10': 'requests to the API server that may be sent in a burst',
    '--feature-gates NAME=BOOL,...':
      'Kubernetes feature gates; AllowServiceExternalIPs=false ignores externalIPs',
  }),
])

const TRAFFIC_FLAGS = flagGroup('Traffic', {
  [`--proxy-mode MODE = ${DEFAULT_MODE}`]: [
    listOf(
      MODE_ROWS.map(({ name, purpose }) => (purpose === undefined ? name : `${name} (${purpose})`)),
      'or',
    ),
    { choices: MODE_ROWS.map(({ name }) => name) },
  ],
  '--detect-local-mode MODE = ClusterCIDR': [
    'how traffic from pods of this node is recognized: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix',
    { choices: ['ClusterCIDR', 'NodeCIDR', 'BridgeInterface', 'InterfaceNamePrefix'] },
  ],
  '--cluster-cidr CIDR[,CIDR]': 'pod CIDR, at most one per IP family (for ClusterCIDR)',
  '--pod-bridge-interface NAME': 'bridge that pods are attached to (for BridgeInterface)',
  '--pod-interface-name-prefix PREFIX': 'name prefix of pod interfaces (for InterfaceNamePrefix)',
  '--masquerade-all': 'masquerade all traffic to cluster IPs',
  '--masquerade-bit BIT = 14': 'bit of the packet mark that requests masquerading, 0 to 31',
  '--nodeport-addresses CIDR,... = primary': `node addresses that accept NodePort traffic: CIDRs, primary (the Node's first of each family), localhost and all, in any mixture; unset in ${EVERY_ADDRESS} mode: all addresses of the node`,
  '--allowed-external-cidrs CIDR,...':
    'ignore externalIPs outside these ranges; unset: allow all except addresses of this node',
  '--allowed-load-balancer-cidrs CIDR,...': 'ignore load-balancer IPs outside these ranges; unset: allow all',
  '--connection-metrics-max COUNT = 0':
    'count new connections per Service and endpoint while there are at most this many time series; 0 disables it',
})

const PACE_FLAGS = flagGroup('Pace', {
  '--balance POLICY':
    'how Services without the annotation kprobe.io/balance divide connections among endpoints: random, maglev, maglev/5-tuple or local-first; nftables and IPVS mode; empty: random',
  '--min-sync-period DURATION = 20ms': 'minimum time between two commits; 0 means the default',
  '--sync-share PERCENT = 2.5':
    'share of one processor that reading and committing changes may take while changes keep coming: kprobe rests up to 250 ms between commits; 0 means the default',
  '--sync-period DURATION = 10m': 'maximum interval between full resyncs; unset in IPVS mode: 30s',
})

/** Heading of the flags that choose what `kprobe run` does. */
export const PROCESS_GROUP = 'What to do'

const PROCESS_FLAGS = flagGroup(PROCESS_GROUP, {
  '--backend BACKEND = netlink': 'netlink (write to the kernel) or dry-run (print the plan, write nothing)',
  '--once': 'sync once, report, and exit 0 if the kernel holds the desired state',
  '--init-only':
    'run the steps that need full privileges, then exit; afterwards the daemon needs only CAP_NET_ADMIN',
  '--cleanup': "remove kprobe's objects from the kernel, then exit",
  '--write-config-to FILE': 'write the effective KubeProxyConfiguration to this file, then exit',
  '--node-condition':
    'set the condition ServiceProxyReady of this Node once Services are verified in the kernel; --node-condition=TYPE sets that one. Needs the right to patch nodes/status',
  '--state-dir DIR':
    'folder for the last known Services, which are served after a reboot while the API server does not answer; empty: none are kept',
  '--prove':
    'follow every packet through the rules in the kernel and report differences from what Kubernetes specifies: after the start, after repairs and every sync period (full); --prove=off: never; nftables, iptables and IPVS mode',
  '--version': 'print the version, then exit; --version=raw prints one field a line',
  '--oom-score-adj SCORE = -999': 'oom_score_adj of this process, -1000 to 1000',
})

const UI_ADDRESS_FLAG = flag(
  '--ui-address [IP:]PORT',
  'serve a web page for people at this address; a port alone is on loopback, any other address needs a token or client certificates; empty disables it',
)

/** Flags that mean something beside --ui-address alone. */
export const UI_FLAGS: readonly FlagSpec[] = flags({
  '--ui-token-file FILE':
    'file of the token that the web page demands, as a bearer token or as the password of any user',
  '--ui-tls-cert FILE': 'server certificate of the web page (PEM)',
  '--ui-tls-key FILE': 'server key of the web page (PEM)',
  '--ui-tls-client-ca FILE': 'CA certificates that the certificates of its viewers must be signed by (PEM)',
})

/** The flag for the daemon's socket; each command has a help text of its own. */
export const ADMIN_SOCKET_FLAG = flag('--admin-socket PATH', 'unix socket of the daemon')

const NAMED_SOCKET = `with --service-proxy-name=NAME the default is ${DEFAULT_ADMIN_SOCKET.replace('.sock', '-NAME.sock')}`

/** The flag for the daemon's socket, of commands that compute the daemon's state. */
export const MODEL_SOCKET_FLAG: FlagSpec = {
  ...ADMIN_SOCKET_FLAG,
  default: DEFAULT_ADMIN_SOCKET,
  help: `unix socket of the daemon whose configuration and objects are used; it is an error when no daemon answers at a given socket; ${NAMED_SOCKET}`,
}

const RUN_SOCKET_FLAG: FlagSpec = {
  ...MODEL_SOCKET_FLAG,
  help: 'socket for commands; empty: none',
}

const TELEMETRY_FLAGS: readonly FlagSpec[] = grouped('Health, metrics and logs', [
  ...flags({
    '--healthz-bind-address IP[:PORT] = 0.0.0.0:10256':
      'address for /healthz and /livez; an address alone gets port 10256',
    '--healthz-port PORT = 10256': [
      '0: no health server; another port only goes to an address that has none (deprecated)',
      { hidden: true },
    ],
    '--metrics-bind-address IP[:PORT] = 127.0.0.1:10249':
      'address for /metrics, /configz, /flagz, /statusz, /proxyMode; an address alone gets port 10249',
    '--metrics-port PORT = 10249': [
      'a port other than 0 only goes to an address that has none (deprecated)',
      { hidden: true },
    ],
    '--bind-address-hard-fail': 'exit if the health or metrics address is in use, instead of retrying',
  }),
  RUN_SOCKET_FLAG,
  ...flags({
    '--logging-format FORMAT = text': ['text or json', { choices: ['text', 'json'] }],
    '-v, --v LEVEL = 0':
      'log level: 0 logs problems and state changes, 1 prints the table of Services and its changes without a terminal, too, ' +
      '2 adds commits, drift and API server lists, 4 adds the metrics at exit',
  }),
])

const CONNTRACK_FLAGS = flagGroup('Connection tracking', {
  '--conntrack-max-per-core COUNT = 32768':
    'conntrack entries per core, at most 1048576 in all; 0 keeps nf_conntrack_max and ignores --conntrack-min',
  '--conntrack-min COUNT = 131072':
    'minimum nf_conntrack_max; has no effect where all cores together get more than 1048576',
  '--conntrack-tcp-timeout-established DURATION = 24h':
    "nf_conntrack_tcp_timeout_established; 0 keeps the kernel's value",
  '--conntrack-tcp-timeout-close-wait DURATION = 1h':
    "nf_conntrack_tcp_timeout_close_wait; 0 keeps the kernel's value",
  '--conntrack-tcp-timeout-fin-wait DURATION = 0s':
    "nf_conntrack_tcp_timeout_fin_wait; 0 keeps the kernel's value",
  '--conntrack-tcp-timeout-time-wait DURATION = 0s':
    "nf_conntrack_tcp_timeout_time_wait; 0 keeps the kernel's value",
  '--conntrack-tcp-be-liberal': 'accept TCP segments outside the window (nf_conntrack_tcp_be_liberal)',
  '--conntrack-udp-timeout DURATION = 0s': "nf_conntrack_udp_timeout; 0 keeps the kernel's value",
  '--conntrack-udp-timeout-stream DURATION = 0s':
    "nf_conntrack_udp_timeout_stream; 0 keeps the kernel's value",
  '--conntrack-lower': 'also lower conntrack values that an operator has raised, as kube-proxy does',
})

const DAEMON_FLAGS: readonly FlagSpec[] = [
  ...PACE_FLAGS,
  ...PROCESS_FLAGS,
  ...TELEMETRY_FLAGS,
  ...grouped('Web page', [UI_ADDRESS_FLAG, ...UI_FLAGS]),
  ...CONNTRACK_FLAGS,
]

export const API_FLAGS = flagGroup('API', {
  '--listen ADDRESS = unix:///run/kprobe/api.sock':
    'gRPC address: unix:///PATH, or tcp://IP:PORT (without TLS on loopback only). With --print or --exec the server runs only if --listen is given. With --service-proxy-name=NAME the default is unix:///run/kprobe/api-NAME.sock',
  '--print': 'print the state as JSON lines, one Service with its endpoints a line, then exit',
  '--watch': 'with --print: print the whole state again after each change, followed by an empty line',
  '--diff': 'with --print: print only changes (Set, Delete), followed by a Sync; not with --watch',
  '--exec CMD':
    'run this for each state, with the output of --print on its standard input: a program (arguments follow --), or a line for /bin/sh -c if it has spaces and names no program. One run at a time, the newest state wins; a failed run is retried with backoff from 1 s to 1 min. The exit code of a pipe is that of its last command, unless the shell has pipefail (dash 0.5.12 has not). May be repeated',
  '--exec-timeout DURATION = 1m0s': 'kill a run and its children after this time; 0: no limit',
})

/** Flags for certificate, key and the clients' authority, in this order. */
export const API_TLS_FLAGS = flagGroup('API', {
  '--api-tls-cert FILE': 'server certificate (PEM)',
  '--api-tls-key FILE': 'server key (PEM)',
  '--api-tls-client-ca FILE': 'CA certificates that client certificates must be signed by (PEM)',
})

const RUN_API_FLAGS: readonly FlagSpec[] = grouped('API', [
  flag(
    '--api ADDRESS',
    'serve the back-end API at this address, unix:///PATH or tcp://IP:PORT; empty disables it; not with --once',
  ),
  ...API_TLS_FLAGS,
])

/** Flags of `kprobe run` with another meaning for `kprobe api`, for its help. */
const API_BESIDE_FLAGS = flagGroup('API', {
  '--metrics-bind-address IP:PORT': 'serve metrics at this address; empty disables it',
  '--once': 'with --exec: exit after the first run of each program, with 0 if all succeeded',
})

/** Flags that kprobe accepts for the sake of kube-proxy manifests; a warning names those that are set. */
const UNUSED_FLAGS = flagGroup('Without effect here', {
  '--boot-id-file FILE': 'belongs to a library of kube-proxy',
  '--machine-id-file FILE': 'belongs to a library of kube-proxy',
  '--config-sync-period DURATION = 15m': 'kprobe watches and needs no informer resync',
  '--log-flush-frequency DURATION = 5s': 'log lines are written at once',
  '--log-json-info-buffer-size SIZE = 0': 'log lines are written at once',
  '--log-json-split-stream': 'log lines go to standard error',
  '--log-text-info-buffer-size SIZE = 0': 'log lines are written at once',
  '--log-text-split-stream': 'log lines go to standard error',
  '--profiling': 'no profiles are served',
  '--show-hidden-metrics-for-version VERSION': 'no metric is hidden',
  '--vmodule PATTERN=LEVEL,...': "log levels of kube-proxy's source files",
})

/** Flags that --help prints; --help-all prints the others, too. */
const COMMON: ReadonlySet<string> = new Set([
  'admin-socket',
  'api',
  'backend',
  'cleanup',
  'cluster-cidr',
  'config',
  'detect-local-mode',
  'healthz-bind-address',
  'hostname-override',
  'init-only',
  'kubeconfig',
  'logging-format',
  'metrics-bind-address',
  'nodeport-addresses',
  'once',
  'proxy-mode',
  'source',
  'v',
  'version',
])

function ranked(flags: readonly FlagSpec[]): readonly FlagSpec[] {
  return flags.map(flag => (COMMON.has(flag.name) ? flag : { ...flag, rare: true }))
}

/** Flags that decide the wanted state: `run`, `plan` and `explain` accept the same ones. */
export const MODEL_FLAGS: readonly FlagSpec[] = ranked([
  ...SOURCE_FLAGS,
  ...TRAFFIC_FLAGS,
  ...new Set(MODE_ROWS.flatMap(({ settings: { flags = [], ownFlags = [] } }) => [...flags, ...ownFlags])),
])

/**
 * Help text of commands that accept all flags of `run`, so that its arguments can be pasted, but use only MODEL_FLAGS.
 */
export const WITHOUT_EFFECT = 'Other flags of `kprobe run` are accepted and have no effect.'

export const RUN_FLAGS: readonly FlagSpec[] = ranked([
  ...MODEL_FLAGS,
  ...MODE_ROWS.flatMap(({ settings }) => settings.paceFlags ?? []),
  ...DAEMON_FLAGS,
  ...RUN_API_FLAGS,
  ...UNUSED_FLAGS,
])

/** Flags of `kprobe run` that `kprobe api` and `kprobe relay` use besides their own and those of the source. */
const API_RUN_FLAGS: readonly string[] = [
  'allowed-external-cidrs',
  'allowed-load-balancer-cidrs',
  'logging-format',
  'v',
]

/** Flags of `kprobe relay` besides those of `run`. */
export const RELAY_FLAGS = flagGroup('Relay', {
  '--listen ADDRESS = unix:///run/kprobe/relay.sock':
    'gRPC address: unix:///PATH, or tcp://IP:PORT (without TLS on loopback only)',
  '--token-service-accounts NAMESPACE/NAME,...':
    'ServiceAccounts whose tokens nodes may present instead of a certificate; the API server reviews them (TokenReview)',
  '--token-audience NAME = kprobe-relay': 'audience that these tokens must be for',
  '--sets': 'also serve localv1.Sets of any node, as `kprobe api` on that node does',
  '--trusted-users NAME,...':
    'clients that may request Sets of any node, and report for any node, as relays behind this one do: the common name of a certificate, or system:serviceaccount:NAMESPACE:NAME',
})

/** Flags of `kprobe run` that do not concern `kprobe relay`, which has no node and no rules. */
const NO_RELAY_FLAGS: readonly string[] = ['bind-address', 'config']

export const RELAY_COMMAND_FLAGS: readonly FlagSpec[] = [
  ...RELAY_FLAGS,
  ...API_TLS_FLAGS,
  ...API_BESIDE_FLAGS.filter(({ name }) => name === 'metrics-bind-address'),
  ...ranked(SOURCE_FLAGS).filter(({ name }) => !NO_RELAY_FLAGS.includes(name)),
  ...RUN_FLAGS.filter(({ name }) => API_RUN_FLAGS.includes(name)),
]

export const API_COMMAND_FLAGS: readonly FlagSpec[] = [
  ...API_FLAGS,
  ...API_TLS_FLAGS,
  ...API_BESIDE_FLAGS,
  ...ranked(SOURCE_FLAGS),
  ...RUN_FLAGS.filter(({ name }) => API_RUN_FLAGS.includes(name)),
]

const OVER_FILE_FLAGS: readonly string[] = [
  ...new Set(FIELD_PATHS.flatMap(path => fieldAt(path).overFile ?? [])),
]
/** A flag of kube-proxy that overrides its file, too. */
const HOSTNAME_FLAG = 'hostname-override'

/** Flags of `run` that kube-proxy does not have; they have effect with --config, too. */
export const OWN_FLAGS: readonly string[] = [
  ...OVER_FILE_FLAGS.filter(name => name !== HOSTNAME_FLAG),
  'admin-socket',
  'allowed-external-cidrs',
  'allowed-load-balancer-cidrs',
  ...RUN_API_FLAGS.map(({ name }) => name),
  'backend',
  'connection-metrics-max',
  'conntrack-lower',
  ...new Set(MODE_ROWS.flatMap(({ settings }) => settings.ownFlags ?? []).map(({ name }) => name)),
  'once',
  'relay-fallback',
  ...RELAY_CLIENT_FLAGS.map(({ name }) => name),
  'service-proxy-name',
  'source',
  'ui-address',
  ...UI_FLAGS.map(({ name }) => name),
]

/** Flags that kube-proxy 1.36 lists in its help for Linux, except --help; `run` accepts all of them. */
export const KUBE_PROXY_FLAGS: readonly string[] = RUN_FLAGS.filter(
  ({ name, hidden }) => hidden !== true && !OWN_FLAGS.includes(name),
)
  .map(({ name }) => name)
  .sort()

/** Flags of kube-proxy that have effect with --config, too. */
export const BESIDE_FILE_FLAGS: readonly string[] = [
  'cleanup',
  'config',
  HOSTNAME_FLAG,
  'init-only',
  ...FIELD_PATHS.filter(path => path.startsWith('logging.')).flatMap(path => fieldAt(path).flag ?? []),
  'master',
  'version',
  'write-config-to',
]

export const HELP_FLAG = flag('-h, --help', 'print this help')
