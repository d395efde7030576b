import type { Cidr } from '../../base/cidr.ts'
import { hex, u32host } from '../../base/octets.ts'
import {
  NF_INET_LOCAL_OUT,
  NF_INET_POST_ROUTING,
  NF_INET_PRE_ROUTING,
  NF_IP_PRI_NAT_DST,
  NF_IP_PRI_NAT_SRC,
  NF_NAT_RANGE_PROTO_RANDOM_FULLY,
} from '../../kernel/nft/constants.ts'
import type { Expression, Rule } from '../../kernel/nft/expression.ts'
import type { Chain } from '../../kernel/nft/state.ts'
import {
  CHAIN_OUTPUT,
  CHAIN_POSTROUTING,
  CHAIN_PREROUTING,
  CHAIN_REJECT,
  CHAIN_SERVICES,
} from './chain-names.ts'
import type { Detector } from './detector.ts'
import {
  compare,
  destinationAddress,
  dropCounted,
  type Expressions,
  jumpTo,
  maskBytes,
  maskNumber,
  type RuleContext,
  readMark,
  rule,
  WORK,
  writeMark,
} from './expressions.ts'
import type { FamilyLayout } from './family.ts'
import { prefixMask } from './octet-keys.ts'

/** The three hooks, at kube-proxy's priorities: both ways in lead to the same chain. */
export function hookChains(postrouting: readonly Rule[]): readonly Chain[] {
  const toServices = [rule([jumpTo(CHAIN_SERVICES)])]
  return [
    hookChain(CHAIN_PREROUTING, NF_INET_PRE_ROUTING, toServices),
    hookChain(CHAIN_OUTPUT, NF_INET_LOCAL_OUT, toServices),
    hookChain(CHAIN_POSTROUTING, NF_INET_POST_ROUTING, postrouting),
  ]
}

function hookChain(name: string, hooknum: number, rules: readonly Rule[]): Chain {
  const priority = hooknum === NF_INET_POST_ROUTING ? NF_IP_PRI_NAT_SRC : NF_IP_PRI_NAT_DST
  return { name, hook: { type: 'nat', hooknum, priority }, rules }
}

/** One place that rejects, so that its counter counts all. */
export function rejectChain(layout: FamilyLayout): Chain {
  return {
    name: CHAIN_REJECT,
    hook: undefined,
    rules: [rule([{ kind: 'counter' }, { kind: 'reject', code: layout.rejectCode }])],
  }
}

/** Addresses that may become ClusterIPs, and are none. */
export function unallocatedRules(layout: FamilyLayout, serviceCidrs: readonly Cidr[]): readonly Rule[] {
  return serviceCidrs.map(cidr => {
    const match: Expressions = [
      destinationAddress(layout, WORK),
      maskBytes(WORK, prefixMask(cidr.bits, layout.addressLength)),
      compare('eq', WORK, cidr.ip),
    ]
    return rule([...match, ...dropCounted], 'no such ClusterIP')
  })
}

export const masquerade: Expression = { kind: 'masquerade', flags: NF_NAT_RANGE_PROTO_RANDOM_FULLY }

/** Masquerades what one of our chains marked, and takes the mark away. */
export function masqueradeMarked({ masqueradeMark }: RuleContext): Rule {
  const marked: Expressions = [
    readMark(WORK),
    maskNumber(WORK, masqueradeMark),
    compare('neq', WORK, u32host(0)),
    readMark(WORK),
    maskNumber(WORK, ~masqueradeMark >>> 0),
    writeMark(WORK),
  ]
  return rule([...marked, masquerade], 'asked for by mark')
}

/** Texts that are equal for equal values: what chains and sets follow from is compared by them. */
export function cidrKey({ ip, bits }: Cidr): string {
  return `${hex(ip)}/${bits}`
}

export function detectorKey(detector: Detector | undefined): unknown {
  if (detector?.kind !== 'cidr') return detector
  return { kind: detector.kind, cidr: cidrKey(detector.cidr) }
}
