import type { Cidr } from '../../base/cidr.ts'
import { familyOf } from '../../base/ip.ts'
import { hex, u32host } from '../../base/octets.ts'
import {
  IPS_DST_NAT,
  NF_INET_POST_ROUTING,
  NF_IP_PRI_NAT_SRC,
  NFT_CT_STATUS,
  NFT_RETURN,
} from '../../kernel/nft/constants.ts'
import type { Rule } from '../../kernel/nft/expression.ts'
import type { Chain } from '../../kernel/nft/state.ts'
import type { FrontendTable, NodePortAddresses } from '../../model/frontend.ts'
import {
  CHAIN_EARLY_POSTROUTING,
  CHAIN_FIREWALL,
  CHAIN_REJECT,
  CHAIN_SERVICES,
} from '../common/chain-names.ts'
import { detectorFor } from '../common/detector.ts'
import {
  askMasquerade,
  compare,
  destinationAddress,
  dropCounted,
  type Expressions,
  fromPod,
  goTo,
  maskBytes,
  maskNumber,
  matches,
  type RuleContext,
  readPriority,
  rule,
  sourceAddress,
  WORK,
  writePriority,
} from '../common/expressions.ts'
import type { FamilyLayout } from '../common/family.ts'
import { prefixMask } from '../common/octet-keys.ts'
import {
  cidrKey,
  detectorKey,
  hookChains,
  masquerade,
  masqueradeMarked,
  rejectChain,
  toNodePortAddress,
  unallocatedChains,
} from '../common/rules.ts'
import { VALUE_FLAG } from './layout.ts'
import type { NftablesOptions } from './options.ts'
import { dispatch, serviceWith } from './rules.ts'

/** The inputs of the fixed chains of one table. */
export interface Skeleton extends RuleContext {
  readonly masqueradeAll: boolean
  readonly natPriority: number
  readonly nodePorts: NodePortAddresses
  readonly serviceCidrs: readonly Cidr[]
  /** The lengths of the source ranges in use, longest first. */
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
    natPriority: options.natPriority,
    detector: detectorFor(layout.model, options, frontends.node),
    nodePorts: frontends.nodePorts[layout.model],
    serviceCidrs: frontends.serviceCidrs.filter(({ ip }) => familyOf(ip) === layout.model),
    prefixLengths,
  }
}

/** Gives equal keys for skeletons with equal chains and sets, including on-demand chains. */
export function skeletonKey(skeleton: Skeleton): string {
  const { detector, nodePorts, serviceCidrs, prefixLengths } = skeleton
  const answers = nodePorts.kind === 'all' ? 'all' : nodePorts.ips.map(hex)
  return JSON.stringify([detectorKey(detector), answers, serviceCidrs.map(cidrKey), prefixLengths])
}

export function fixedChains(skeleton: Skeleton): readonly Chain[] {
  return [
    ...hookChains([masqueradeMarked(skeleton), hairpinRule(skeleton)], skeleton.natPriority),
    earlyPostrouting,
    ...unallocatedChains(skeleton.layout, skeleton.serviceCidrs),
    { name: CHAIN_SERVICES, hook: undefined, rules: servicesRules(skeleton) },
    rejectChain(skeleton.layout),
    { name: CHAIN_FIREWALL, hook: undefined, rules: firewallRules(skeleton) },
  ]
}

/**
 * Removes V from the packet's priority before a queueing discipline reads it. The chain runs before nat
 * chains of other programs that translate the source, because a packet that they translate does not reach
 * ours. A priority that another program or the packet's type of service set stays.
 */
const earlyPostrouting: Chain = {
  name: CHAIN_EARLY_POSTROUTING,
  hook: { type: 'nat', hooknum: NF_INET_POST_ROUTING, priority: NF_IP_PRI_NAT_SRC - 1 },
  rules: [
    rule([
      readPriority(WORK),
      maskNumber(WORK, VALUE_FLAG),
      compare('neq', WORK, u32host(0)),
      readPriority(WORK),
      maskNumber(WORK, 0),
      writePriority(WORK),
    ]),
  ],
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
  return rules
}

/**
 * Matches the source with the ranges of the packet's service port. A plain hash holds the ranges by their
 * length. One rule for each length in use replaces an interval set, which takes milliseconds to change.
 */
function firewallRules({ layout, prefixLengths }: Skeleton): readonly Rule[] {
  const rules = prefixLengths.map(bits => {
    const mask = prefixMask(bits, layout.addressLength)
    const masked = bits === layout.addressLength * 8 ? [] : [maskBytes(WORK + 1, mask)]
    return rule([
      ...serviceWith(bits),
      sourceAddress(layout, WORK + 1),
      ...masked,
      matches('ranges'),
      { kind: 'verdict', verdict: { code: NFT_RETURN, chain: undefined } },
    ])
  })
  return [...rules, rule(dropCounted, 'source not in loadBalancerSourceRanges')]
}

function hairpinRule({ layout }: Skeleton): Rule {
  const hairpin: Expressions = [
    { kind: 'ct', key: NFT_CT_STATUS, dreg: WORK },
    maskNumber(WORK, IPS_DST_NAT),
    compare('neq', WORK, u32host(0)),
    sourceAddress(layout, WORK),
    destinationAddress(layout, WORK + layout.addressRegs),
    matches('hairpin'),
  ]
  return rule([...hairpin, masquerade], 'endpoint to itself')
}
