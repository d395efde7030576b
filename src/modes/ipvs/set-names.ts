import { FAMILIES, type Family } from '../../base/ip.ts'

/** The ipsets of kube-proxy's IPVS mode (1.36), by name without the prefix. */
export const SET_STEMS = [
  'LOOP-BACK',
  'CLUSTER-IP',
  'EXTERNAL-IP',
  'EXTERNAL-IP-LOCAL',
  'LOAD-BALANCER',
  'LOAD-BALANCER-LOCAL',
  'LOAD-BALANCER-FW',
  'LOAD-BALANCER-SOURCE-IP',
  'LOAD-BALANCER-SOURCE-CIDR',
  'NODE-PORT-TCP',
  'NODE-PORT-LOCAL-TCP',
  'NODE-PORT-UDP',
  'NODE-PORT-LOCAL-UDP',
  'NODE-PORT-SCTP-HASH',
  'NODE-PORT-LOCAL-SCTP-HASH',
  'HEALTH-CHECK-NODE-PORT',
  'IPVS-IPS',
] as const
export type SetStem = (typeof SET_STEMS)[number]

const PREFIXES: Readonly<Record<Family, string>> = { IPv4: 'KUBE-', IPv6: 'KUBE-6-' }

/** IPSET_MAXNAMELEN without its NUL. kube-proxy also truncates longer names. */
const NAME_MAX = 31

/** `KUBE-CLUSTER-IP`, `KUBE-6-CLUSTER-IP`, `KUBE-6-LOAD-BALANCER-SOURCE-CID`. */
export function setName(stem: SetStem, family: Family): string {
  return (PREFIXES[family] + stem).slice(0, NAME_MAX)
}

/** Lists the set names of both families. Sets with these names are ours, even if another program made them. */
export function allSetNames(): readonly string[] {
  return FAMILIES.flatMap(family => SET_STEMS.map(stem => setName(stem, family)))
}

/** The comments of kube-proxy's rules about a set; by stem, the same for both families. */
export const SET_COMMENTS: Readonly<Record<SetStem, string>> = {
  'LOOP-BACK': 'Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose',
  'CLUSTER-IP': 'Kubernetes service cluster ip + port for masquerade purpose',
  'EXTERNAL-IP': 'Kubernetes service external ip + port for masquerade and filter purpose',
  'EXTERNAL-IP-LOCAL': 'Kubernetes service external ip + port with externalTrafficPolicy=local',
  'LOAD-BALANCER': 'Kubernetes service lb portal',
  'LOAD-BALANCER-LOCAL': 'Kubernetes service load balancer ip + port with externalTrafficPolicy=local',
  'LOAD-BALANCER-FW': 'Kubernetes service load balancer ip + port for load balancer with sourceRange',
  'LOAD-BALANCER-SOURCE-IP':
    'Kubernetes service load balancer ip + port + source IP for packet filter purpose',
  'LOAD-BALANCER-SOURCE-CIDR':
    'Kubernetes service load balancer ip + port + source cidr for packet filter purpose',
  'NODE-PORT-TCP': 'Kubernetes nodeport TCP port for masquerade purpose',
  'NODE-PORT-LOCAL-TCP': 'Kubernetes nodeport TCP port with externalTrafficPolicy=local',
  'NODE-PORT-UDP': 'Kubernetes nodeport UDP port for masquerade purpose',
  'NODE-PORT-LOCAL-UDP': 'Kubernetes nodeport UDP port with externalTrafficPolicy=local',
  'NODE-PORT-SCTP-HASH': "Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'",
  'NODE-PORT-LOCAL-SCTP-HASH':
    "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type 'hash ip:port'",
  'HEALTH-CHECK-NODE-PORT': 'Kubernetes health check node port',
  'IPVS-IPS': 'Addresses on the ipvs interface',
}
