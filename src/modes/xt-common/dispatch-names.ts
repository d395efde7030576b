/** Prefixes of the chains that lists of entries are divided among. */
interface DispatchNames {
  readonly natAddresses: string
  readonly natPorts: { readonly TCP: string; readonly UDP: string }
  /** Of the table filter. */
  readonly services: string
  readonly externalServices: string
  readonly proxyFirewall: string
  readonly healthPorts: string
}

/** What kube-proxy's chains begin with, without the hyphen. */
export const KUBE = 'KUBE'

/**
 * In nat they begin as chains of Services do: when kube-proxy takes over, it removes what begins so and is not its own, in the
 * same batch as the chains these lead to. A longer prefix than KUBE leaves less room: names have 28 characters.
 */
export function dispatchNames(prefix: string): DispatchNames {
  const isKube = prefix === KUBE
  return {
    natAddresses: `${prefix}-SVC-IP`,
    natPorts: { TCP: `${prefix}-SVC-TCP`, UDP: `${prefix}-SVC-UDP` },
    services: `${prefix}-SERVICES-IP`,
    externalServices: isKube ? `${prefix}-EXTERNAL-SERVICES-IP` : `${prefix}-EXTERNAL-IP`,
    proxyFirewall: `${prefix}-PROXY-FIREWALL-IP`,
    healthPorts: isKube ? `${prefix}-NODEPORTS` : `${prefix}-HEALTH`,
  }
}

/* What follows the prefix. */
const NAT = /^-SVC-(?:IP(?:-[0-9A-F]{1,2})?|(?:TCP|UDP)-\d{1,5}-\d{1,5})$/
const FILTER_OF_KUBE =
  /^-(?:(?:SERVICES|EXTERNAL-SERVICES|PROXY-FIREWALL)-IP(?:-[0-9A-F])?|NODEPORTS-\d{1,5}-\d{1,5})$/
const FILTER_OF_A_NAME = /^-(?:(?:SERVICES|EXTERNAL|PROXY-FIREWALL)-IP(?:-[0-9A-F])?|HEALTH-\d{1,5}-\d{1,5})$/

/** Whether a chain is one of those that the optimizer adds to the ones that are always there. */
export function isDispatchChain(prefix: string, table: 'filter' | 'nat' | 'mangle', name: string): boolean {
  if (table === 'mangle' || !name.startsWith(prefix)) return false
  const filter = prefix === KUBE ? FILTER_OF_KUBE : FILTER_OF_A_NAME
  return (table === 'nat' ? NAT : filter).test(name.slice(prefix.length))
}
