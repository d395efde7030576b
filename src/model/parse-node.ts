import { type Cidr, type Ip, isIpv4Mapped, parseIp } from '../base/ip.ts'
import {
  type Findings,
  isAbsent,
  isJson,
  isRefusal,
  type Json,
  labelsOf,
  listField,
  objectField,
  objectText,
  type Refusal,
  readIdentity,
  readPrefix,
  refusalsOf,
  refuse,
  type WatchedIdentity,
  wholeRefusal,
  whyNotAddress,
  whyNotPrefix,
} from './fields.ts'
import type { NodeInfo } from './snapshot.ts'

/** The cluster autoscaler sets this taint before it removes the node. */
export const REMOVAL_TAINT = 'ToBeDeletedByClusterAutoscaler'
export const ZONE_LABEL = 'topology.kubernetes.io/zone'

/** Reads an object of kind Node; a Refusal means that nothing of it can be used. */
export function parseNode(watched: WatchedIdentity): NodeInfo | Refusal {
  const identity = readIdentity(watched)
  if (isRefusal(identity)) return identity
  const findings: Findings = identity
  const { root, metadata } = identity
  const spec = objectField(findings, root.spec, 'spec')
  const zone = labelsOf(identity)[ZONE_LABEL]
  return {
    name: identity.key,
    uid: typeof metadata.uid === 'string' ? metadata.uid : '',
    ips: readIps(findings, objectField(findings, root.status, 'status')),
    zone: typeof zone === 'string' ? zone : '',
    podCidrs: readPodCidrs(findings, spec),
    eligible: isAbsent(metadata.deletionTimestamp) && !hasRemovalTaint(findings, spec),
    refusals: refusalsOf(findings),
  }
}

function hasRemovalTaint(findings: Findings, spec: Json): boolean {
  const taints = listField(findings, spec.taints, 'spec.taints')
  return taints.some(taint => isJson(taint) && taint.key === REMOVAL_TAINT)
}

/** Accepts unusual addresses (loopback, link-local): the node names them itself. Only ambiguous text is refused. */
function readIps(findings: Findings, status: Json): readonly Ip[] {
  const internal: Ip[] = []
  const external: Ip[] = []
  const list = listField(findings, status.addresses, 'status.addresses')
  for (const [index, entry] of list.entries()) {
    if (!isJson(entry) || (entry.type !== 'InternalIP' && entry.type !== 'ExternalIP')) continue
    const ip = typeof entry.address === 'string' ? parseIp(entry.address) : undefined
    if (ip === undefined || isIpv4Mapped(ip)) {
      refuse(findings, `status.addresses[${index}].address`, entry.address, whyNotAddress(entry.address))
    } else if (entry.type === 'InternalIP') internal.push(ip)
    else external.push(ip)
  }
  return [...new Set([...internal, ...external])]
}

function readPodCidrs(findings: Findings, spec: Json): readonly Cidr[] {
  const plural = listField(findings, spec.podCIDRs, 'spec.podCIDRs')
  const isPlural = plural.length > 0
  const list = isPlural ? plural : isAbsent(spec.podCIDR) ? [] : [spec.podCIDR]
  return list.flatMap((value, index) => {
    const cidr = readPrefix(value)
    if (cidr !== undefined) return [cidr]
    const field = isPlural ? `spec.podCIDRs[${index}]` : 'spec.podCIDR'
    refuse(findings, field, value, whyNotPrefix(value))
    return []
  })
}

/**
 * Reads an object of kind ServiceCIDR. One bad prefix refuses the whole object: its prefixes only decide which unused addresses
 * to drop, and fewer of them are always safe.
 */
export function parseServiceCidr(watched: WatchedIdentity): readonly Cidr[] | Refusal {
  const identity = readIdentity(watched)
  if (isRefusal(identity)) return identity
  const findings: Findings = identity
  const object = objectText(findings.kind, findings.key)
  const list = listField(findings, objectField(findings, identity.root.spec, 'spec').cidrs, 'spec.cidrs')
  const cidrs: Cidr[] = []
  for (const [index, value] of list.entries()) {
    const cidr = readPrefix(value)
    const field = `spec.cidrs[${index}]`
    if (cidr === undefined) return wholeRefusal(object, field, value, whyNotPrefix(value))
    if (cidr.bits === 0)
      return wholeRefusal(object, field, value, 'all addresses; every unused one would be dropped')
    cidrs.push(cidr)
  }
  return refusalsOf(findings)[0] ?? cidrs
}
