/**
 * Prefixes of the chains that lists of entries are divided among. In nat they begin as chains of Services do: when
 * kube-proxy takes over, it removes what begins so and is not its own, in the same batch as the chains these lead to.
 */
export const NAT_ADDRESSES = 'KUBE-SVC-IP'
export const NAT_PORTS = { TCP: 'KUBE-SVC-TCP', UDP: 'KUBE-SVC-UDP' } as const
export const HEALTH_PORTS = 'KUBE-NODEPORTS'

const NAT = /^KUBE-SVC-(?:IP(?:-[0-9A-F]{1,2})?|(?:TCP|UDP)-\d{1,5}-\d{1,5})$/
const FILTER =
  /^KUBE-(?:(?:SERVICES|EXTERNAL-SERVICES|PROXY-FIREWALL)-IP(?:-[0-9A-F])?|NODEPORTS-\d{1,5}-\d{1,5})$/

/** Whether a chain is one of those that the optimiser adds to the ones that are always there. */
export function isDispatchChain(table: 'filter' | 'nat' | 'mangle', name: string): boolean {
  if (table === 'mangle') return false
  return (table === 'nat' ? NAT : FILTER).test(name)
}
