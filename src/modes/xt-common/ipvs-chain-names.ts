import type { XtTableName } from '../../kernel/xt/scope.ts'
import { KUBE_CHAINS } from './layout.ts'

/* The names of the chains of kube-proxy's IPVS mode. */

export const KUBE_NODE_PORT = 'KUBE-NODE-PORT'
export const KUBE_LOAD_BALANCER = 'KUBE-LOAD-BALANCER'
export const KUBE_SOURCE_RANGES_FIREWALL = 'KUBE-SOURCE-RANGES-FIREWALL'
export const KUBE_IPVS_FILTER = 'KUBE-IPVS-FILTER'
export const KUBE_IPVS_OUT_FILTER = 'KUBE-IPVS-OUT-FILTER'

const NAMES: Readonly<Record<XtTableName, ReadonlySet<string>>> = {
  nat: new Set([
    KUBE_CHAINS.services,
    KUBE_CHAINS.postrouting,
    KUBE_NODE_PORT,
    KUBE_LOAD_BALANCER,
    KUBE_CHAINS.markMasq,
  ]),
  filter: new Set([
    KUBE_CHAINS.forward,
    KUBE_NODE_PORT,
    KUBE_CHAINS.proxyFirewall,
    KUBE_SOURCE_RANGES_FIREWALL,
    KUBE_IPVS_FILTER,
    KUBE_IPVS_OUT_FILTER,
  ]),
  mangle: new Set(),
}

/** Returns whether kube-proxy's IPVS mode has a chain of this name. Its iptables mode may have it too. */
export function isIpvsChain(table: XtTableName, name: string): boolean {
  return NAMES[table].has(name)
}
