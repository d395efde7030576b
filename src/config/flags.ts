import type { FlagSpec } from './flag.ts'

/** Flags that decide what the kernel should hold: `run`, `plan` and `explain` take them alike. */
export const MODEL_FLAGS: readonly FlagSpec[] = [
  {
    name: 'source',
    kind: 'text',
    placeholder: 'SOURCE',
    default: 'kube',
    help: 'where Services come from: file:PATH (a YAML or JSON file, or a folder of them), or kube (API server)',
  },
  {
    name: 'proxy-mode',
    kind: 'text',
    placeholder: 'MODE',
    default: 'nftables',
    help: 'how Services are put into the kernel: nftables',
  },
  {
    name: 'hostname-override',
    kind: 'text',
    placeholder: 'NAME',
    default: 'the host name',
    help: 'name of this Node',
  },
  {
    name: 'service-proxy-name',
    kind: 'text',
    placeholder: 'NAME',
    default: '',
    help: 'handle only Services with this value in the label service.kubernetes.io/service-proxy-name; unset: those without it',
  },
  {
    name: 'detect-local-mode',
    kind: 'text',
    placeholder: 'MODE',
    default: 'ClusterCIDR',
    help: 'how pods of this node are recognised: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix',
  },
  {
    name: 'cluster-cidr',
    kind: 'text',
    placeholder: 'CIDR[,CIDR]',
    default: '',
    help: 'range of pod addresses, one a family (ClusterCIDR)',
  },
  {
    name: 'pod-bridge-interface',
    kind: 'text',
    placeholder: 'NAME',
    default: '',
    help: 'bridge to which pods are attached (BridgeInterface)',
  },
  {
    name: 'pod-interface-name-prefix',
    kind: 'text',
    placeholder: 'PREFIX',
    default: '',
    help: 'what names of pod interfaces begin with (InterfaceNamePrefix)',
  },
  {
    name: 'masquerade-all',
    kind: 'bool',
    default: 'false',
    help: 'masquerade all traffic to cluster IPs',
  },
  {
    name: 'masquerade-bit',
    kind: 'integer',
    placeholder: 'BIT',
    default: '14',
    help: 'bit of the packet mark that asks for masquerading, 0 to 31',
  },
  {
    name: 'nodeport-addresses',
    kind: 'list',
    placeholder: 'CIDR,...',
    default: 'primary',
    help: 'ranges of addresses at which NodePorts answer, or the word primary for the Node address of each family',
  },
  {
    name: 'allowed-external-cidrs',
    kind: 'list',
    placeholder: 'CIDR,...',
    default: '',
    help: 'refuse externalIPs outside these ranges; unset: any but addresses of this node',
  },
  {
    name: 'allowed-load-balancer-cidrs',
    kind: 'list',
    placeholder: 'CIDR,...',
    default: '',
    help: 'refuse load-balancer addresses outside these ranges; unset: any',
  },
]

const LOG_FLAGS: readonly FlagSpec[] = [
  { name: 'logging-format', kind: 'text', placeholder: 'FORMAT', default: 'text', help: 'text or json' },
  {
    name: 'v',
    short: 'v',
    kind: 'integer',
    placeholder: 'LEVEL',
    default: '0',
    help: 'how much is logged, 0 to 9',
  },
]

export const HELP_FLAG: FlagSpec = {
  name: 'help',
  short: 'h',
  kind: 'bool',
  default: 'false',
  help: 'print this help',
}

/** What only the daemon needs. */
const DAEMON_FLAGS: readonly FlagSpec[] = [
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
    name: 'min-sync-period',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '20ms',
    help: 'least distance between two commits',
  },
  {
    name: 'sync-period',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '10m',
    help: 'longest time between two looks at the whole kernel state',
  },
  {
    name: 'iptables-min-sync-period',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '20ms',
    help: "kube-proxy's name for --min-sync-period",
  },
  {
    name: 'iptables-sync-period',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '10m',
    help: "kube-proxy's name for --sync-period",
  },
]

/** Said by commands that take all flags of `run`, so that its arguments can be pasted, and heed MODEL_FLAGS alone. */
export const WITHOUT_EFFECT = 'Other flags of `kprobe run` are taken as well and have no effect.'

export const RUN_FLAGS: readonly FlagSpec[] = [...MODEL_FLAGS, ...DAEMON_FLAGS, ...LOG_FLAGS]

/** `-o` of a command that prints. */
export function outputFlag(formats: readonly string[]): FlagSpec {
  const [first = ''] = formats
  return {
    name: 'output',
    short: 'o',
    kind: 'text',
    placeholder: 'FORMAT',
    default: first,
    help: formats.join(', '),
  }
}
