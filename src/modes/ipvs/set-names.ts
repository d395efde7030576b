import { FAMILIES, type Family } from '../../base/ip.ts'

/** The ipsets of kube-proxy's IPVS mode (1.36), without what their names begin with. */
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

/** IPSET_MAXNAMELEN without its NUL: kube-proxy, too, cuts off what is longer. */
const NAME_MAX = 31

/** `KUBE-CLUSTER-IP`, `KUBE-6-CLUSTER-IP`, `KUBE-6-LOAD-BALANCER-SOURCE-CID`. */
export function setName(stem: SetStem, family: Family): string {
  return (PREFIXES[family] + stem).slice(0, NAME_MAX)
}

/** Of both families: sets with these names are ours, whoever made them. */
export function allSetNames(): readonly string[] {
  return FAMILIES.flatMap(family => SET_STEMS.map(stem => setName(stem, family)))
}
