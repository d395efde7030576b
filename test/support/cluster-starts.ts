import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { parseRequest } from '../../src/config/load-config.ts'

/** How a distribution starts kube-proxy. Sources: the page of docs/clusters with the same name. */
export interface ClusterStart {
  /** The name of the page. */
  readonly page: string
  readonly variant?: string
  readonly argv: readonly string[]
  /** The text of the file that `--config` names. */
  readonly file?: string
  /** The mode in which kprobe then runs. */
  readonly mode: 'nftables' | 'iptables' | 'ipvs'
  /** It names the addresses of pods, by which kprobe distinguishes clients outside the cluster. */
  readonly knowsPods: boolean
}

export const KUBEADM = readFileSync(
  fileURLToPath(new URL('../unit/config/kubeadm-config.yaml', import.meta.url)),
  'utf8',
)

/** The ConfigMap that kubeadm writes where a distribution sets some fields: it fills the others. */
function kubeadmFile(fields: Readonly<Record<string, string>>): string {
  const sections: string[] = []
  const lines = KUBEADM.split('\n').map(line => {
    const [, indent = '', key = ''] = /^( *)(\w+):/.exec(line) ?? []
    sections.splice(indent.length / 2, Infinity, key)
    const value = fields[sections.join('.')]
    return value === undefined ? line : `${indent}${key}: ${value}`
  })
  return lines.join('\n')
}

/** The command of kubeadm's DaemonSet. */
export const BY_KUBEADM = ['--config=/var/lib/kube-proxy/config.conf', '--hostname-override=node-1']

const KIND = { mode: 'iptables', 'conntrack.maxPerCore': '0', 'iptables.minSyncPeriod': '1s' }
const NO_TIMEOUTS = { 'conntrack.tcpEstablishedTimeout': '0s', 'conntrack.tcpCloseWaitTimeout': '0s' }

const EKS = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 0.0.0.0
clientConnection:
  kubeconfig: /var/lib/kube-proxy/kubeconfig
  qps: 5
clusterCIDR: ""
conntrack:
  maxPerCore: 32768
  min: 131072
  tcpCloseWaitTimeout: 1h0m0s
  tcpEstablishedTimeout: 24h0m0s
iptables:
  masqueradeAll: false
  masqueradeBit: 14
  minSyncPeriod: 0s
  syncPeriod: 30s
mode: "iptables"
metricsBindAddress: 0.0.0.0:10249
`

/** Flags of k3s, which RKE2 has, too. */
function rancher(name: string): readonly string[] {
  return [
    '--cluster-cidr=10.42.0.0/16',
    '--conntrack-max-per-core=0',
    '--conntrack-tcp-timeout-close-wait=0s',
    '--conntrack-tcp-timeout-established=0s',
    '--healthz-bind-address=127.0.0.1',
    '--hostname-override=node-1',
    `--kubeconfig=/var/lib/rancher/${name}/agent/kubeproxy.kubeconfig`,
    '--proxy-mode=iptables',
  ]
}

export const CLUSTER_STARTS: readonly ClusterStart[] = [
  { page: 'kind', argv: BY_KUBEADM, file: kubeadmFile(KIND), mode: 'iptables', knowsPods: true },
  {
    page: 'kind',
    variant: 'rootless, kubeProxyMode nftables',
    argv: BY_KUBEADM,
    file: kubeadmFile({ ...KIND, ...NO_TIMEOUTS, mode: 'nftables' }),
    mode: 'nftables',
    knowsPods: true,
  },
  {
    page: 'minikube',
    argv: BY_KUBEADM,
    file: kubeadmFile({ 'conntrack.maxPerCore': '0', ...NO_TIMEOUTS, metricsBindAddress: '0.0.0.0:10249' }),
    mode: 'nftables',
    knowsPods: true,
  },
  {
    page: 'kubespray',
    argv: BY_KUBEADM,
    file: kubeadmFile({ mode: 'ipvs', 'ipvs.strictARP': 'true', 'ipvs.scheduler': 'rr' }),
    mode: 'ipvs',
    knowsPods: true,
  },
  {
    page: 'eks',
    argv: ['--v=2', '--config=/var/lib/kube-proxy-config/config', '--hostname-override=node-1'],
    file: EKS,
    mode: 'iptables',
    knowsPods: false,
  },
  { page: 'k3s', argv: rancher('k3s'), mode: 'iptables', knowsPods: true },
  { page: 'rke2', argv: rancher('rke2'), mode: 'iptables', knowsPods: true },
  {
    page: 'kops',
    argv: [
      '--cluster-cidr=100.96.0.0/11',
      '--conntrack-max-per-core=131072',
      '--kubeconfig=/var/lib/kube-proxy/kubeconfig',
      '--master=https://api.internal.minimal.example.com',
      '--oom-score-adj=-998',
      '--v=2',
    ],
    mode: 'nftables',
    knowsPods: true,
  },
  {
    page: 'talos',
    argv: [
      '--cluster-cidr=10.244.0.0/16',
      '--conntrack-max-per-core=0',
      '--hostname-override=node-1',
      '--kubeconfig=/etc/kubernetes/kubeconfig',
      '--proxy-mode=nftables',
    ],
    mode: 'nftables',
    knowsPods: true,
  },
  {
    page: 'microk8s',
    argv: [
      '--kubeconfig=/var/snap/microk8s/current/credentials/proxy.config',
      '--cluster-cidr=10.1.0.0/16',
      '--healthz-bind-address=127.0.0.1',
      '--profiling=false',
    ],
    mode: 'nftables',
    knowsPods: true,
  },
]

export function startTitle({ page, variant }: ClusterStart): string {
  return variant === undefined ? page : `${page} (${variant})`
}

/** What `kprobe run` makes of the command line, and of its file. Throws where it refuses them. */
export function requestOf({ argv, file }: Pick<ClusterStart, 'argv' | 'file'>) {
  const config = file === undefined ? undefined : { path: 'config.conf', text: file }
  const parsed = parseRequest(argv, { hostName: 'host' }, config)
  if (parsed.kind === 'errors') throw new Error(JSON.stringify(parsed.errors))
  return parsed.value
}
