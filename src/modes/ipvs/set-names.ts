import { FAMILIES, type Family } from '../../base/ip.ts'
import type { IpsetType } from '../../kernel/ipset/state.ts'

/** The ipsets of kube-proxy's IPVS mode (1.36) by name without the prefix: the type, and the comment of rules. */
const SETS = {
  'LOOP-BACK': ['hash:ip,port,ip', 'Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose'],
  'CLUSTER-IP': ['hash:ip,port', 'Kubernetes service cluster ip + port for masquerade purpose'],
  'EXTERNAL-IP': ['hash:ip,port', 'Kubernetes service external ip + port for masquerade and filter purpose'],
  'EXTERNAL-IP-LOCAL': [
    'hash:ip,port',
    'Kubernetes service external ip + port with externalTrafficPolicy=local',
  ],
  'LOAD-BALANCER': ['hash:ip,port', 'Kubernetes service lb portal'],
  'LOAD-BALANCER-LOCAL': [
    'hash:ip,port',
    'Kubernetes service load balancer ip + port with externalTrafficPolicy=local',
  ],
  'LOAD-BALANCER-FW': [
    'hash:ip,port',
    'Kubernetes service load balancer ip + port for load balancer with sourceRange',
  ],
  'LOAD-BALANCER-SOURCE-IP': [
    'hash:ip,port,ip',
    'Kubernetes service load balancer ip + port + source IP for packet filter purpose',
  ],
  'LOAD-BALANCER-SOURCE-CIDR': [
    'hash:ip,port,net',
    'Kubernetes service load balancer ip + port + source cidr for packet filter purpose',
  ],
  'NODE-PORT-TCP': ['bitmap:port', 'Kubernetes nodeport TCP port for masquerade purpose'],
  'NODE-PORT-LOCAL-TCP': ['bitmap:port', 'Kubernetes nodeport TCP port with externalTrafficPolicy=local'],
  'NODE-PORT-UDP': ['bitmap:port', 'Kubernetes nodeport UDP port for masquerade purpose'],
  'NODE-PORT-LOCAL-UDP': ['bitmap:port', 'Kubernetes nodeport UDP port with externalTrafficPolicy=local'],
  'NODE-PORT-SCTP-HASH': [
    'hash:ip,port',
    "Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'",
  ],
  'NODE-PORT-LOCAL-SCTP-HASH': [
    'hash:ip,port',
    "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type 'hash ip:port'",
  ],
  'HEALTH-CHECK-NODE-PORT': ['bitmap:port', 'Kubernetes health check node port'],
  'IPVS-IPS': ['hash:ip', 'Addresses on the ipvs interface'],
} as const satisfies Readonly<Record<string, readonly [type: IpsetType, comment: string]>>

export type SetStem = keyof typeof SETS
export const SET_STEMS: readonly SetStem[] = Object.keys(SETS).filter(isStem)

function isStem(name: string): name is SetStem {
  return Object.hasOwn(SETS, name)
}

export function typeOfSet(stem: SetStem): IpsetType {
  return SETS[stem][0]
}

/** Gives the comment of kube-proxy's rules about a set. */
export function commentOfSet(stem: SetStem): string {
  return SETS[stem][1]
}

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
