import { FAMILIES, type Family, familyOf, isLoopback } from '../base/ip.ts'
import type { View } from './ports.ts'
import type { NodeAddresses } from './stale.ts'

/** The addresses at which NodePorts answer, as far as they are known. */
export function nodeAddresses(view: View): Readonly<Record<Family, NodeAddresses>> {
  const [IPv4, IPv6] = FAMILIES.map(family => addressesOf(view, family))
  return { IPv4: IPv4 ?? NONE, IPv6: IPv6 ?? NONE }
}

const NONE: NodeAddresses = { ips: new Set(), isOpen: false }

function addressesOf({ snapshot, table }: View, family: Family): NodeAddresses {
  const selected = table.nodePorts[family]
  if (selected.kind === 'only') return { ips: new Set(selected.ips), isOpen: false }
  const known = [...snapshot.localIps, ...table.node.ips]
  const ips = known.filter(ip => familyOf(ip) === family && !isLoopback(ip))
  return { ips: new Set(ips), isOpen: true }
}
