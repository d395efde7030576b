import type { Cidr } from '../../base/cidr.ts'
import { familyOf } from '../../base/ip.ts'
import { hex, type Octets, u32host } from '../../base/octets.ts'
import {
  IPS_DST_NAT,
  NF_INET_LOCAL_OUT,
  NF_INET_POST_ROUTING,
  NF_INET_PRE_ROUTING,
  NF_IP_PRI_NAT_DST,
  NF_IP_PRI_NAT_SRC,
  NF_NAT_RANGE_PROTO_RANDOM_FULLY,
  NFT_CT_STATUS,
  NFT_JUMP,
  NFT_RETURN,
  NFTA_FIB_F_DADDR,
  RTN_LOCAL,
} from '../../kernel/nft/constants.ts'
import type { Rule } from '../../kernel/nft/expression.ts'
import type { Chain } from '../../kernel/nft/state.ts'
import type { FrontendTable, NodePortAddresses } from '../../model/frontend.ts'
import {
  CHAIN_FIREWALL,
  CHAIN_OUTPUT,
  CHAIN_POSTROUTING,
  CHAIN_PREROUTING,
  CHAIN_REJECT,
  CHAIN_SERVICES,
  type FamilyLayout,
  prefixMask,
} from './layout.ts'
import { detectorFor, type NftablesOptions } from './options.ts'
import {
  askMasquerade,
  compare,
  destinationAddress,
  dispatch,
  dropCounted,
  type Expressions,
  fromPod,
  goTo,
  maskBytes,
  maskNumber,
  matches,
  type RuleContext,
  readMark,
  rule,
  serviceWith,
  sourceAddress,
  WORK,
  writeMark,
} from './rules.ts'

/** What the fixed chains of one table follow from. */
export interface Skeleton extends RuleContext {
  readonly masqueradeAll: boolean
  readonly nodePorts: NodePortAddresses
  readonly serviceCidrs: readonly Cidr[]
  /** Lengths of the source ranges in use, longest first. */
  readonly prefixLengths: readonly number[]
}

export function skeletonOf(
  layout: FamilyLayout,
  options: NftablesOptions,
  inputs: { frontends: FrontendTable; prefixLengths: readonly number[] },
): Skeleton {
  const { frontends, prefixLengths } = inputs
  return {
    layout,
    masqueradeMark: (1 << options.masqueradeBit) >>> 0,
    masqueradeAll: options.masqueradeAll,
    detector: detectorFor(layout.model, options, frontends.node),
    nodePorts: frontends.nodePorts[layout.model],
    serviceCidrs: frontends.serviceCidrs.filter(({ ip }) => familyOf(ip) === layout.model),
    prefixLengths,
  }
}

/** Equal for skeletons that give equal chains and sets, on-demand chains included. */
export function skeletonKey(skeleton: Skeleton): string {
  const { detector, nodePorts, serviceCidrs, prefixLengths } = skeleton
  const detects =
    detector === undefined || detector.kind !== 'cidr'
      ? detector
      : { kind: detector.kind, cidr: cidrText(detector.cidr) }
  const answers = nodePorts.kind === 'all' ? 'all' : nodePorts.ips.map(hex)
  return JSON.stringify([detects, answers, serviceCidrs.map(cidrText), prefixLengths])
}

function cidrText({ ip, bits }: Cidr): string {
  return `${hex(ip)}/${bits}`
}

export function fixedChains(skeleton: Skeleton): readonly Chain[] {
  const { layout } = skeleton
  const toServices = rule([{ kind: 'verdict', verdict: { code: NFT_JUMP, chain: CHAIN_SERVICES } }])
  return [
    base(CHAIN_PREROUTING, NF_INET_PRE_ROUTING, [toServices]),
    base(CHAIN_OUTPUT, NF_INET_LOCAL_OUT, [toServices]),
    base(CHAIN_POSTROUTING, NF_INET_POST_ROUTING, postroutingRules(skeleton)),
    { name: CHAIN_SERVICES, hook: undefined, rules: servicesRules(skeleton) },
    {
      name: CHAIN_REJECT,
      hook: undefined,
      rules: [rule([{ kind: 'counter' }, { kind: 'reject', code: layout.rejectCode }])],
    },
    { name: CHAIN_FIREWALL, hook: undefined, rules: firewallRules(skeleton) },
  ]
}

