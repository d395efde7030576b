import type { Cidr } from '../../base/cidr.ts'
import { type Family, familyOf } from '../../base/ip.ts'
import type { FrontendTable } from '../../model/frontend.ts'

export interface NftablesOptions {
  /** Of both tables, `ip` and `ip6`. */
  readonly tableName: string
  /** Masquerade pods' connections to ClusterIPs too. */
  readonly masqueradeAll: boolean
  /** 0 to 31: the bit of the packet mark that says "masquerade" between our hooks. */
  readonly masqueradeBit: number
  readonly detector: Readonly<Record<Family, DetectorOption | undefined>>
  /** Name the Service beside each endpoint too: easier to read, 15 to 25 % more to send. */
  readonly endpointComments: boolean
  /** Count new connections at each endpoint; the table is made anew when this changes. */
  readonly connectionCounters: boolean
}

export const DEFAULT_NFTABLES_OPTIONS: NftablesOptions = {
  tableName: 'kube-proxy',
  masqueradeAll: false,
  masqueradeBit: 14,
  detector: { IPv4: { kind: 'node-cidr' }, IPv6: { kind: 'node-cidr' } },
  endpointComments: false,
  connectionCounters: false,
}

/** How pods of this node are told from other traffic. */
export type Detector =
  | { readonly kind: 'cidr'; readonly cidr: Cidr }
  | { readonly kind: 'interface'; readonly name: string }
  | { readonly kind: 'interface-prefix'; readonly prefix: string }

export type DetectorOption =
  | Detector
  /** The first podCIDR of the family in the Node object. */
  | { readonly kind: 'node-cidr' }

/** The detector of one family; undefined when nothing tells pods from others. */
export function detectorFor(
  family: Family,
  options: NftablesOptions,
  node: FrontendTable['node'],
): Detector | undefined {
  const option = options.detector[family]
  if (option?.kind !== 'node-cidr') return option
  const cidr = node.podCidrs.find(({ ip }) => familyOf(ip) === family)
  return cidr === undefined ? undefined : { kind: 'cidr', cidr }
}
