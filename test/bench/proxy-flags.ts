export interface MeasuredProxy {
  readonly kubeconfig: string
  readonly nodeName?: string
  readonly mode?: 'nftables' | 'iptables'
}

/** Flags of a proxy that is measured, kprobe and kube-proxy alike; everything else is its default. */
export function proxyFlags({
  kubeconfig,
  nodeName = 'node-0',
  mode = 'nftables',
}: MeasuredProxy): readonly string[] {
  return [
    `--kubeconfig=${kubeconfig}`,
    `--hostname-override=${nodeName}`,
    `--proxy-mode=${mode}`,
    // Where the pods of cluster.ts live.
    '--cluster-cidr=10.128.0.0/9',
    // Settings of the whole machine stay as they are.
    '--conntrack-max-per-core=0',
    '--conntrack-min=0',
    '--conntrack-tcp-timeout-established=0',
    '--conntrack-tcp-timeout-close-wait=0',
  ]
}