function base(name: string, hooknum: number, rules: readonly Rule[]): Chain {
  const priority = hooknum === NF_INET_POST_ROUTING ? NF_IP_PRI_NAT_SRC : NF_IP_PRI_NAT_DST
  return { name, hook: { type: 'nat', hooknum, priority }, rules }
}

function servicesRules(skeleton: Skeleton): readonly Rule[] {
  const { layout, detector } = skeleton
  const toClusterIp: Expressions = [destinationAddress(layout, WORK), matches('cluster-ips')]
  const rules: Rule[] = []
  if (skeleton.masqueradeAll) rules.push(rule([...toClusterIp, ...askMasquerade(skeleton)]))
  else if (detector !== undefined)
    rules.push(rule([...fromPod(skeleton, detector, true), ...toClusterIp, ...askMasquerade(skeleton)]))
  rules.push(rule(dispatch(layout, 'frontends')))
  rules.push(rule([...toNodePortAddress(skeleton), ...dispatch(layout, 'nodeports')]))
  rules.push(rule([...toClusterIp, goTo(CHAIN_REJECT)], 'no such port'))
  for (const cidr of skeleton.serviceCidrs) {
    const match: Expressions = [
      destinationAddress(layout, WORK),
      maskBytes(WORK, prefixMask(cidr.bits, layout.addressLength)),
      compare('eq', WORK, cidr.ip),
    ]
    rules.push(rule([...match, ...dropCounted], 'no such ClusterIP'))
  }
  return rules
}

/** NodePorts are never served on loopback addresses: the answer could not leave the node. */
function toNodePortAddress({ layout, nodePorts }: Skeleton): Expressions {
  if (nodePorts.kind === 'only') return [destinationAddress(layout, WORK), matches('nodeport-ips')]
  const local: Expressions = [
    { kind: 'fib', flags: NFTA_FIB_F_DADDR, dreg: WORK },
    compare('eq', WORK, u32host(RTN_LOCAL)),
    destinationAddress(layout, WORK),
  ]
  if (layout.model === 'IPv6') return [...local, compare('neq', WORK, LOOPBACK_6)]
  return [...local, maskBytes(WORK, prefixMask(8, 4)), compare('neq', WORK, LOOPBACK_4)]
}

const LOOPBACK_4: Octets = '\x7f\0\0\0'
const LOOPBACK_6: Octets = `${'\0'.repeat(15)}\x01`

/**
 * Finds the source in the ranges of the packet's service port, which a plain hash holds under their length: one rule
 * for each length in use, instead of an interval set that takes milliseconds to change.
 */
function firewallRules({ layout, prefixLengths }: Skeleton): readonly Rule[] {
  const rules = prefixLengths.map(bits => {
    const mask = prefixMask(bits, layout.addressLength)
    const masked = bits === layout.addressLength * 8 ? [] : [maskBytes(WORK + 1, mask)]
    return rule([
      ...serviceWith(layout, 'frontends', bits),
      sourceAddress(layout, WORK + 1),
      ...masked,
      matches('ranges'),
      { kind: 'verdict', verdict: { code: NFT_RETURN, chain: undefined } },
    ])
  })
  return [...rules, rule(dropCounted, 'source not in loadBalancerSourceRanges')]
}

function postroutingRules({ layout, masqueradeMark }: Skeleton): readonly Rule[] {
  const masquerade = { kind: 'masquerade', flags: NF_NAT_RANGE_PROTO_RANDOM_FULLY } as const
  const marked: Expressions = [
    readMark(WORK),
    maskNumber(WORK, masqueradeMark),
    compare('neq', WORK, u32host(0)),
    readMark(WORK),
    maskNumber(WORK, ~masqueradeMark >>> 0),
    writeMark(WORK),
  ]
  const hairpin: Expressions = [
    { kind: 'ct', key: NFT_CT_STATUS, dreg: WORK },
    maskNumber(WORK, IPS_DST_NAT),
    compare('neq', WORK, u32host(0)),
    sourceAddress(layout, WORK),
    destinationAddress(layout, WORK + layout.addressRegs),
    matches('hairpin'),
  ]
  return [
    rule([...marked, masquerade], 'asked for by mark'),
    rule([...hairpin, masquerade], 'endpoint to itself'),
  ]
}
