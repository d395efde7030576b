import { type Family, familyOf } from '../../base/ip.ts'
import type { DetectLocal } from '../../config/config.ts'
import type { DetectorOption } from './detector.ts'

/** How planes tell pods of this node from other traffic; undefined where nothing does. */
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
