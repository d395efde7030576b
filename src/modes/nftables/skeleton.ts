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

/** What the fixed chains of one table follow from. */
export interface Skeleton extends RuleContext {
  readonly masqueradeAll: boolean
  readonly natPriority: number
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
    natPriority: options.natPriority,
    detector: detectorFor(layout.model, options, frontends.node),
    nodePorts: frontends.nodePorts[layout.model],
    serviceCidrs: frontends.serviceCidrs.filter(({ ip }) => familyOf(ip) === layout.model),
    prefixLengths,
  }
}

/** Equal for skeletons that give equal chains and sets, on-demand chains included. */
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
 * Takes V out of the packet's priority before a queueing discipline sees it, and before a nat chain of somebody else's
 * translates the source, behind which ours is not reached. The priority of another one, or of the packet's type of
 * service, stays.
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
 * Finds the source in the ranges of the packet's service port, which a plain hash holds under their length: one rule
 * for each length in use, instead of an interval set that takes milliseconds to change.
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
