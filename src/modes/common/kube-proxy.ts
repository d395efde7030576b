import type { NftFamily, Table } from '../../kernel/nft/state.ts'
import type { Owner } from '../../kernel/nft/survey.ts'
import { CHAIN_SERVICES } from './rules.ts'

/** The tables of iptables-nft that kube-proxy writes into. */
export const IPTABLES_TABLES: readonly { readonly family: NftFamily; readonly name: string }[] = (
  ['ip', 'ip6'] as const
).flatMap(family => ['filter', 'nat', 'mangle'].map(name => ({ family, name })))

/** Chains of kube-proxy's nftables mode that distinguish its tables from ours, which have the same name. */
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

/** Chains of a Service, its endpoints, and (XLB, until 1.23) its local endpoints: with a hash in base32. */
const OF_A_SERVICE = /^KUBE-(?:SVC|SVL|EXT|FW|SEP|XLB)-[A-Z2-7]{16}$/

/**
 * The chains of kube-proxy in iptables. Other names that begin with KUBE- belong to other programs:
 * KUBE-FIREWALL and KUBE-KUBELET-CANARY to kubelet, KUBE-ROUTER-* and KUBE-NWPLCY-* to network policies.
 */
export const KUBE_PROXY: Owner = {
  ownsChain: name => ENTRANCES.has(name) || INNER.has(name) || OF_A_SERVICE.test(name),
  ownsJump: ({ targets, comments }) =>
    targets.some(target => ENTRANCES.has(target)) && comments.some(text => text.startsWith('kubernetes ')),
}

/** Tests whether only kube-proxy's nftables mode makes a chain of this name. */
export function isKubeProxyChain(name: string): boolean {
  return NFTABLES_CHAINS.has(name)
}

/** Names with a hash, which only kube-proxy's nftables mode gives to chains and sets of a Service or an endpoint. */
const NFTABLES_OBJECT = /\b(?:service|external|endpoint|firewall|affinity)-[A-Z2-7]{8}-/

/** Tests whether the description of a change names an object that only kube-proxy's nftables mode writes. */
export function isKubeProxyObject(text: string): boolean {
  return NFTABLES_OBJECT.test(text) || text.split(' ').some(isKubeProxyChain)
}

/** A chain with the sets that its rules read. */
export interface ChainOutline {
  readonly name: string
  readonly sets: readonly string[]
}

/**
 * Tests whether a table with the name `kube-proxy` belongs to kube-proxy. A table of ours into which kube-proxy
 * wrote has chains and sets of both programs and belongs to kube-proxy. It is ours as long as its rules look
 * up Services in our map.
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

/** Tests whether an ipset of kube-proxy's IPVS mode has this name. Those of IPv6 begin with KUBE-6-. */
export function isKubeProxyIpset(name: string): boolean {
  return /^KUBE-(?:6-)?(?:LOOP-BACK|CLUSTER-IP|EXTERNAL-IP|LOAD-BALANCER|NODE-PORT|HEALTH-CHECK|IPVS)/.test(
    name,
  )
}

/** The device that an IPVS mode, ours or kube-proxy's, binds the addresses of Services to: no addresses of this machine. */
export const DUMMY_DEVICE = 'kube-ipvs0'
