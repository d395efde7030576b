/** Flags of every kind, none with its default: what --write-config-to makes of them is compared. */
export const WRITTEN_FLAGS: readonly string[] = [
  '--proxy-mode=nftables',
  '--bind-address=fd00::1',
  '--cluster-cidr=10.0.0.0/8,fd00:10::/64',
  '--detect-local-mode=NodeCIDR',
  '--hostname-override= Some-Node ',
  '--masquerade-all',
  '--iptables-sync-period=45s',
  '--iptables-min-sync-period=1500ms',
  '--conntrack-tcp-timeout-established=90m',
  '--nodeport-addresses=192.168.0.0/16,2001:db8::/32',
  '--oom-score-adj=-1',
  '--kube-api-qps=12.5',
  '--feature-gates=AllAlpha=false',
  '--vmodule=proxier=4',
  '--log-flush-frequency=7s',
  '-v=3',
]
