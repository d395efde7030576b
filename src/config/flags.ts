import { MODES } from '../modes/registry.ts'
import { API_BESIDE_FLAGS, API_FLAGS, API_TLS_FLAGS, RUN_API_FLAGS } from './api-flags.ts'
import { UNUSED_FLAGS } from './compatible-flags.ts'
import { DAEMON_FLAGS } from './daemon-flags.ts'
import type { FlagSpec } from './flag.ts'
import { SOURCE_FLAGS, TRAFFIC_FLAGS } from './model-flags.ts'

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
  ...MODES.flatMap(({ settings: { flags = [], ownFlags = [] } }) => [...flags, ...ownFlags]),
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

/** Flags of `kprobe run` that `kprobe api` uses besides its own and those of the source. */
const API_RUN_FLAGS: readonly string[] = [
  'allowed-external-cidrs',
  'allowed-load-balancer-cidrs',
  'logging-format',
  'v',
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
  ...MODES.flatMap(({ settings }) => settings.ownFlags ?? []).map(({ name }) => name),
  'masquerade-bit',
  'min-sync-period',
  'once',
  'service-proxy-name',
  'source',
  'sync-period',
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

export const HELP_FLAG: FlagSpec = { name: 'help', short: 'h', kind: 'bool', help: 'print this help' }

/** Makes the flag `-o` of a command that prints. */
export function outputFlag(formats: readonly string[]): FlagSpec {
  return {
    name: 'output',
    short: 'o',
    kind: 'text',
    placeholder: 'FORMAT',
    default: formats[0] ?? '',
    help: formats.join(', '),
    choices: formats,
  }
}
