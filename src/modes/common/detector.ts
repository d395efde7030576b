import type { Cidr } from '../../base/cidr.ts'
import { type Family, familyOf } from '../../base/ip.ts'
import type { DetectLocal } from '../../config/config.ts'
import type { FrontendTable } from '../../model/frontend.ts'

/** How rules distinguish pods of this node from other traffic. */
export type Detector =
  | { readonly kind: 'cidr'; readonly cidr: Cidr }
  | { readonly kind: 'interface'; readonly name: string }
  | { readonly kind: 'interface-prefix'; readonly prefix: string }

export type DetectorOption =
  | Detector
  /** The first podCIDR of the family in the Node object. */
  | { readonly kind: 'node-cidr' }

/** Gives the detector of one family; undefined when pods cannot be distinguished. */
export function detectorFor(
  family: Family,
  options: { readonly detector: Readonly<Record<Family, DetectorOption | undefined>> },
  node: FrontendTable['node'],
): Detector | undefined {
  const option = options.detector[family]
  if (option?.kind !== 'node-cidr') return option
  const cidr = node.podCidrs.find(({ ip }) => familyOf(ip) === family)
  return cidr === undefined ? undefined : { kind: 'cidr', cidr }
}

/** Gives how planes distinguish pods of this node from other traffic; undefined where they cannot. */
export function detectorOf(detect: DetectLocal, family: Family): DetectorOption | undefined {
  switch (detect.kind) {
    case 'NodeCIDR':
      return { kind: 'node-cidr' }
    case 'BridgeInterface':
      return { kind: 'interface', name: detect.name }
    case 'InterfaceNamePrefix':
      return { kind: 'interface-prefix', prefix: detect.prefix }
    case 'ClusterCIDR': {
      const cidr = detect.cidrs.find(({ ip }) => familyOf(ip) === family)
      return cidr === undefined ? undefined : { kind: 'cidr', cidr }
    }
  }
}
