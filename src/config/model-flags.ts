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

/** Flags of the source and the node. */
export const SOURCE_FLAGS: readonly FlagSpec[] = grouped('Source and node', [
  {
    name: 'source',
    kind: 'text',
    placeholder: 'SOURCE',
    default: 'kube',
    help: 'where Services come from: kube (the API server) or file:PATH (a YAML or JSON file, or a folder of them)',
  },
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
    help: `CIDRs of the node addresses that accept NodePort traffic, or primary for the Node's first address of each family; unset in ${EVERY_ADDRESS} mode: all addresses of the node`,
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
