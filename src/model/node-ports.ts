import { anyContains } from '../base/cidr.ts'
import { compareIps, type Family, familyOf, type Ip, isLinkLocal, isLoopback } from '../base/ip.ts'
import type { NodePortAddresses } from './frontend.ts'
import type { NodeContext } from './node-context.ts'

/**
 * Addresses at which node ports answer (kube-proxy.md 1.4). A family for which nothing is selected, or everything, is
 * not restricted; loopback addresses are not among them but with loopbackNodePorts. With listNodePortAddresses that is a list, too.
 * With `primary` they answer nowhere while no address of the Node is known: kube-proxy then opens them on all addresses.
 */
export function nodePortAddresses(
  here: NodeContext,
  localIps: readonly Ip[],
): Readonly<Record<Family, NodePortAddresses>> {
  return { IPv4: addressesOf(here, localIps, 'IPv4'), IPv6: addressesOf(here, localIps, 'IPv6') }
}

const ALL: NodePortAddresses = { kind: 'all' }
const NONE: NodePortAddresses = { kind: 'only', ips: [] }

function addressesOf(here: NodeContext, localIps: readonly Ip[], family: Family): NodePortAddresses {
  const selection = here.options.nodePortSelection
  const cidrs = selection.cidrs.filter(cidr => familyOf(cidr.ip) === family)
  const primary = selection.primary ? usablePrimary(here, family) : undefined
  if (selection.primary && here.nodeIps.size === 0 && cidrs.length === 0) return NONE
  if ((primary === undefined && cidrs.length === 0) || cidrs.some(cidr => cidr.bits === 0)) {
    return here.options.listNodePortAddresses === true ? everyAddress(localIps, family) : ALL
  }
  const withLoopback = family === 'IPv4' && here.options.loopbackNodePorts === true
  const ips = localIps.filter(ip => (withLoopback || !isLoopback(ip)) && anyContains(cidrs, ip))
  if (primary !== undefined) ips.push(primary)
  return { kind: 'only', ips: [...new Set(ips)].sort(compareIps) }
}

function everyAddress(localIps: readonly Ip[], family: Family): NodePortAddresses {
  const ips = localIps.filter(ip => familyOf(ip) === family && !isLoopback(ip) && !isLinkLocal(ip))
  return { kind: 'only', ips: ips.sort(compareIps) }
}

function usablePrimary(here: NodeContext, family: Family): Ip | undefined {
  const ip = here.primaryIps[family]
  return ip === undefined || isLoopback(ip) ? undefined : ip
}
