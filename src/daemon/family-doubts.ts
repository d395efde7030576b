import { type Cidr, type Family, familyOf, isUnspecified } from '../base/ip.ts'
import type { Config } from '../config/config.ts'
import type { NodeInfo } from '../model/snapshot.ts'

export type FamilyConfig = Pick<Config, 'nodePortAddresses' | 'detectLocal' | 'bindAddress'>

/** Names the ranges that leave out a family of the cluster, as kube-proxy's warnings at its start do. */
export function familyDoubts(
  { nodePortAddresses, detectLocal, bindAddress }: FamilyConfig,
  { ips, podCidrs }: Pick<NodeInfo, 'ips' | 'podCidrs'>,
): readonly string[] {
  const first = bindAddress === undefined || isUnspecified(bindAddress) ? ips[0] : bindAddress
  if (first === undefined) return []
  const primary = familyOf(first)
  const clusterCidrs = detectLocal.kind === 'ClusterCIDR' ? detectLocal.cidrs : []
  const nodePorts = nodePortAddresses.primary ? [] : nodePortAddresses.cidrs
  const used = [ips.map(familyOf), familiesOf(clusterCidrs), familiesOf(podCidrs)]
  const isDual = used.some(families => new Set(families).size > 1)
  const doubts: string[] = []
  const only = onlyFamilyOf(nodePorts)
  if (only !== undefined && (only !== primary || isDual))
    doubts.push(
      `nodePortAddresses has only ${only} ranges, and the cluster uses ${otherOf(only)} as well: node ports answer on all ${otherOf(only)} addresses of this node; add a range of ${otherOf(only)}`,
    )
  const other = otherOf(primary)
  if (onlyFamilyOf(clusterCidrs) === other)
    doubts.push(
      `clusterCIDR has only ${other} ranges, and the Node is ${primary}-primary: no ${primary} client counts as a pod of the cluster; add a range of ${primary}`,
    )
  if (detectLocal.kind === 'NodeCIDR' && onlyFamilyOf(podCidrs) === other)
    doubts.push(
      `spec.podCIDRs of the Node has only ${other} ranges, and the Node is ${primary}-primary: no ${primary} client counts as a pod of this node`,
    )
  return doubts
}

const familiesOf = (cidrs: readonly Cidr[]): readonly Family[] => cidrs.map(({ ip }) => familyOf(ip))
const otherOf = (family: Family): Family => (family === 'IPv4' ? 'IPv6' : 'IPv4')

/** The family of all ranges; undefined where there are none, or both. */
function onlyFamilyOf(cidrs: readonly Cidr[]): Family | undefined {
  const [family, ...more] = new Set(familiesOf(cidrs))
  return more.length === 0 ? family : undefined
}
