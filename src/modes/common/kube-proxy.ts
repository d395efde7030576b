import type { Owner } from '../../kernel/nft/leftover-plan.ts'
import type { NftFamily, Table } from '../../kernel/nft/state.ts'
import { CHAIN_SERVICES } from './chain-names.ts'

/** Tables of the nf_tables flavour of iptables that kube-proxy writes into. */
export const IPTABLES_TABLES: readonly { readonly family: NftFamily; readonly name: string }[] = (
  ['ip', 'ip6'] as const
).flatMap(family => ['filter', 'nat', 'mangle'].map(name => ({ family, name })))

/** Chains of kube-proxy's nftables mode that tell its tables from ours, which have the same name. */
const NFTABLES_CHAINS: ReadonlySet<string> = new Set([
  'service-endpoints-check',
  'cluster-ips-check',
  'nodeport-endpoints-check',
])

/** Chains of its iptables and IPVS modes that base chains lead to. */
const ENTRANCES: ReadonlySet<string> = new Set([
  'KUBE-SERVICES',
  'KUBE-EXTERNAL-SERVICES',
  'KUBE-NODEPORTS',
  'KUBE-POSTROUTING',
  'KUBE-FORWARD',
  'KUBE-PROXY-FIREWALL',
  'KUBE-NODE-PORT',
  'KUBE-IPVS-FILTER',
  'KUBE-IPVS-OUT-FILTER',
])

const INNER: ReadonlySet<string> = new Set([
  'KUBE-MARK-MASQ',
  'KUBE-PROXY-CANARY',
  'KUBE-LOAD-BALANCER',
  'KUBE-SOURCE-RANGES-FIREWALL',
])

/** Of a Service, its endpoints, and (XLB, until 1.23) its local ones: with a hash in base32. */
const OF_A_SERVICE = /^KUBE-(?:SVC|SVL|EXT|FW|SEP|XLB)-[A-Z2-7]{16}$/

/**
 * kube-proxy in the words of iptables. What else begins with KUBE- is not its: KUBE-FIREWALL and KUBE-KUBELET-CANARY
 * are kubelet's, KUBE-ROUTER-* and KUBE-NWPLCY-* those of network policies.
 */
export const KUBE_PROXY: Owner = {
  ownsChain: name => ENTRANCES.has(name) || INNER.has(name) || OF_A_SERVICE.test(name),
  ownsJump: ({ targets, comments }) =>
    targets.some(target => ENTRANCES.has(target)) && comments.some(text => text.startsWith('kubernetes ')),
}

/** Whether a chain is one that only kube-proxy's nftables mode makes. */
export function isKubeProxyChain(name: string): boolean {
  return NFTABLES_CHAINS.has(name)
}

/** A chain with the sets that its rules look into. */
export interface ChainOutline {
  readonly name: string
  readonly sets: readonly string[]
}

/**
 * Whether a table with the name `kube-proxy` is kube-proxy's. One that kube-proxy has written over ours has chains and
 * sets of both, and is its own from then on; but while Services are looked up in our map, it is ours.
 */
export function isKubeProxyTable(chains: readonly ChainOutline[]): boolean {
  return chains.some(({ name }) => isKubeProxyChain(name)) && !chains.some(looksIntoOurs)
}

function looksIntoOurs({ name, sets }: ChainOutline): boolean {
  return name === CHAIN_SERVICES && sets.includes(OUR_MAP)
}

/** The map of frontends that nftables mode writes. */
const OUR_MAP = 'frontends'

export function outlinesOf({ chains }: Table): readonly ChainOutline[] {
  return [...chains.values()].map(({ name, rules }) => {
    const expressions = rules.flatMap(rule => rule.expressions)
    return { name, sets: expressions.flatMap(each => (each.kind === 'lookup' ? [each.set] : [])) }
  })
}

/** Ipsets of its IPVS mode; those of IPv6 begin with KUBE-6-. */
export function isKubeProxyIpset(name: string): boolean {
  return /^KUBE-(?:6-)?(?:LOOP-BACK|CLUSTER-IP|EXTERNAL-IP|LOAD-BALANCER|NODE-PORT|HEALTH-CHECK|IPVS)/.test(
    name,
  )
}

/** The device that its IPVS mode binds every Service's address to. */
export const DUMMY_DEVICE = 'kube-ipvs0'
