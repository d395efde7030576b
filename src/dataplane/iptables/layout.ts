import type { XtTableName } from '../../kernel/xt/scope.ts'
import type { Protocol } from '../../model/service.ts'
import { base32Hash } from './chain-hash.ts'
import { isDispatchChain } from './optimise/names.ts'

/* Chains of kube-proxy's iptables mode (1.36) by name: people and tools look for them, and either of us takes over from the other. */

export const KUBE_SERVICES = 'KUBE-SERVICES'
export const KUBE_EXTERNAL_SERVICES = 'KUBE-EXTERNAL-SERVICES'
export const KUBE_NODEPORTS = 'KUBE-NODEPORTS'
export const KUBE_FORWARD = 'KUBE-FORWARD'
export const KUBE_PROXY_FIREWALL = 'KUBE-PROXY-FIREWALL'
export const KUBE_POSTROUTING = 'KUBE-POSTROUTING'
export const KUBE_MARK_MASQ = 'KUBE-MARK-MASQ'
/** In every table: that it is gone tells kube-proxy that somebody flushed. */
export const KUBE_PROXY_CANARY = 'KUBE-PROXY-CANARY'
/** Kubelet's as much as ours. */
export const KUBE_FIREWALL = 'KUBE-FIREWALL'

const FIXED: Readonly<Record<XtTableName, readonly string[]>> = {
  filter: [
    KUBE_SERVICES,
    KUBE_EXTERNAL_SERVICES,
    KUBE_NODEPORTS,
    KUBE_FORWARD,
    KUBE_PROXY_FIREWALL,
    KUBE_PROXY_CANARY,
  ],
  nat: [KUBE_SERVICES, KUBE_NODEPORTS, KUBE_POSTROUTING, KUBE_MARK_MASQ, KUBE_PROXY_CANARY],
  mangle: [KUBE_PROXY_CANARY],
}

const OF_SERVICES = /^KUBE-(?:SVC|SVL|EXT|FW|SEP)-[A-Z2-7]{16}$/

/** Whether a chain is one that this mode writes, ours or kube-proxy's alike. */
export function isOurChain(table: XtTableName, name: string): boolean {
  return FIXED[table].includes(name) || isServiceChain(table, name) || isDispatchChain(table, name)
}

/** Whether single rules are never put into it or taken from it: it is written as a whole. */
export function isServiceChain(table: XtTableName, name: string): boolean {
  return table === 'nat' && OF_SERVICES.test(name)
}

/** Chains of one port of a Service. */
export interface PortChains {
  /** Endpoints anywhere, those on this node, what outside clients meet, and who may use load-balancer addresses. */
  readonly svc: string
  readonly svl: string
  readonly ext: string
  readonly fw: string
}

const PROTOCOLS: Readonly<Record<Protocol, string>> = { TCP: 'tcp', UDP: 'udp', SCTP: 'sctp' }

/** `displayName` as in PortFrontends. */
export function portChains(displayName: string, protocol: Protocol): PortChains {
  const hash = base32Hash(displayName + PROTOCOLS[protocol])
  return {
    svc: `KUBE-SVC-${hash}`,
    svl: `KUBE-SVL-${hash}`,
    ext: `KUBE-EXT-${hash}`,
    fw: `KUBE-FW-${hash}`,
  }
}

/** Of an endpoint; `ipPort` as `10.180.0.1:80`. */
export function endpointChain(displayName: string, protocol: Protocol, ipPort: string): string {
  return `KUBE-SEP-${base32Hash(displayName + PROTOCOLS[protocol] + ipPort)}`
}
