import { MODES } from '../modes/registry.ts'
import { type ExplainFlag, type FlagSpec, flag, flagGroup, grouped } from './flag.ts'
import { DAEMON_FLAGS, RELAY_CLIENT_FLAGS, SOURCE_FLAGS, TRAFFIC_FLAGS, UI_FLAGS } from './flag-tables.ts'

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

/** Flags of `kprobe run`. */
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

/** Flags that only kube-proxy's builds for Windows have. */
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
  ...new Set(MODES.flatMap(({ settings: { flags = [], ownFlags = [] } }) => [...flags, ...ownFlags])),
])

/**
 * Help text of commands that accept all flags of `run`, so that its arguments can be pasted, but use only MODEL_FLAGS.
 */
export const WITHOUT_EFFECT = 'Other flags of `kprobe run` are accepted and have no effect.'

export const RUN_FLAGS: readonly FlagSpec[] = ranked([
  ...MODEL_FLAGS,
  ...MODES.flatMap(({ settings }) => settings.paceFlags ?? []),
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
    'ServiceAccounts whose tokens nodes may show instead of a certificate; the relay asks the API server (TokenReview)',
  '--token-audience NAME = kprobe-relay': 'audience that these tokens must be for',
  '--sets':
    'also serve what `kprobe api` of each node would (localv1.Sets); computed for the nodes that are asked for',
  '--trusted-users NAME,...':
    'clients that may ask for Sets of any node, and report for any node as relays behind this one do: the common name of a certificate, or system:serviceaccount:NAMESPACE:NAME',
})

/** Flags of `kprobe run` that do not concern `kprobe relay`, which has no node and no rules. */
const NO_RELAY_FLAGS: readonly string[] = ['bind-address', 'config']

/** All flags that have an effect on `kprobe relay`. */
export const RELAY_COMMAND_FLAGS: readonly FlagSpec[] = [
  ...RELAY_FLAGS,
  ...API_TLS_FLAGS,
  ...API_BESIDE_FLAGS.filter(({ name }) => name === 'metrics-bind-address'),
  ...ranked(SOURCE_FLAGS).filter(({ name }) => !NO_RELAY_FLAGS.includes(name)),
  ...RUN_FLAGS.filter(({ name }) => API_RUN_FLAGS.includes(name)),
]

/** All flags that have an effect on `kprobe api`. */
export const API_COMMAND_FLAGS: readonly FlagSpec[] = [
  ...API_FLAGS,
  ...API_TLS_FLAGS,
  ...API_BESIDE_FLAGS,
  ...ranked(SOURCE_FLAGS),
  ...RUN_FLAGS.filter(({ name }) => API_RUN_FLAGS.includes(name)),
]

/** Flags of `run` that kube-proxy does not have; they have effect with --config, too. */
export const OWN_FLAGS: readonly string[] = [
  'admin-socket',
  'allowed-external-cidrs',
  'allowed-load-balancer-cidrs',
  ...RUN_API_FLAGS.map(({ name }) => name),
  'backend',
  'connection-metrics-max',
  'conntrack-lower',
  'conntrack-tcp-timeout-fin-wait',
  'conntrack-tcp-timeout-time-wait',
  ...new Set(MODES.flatMap(({ settings }) => settings.ownFlags ?? []).map(({ name }) => name)),
  'masquerade-bit',
  'min-sync-period',
  'node-condition',
  'once',
  'prove',
  'relay-fallback',
  ...RELAY_CLIENT_FLAGS.map(({ name }) => name),
  'service-proxy-name',
  'source',
  'state-dir',
  'sync-period',
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
  'hostname-override',
  'init-only',
  'log-flush-frequency',
  'log-json-info-buffer-size',
  'log-json-split-stream',
  'log-text-info-buffer-size',
  'log-text-split-stream',
  'logging-format',
  'master',
  'v',
  'version',
  'vmodule',
  'write-config-to',
]

export const HELP_FLAG = flag('-h, --help', 'print this help')
