import { type Cidr, type Family, familyOf } from '../../base/ip.ts'
import { hex } from '../../base/octets.ts'
import type { DetectLocal } from '../../config/config.ts'
import type { FrontendTable } from '../../model/frontend.ts'

/** Rules detect traffic from pods of this node in one of these ways. */
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
  options: { readonly detector: Detectors },
  node: FrontendTable['node'],
): Detector | undefined {
  const option = options.detector[family]
  if (option?.kind !== 'node-cidr') return option
  const cidr = node.podCidrs.find(({ ip }) => familyOf(ip) === family)
  return cidr === undefined ? undefined : { kind: 'cidr', cidr }
}

/** The detectors of traffic from pods of this node, by family; undefined where pods cannot be distinguished. */
export type Detectors = Readonly<Record<Family, DetectorOption | undefined>>

export function detectorsOf(detect: DetectLocal): Detectors {
  return { IPv4: detectorOf(detect, 'IPv4'), IPv6: detectorOf(detect, 'IPv6') }
}

function detectorOf(detect: DetectLocal, family: Family): DetectorOption | undefined {
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

/** Makes a text that is equal for equal values. Inputs of chains and sets are compared by these texts. */
export function cidrKey({ ip, bits }: Cidr): string {
  return `${hex(ip)}/${bits}`
}

export function detectorKey(detector: Detector | undefined): unknown {
  if (detector?.kind !== 'cidr') return detector
  return { kind: detector.kind, cidr: cidrKey(detector.cidr) }
}
