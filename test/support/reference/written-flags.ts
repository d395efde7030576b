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

/** The same for IPVS mode: what is of iptables there, and what of IPVS. */
export const WRITTEN_IPVS_FLAGS: readonly string[] = [
  '--proxy-mode=ipvs',
  '--masquerade-all',
  '--iptables-masquerade-bit=20',
  '--iptables-sync-period=45s',
  '--iptables-min-sync-period=1500ms',
  '--ipvs-sync-period=50s',
  '--ipvs-min-sync-period=700ms',
  '--ipvs-scheduler=wlc',
  '--ipvs-exclude-cidrs=10.1.0.0/16,fd00:1::/64',
  '--ipvs-strict-arp',
  '--ipvs-tcp-timeout=15m',
  '--ipvs-tcpfin-timeout=90s',
  '--ipvs-udp-timeout=1m30s',
  '--nodeport-addresses=192.168.0.0/16',
]
