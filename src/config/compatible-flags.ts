import { type ExplainFlag, type FlagSpec, grouped } from './flag.ts'

/** Flags that kprobe accepts for the sake of kube-proxy manifests; a warning names those that are set. */
export const UNUSED_FLAGS: readonly FlagSpec[] = grouped('Without effect here', [
  { name: 'boot-id-file', kind: 'text', placeholder: 'FILE', help: 'belongs to a library of kube-proxy' },
  { name: 'machine-id-file', kind: 'text', placeholder: 'FILE', help: 'belongs to a library of kube-proxy' },
  {
    name: 'config-sync-period',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '15m',
    help: 'kprobe watches and needs no informer resync',
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
  { name: 'log-json-split-stream', kind: 'bool', help: 'log lines go to standard error' },
  {
    name: 'log-text-info-buffer-size',
    kind: 'text',
    placeholder: 'SIZE',
    default: '0',
    help: 'log lines are written at once',
  },
  { name: 'log-text-split-stream', kind: 'bool', help: 'log lines go to standard error' },
  { name: 'profiling', kind: 'bool', help: 'no profiles are served' },
  {
    name: 'show-hidden-metrics-for-version',
    kind: 'text',
    placeholder: 'VERSION',
    help: 'no metric is hidden',
  },
  {
    name: 'vmodule',
    kind: 'list',
    placeholder: 'PATTERN=LEVEL,...',
    help: "log levels of kube-proxy's source files",
  },
])

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
