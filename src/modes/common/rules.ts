import type { Cidr } from '../../base/ip.ts'
import { hex, u32host } from '../../base/octets.ts'
import * as nft from '../../kernel/nft/constants.ts'
import type { Expression, Rule } from '../../kernel/nft/expression.ts'
import type { Chain, NftFamily } from '../../kernel/nft/state.ts'
import type { NodePortAddresses } from '../../model/frontend.ts'
import {
  compare,
  type Detector,
  destinationAddress,
  dropCounted,
  type Expressions,
  inPrefix,
  jumpTo,
  maskNumber,
  matches,
  type RuleContext,
  readMark,
  rule,
  WORK,
  writeMark,
} from './expressions.ts'
import type { FamilyLayout } from './tables.ts'

export const TABLE_COMMENT = 'rules of kprobe'

/** Names of the chains that the tables of every mode have. */
export const CHAIN_PREROUTING = 'nat-prerouting'
export const CHAIN_OUTPUT = 'nat-output'
export const CHAIN_POSTROUTING = 'nat-postrouting'
/** This chain runs before the nat chains of other programs translate sources. */
export const CHAIN_EARLY_POSTROUTING = 'early-postrouting'
/** This chain runs behind the nat chains of other programs. It exists where there are ServiceCIDRs. */
export const CHAIN_LATE_PREROUTING = 'late-prerouting'
export const CHAIN_LATE_OUTPUT = 'late-output'
export const CHAIN_SERVICES = 'services'
/** The name is not `reject`, because that is a keyword of nft, which cannot load a chain with that name. */
export const CHAIN_REJECT = 'refuse'
export const CHAIN_FIREWALL = 'firewall-check'
/** This chain exists where a relay of the daemon serves node ports at localhost. */
export const CHAIN_LOCALHOST = 'localhost-nodeports'

/** kube-proxy's priority of the hooks that translate destinations. */
export const NAT_PRIORITY = nft.NF_IP_PRI_NAT_DST
/**
 * The priority of named proxies. It fixes which proxy comes first, independently of the order in which they
 * started.
 */
const EARLY_NAT_PRIORITY = NAT_PRIORITY - 1
/**
 * A priority behind all chains that translate destinations, including those of iptables: docs/decisions/0021.
 */
const LATE_NAT_PRIORITY = NAT_PRIORITY + 1

export function natPriorityOf(proxy: string | undefined): number {
  return proxy === undefined ? NAT_PRIORITY : EARLY_NAT_PRIORITY
}

/** Makes the three hooks. Both ways in lead to the same chain, with `priority`. */
export function hookChains(postrouting: readonly Rule[], priority = NAT_PRIORITY): readonly Chain[] {
  const toServices = [rule([jumpTo(CHAIN_SERVICES)])]
  return [
    natChain(CHAIN_PREROUTING, nft.NF_INET_PRE_ROUTING, priority, toServices),
    natChain(CHAIN_OUTPUT, nft.NF_INET_LOCAL_OUT, priority, toServices),
    natChain(CHAIN_POSTROUTING, nft.NF_INET_POST_ROUTING, nft.NF_IP_PRI_NAT_SRC, postrouting),
  ]
}

function natChain(name: string, hooknum: number, priority: number, rules: readonly Rule[]): Chain {
  return { name, hook: { type: 'nat', hooknum, priority }, rules }
}

/** Makes the only chain that rejects, so that its counter counts all rejections. */
export function rejectChain(layout: FamilyLayout): Chain {
  return {
    name: CHAIN_REJECT,
    hook: undefined,
    rules: [rule([{ kind: 'counter' }, { kind: 'reject', code: layout.rejectCode }])],
  }
}

/**
 * Makes two hooks for addresses that may become ClusterIPs and belong to no Service. They run after another
 * named proxy has translated what it serves. `except` comes first.
 */
export function unallocatedChains(
  layout: FamilyLayout,
  serviceCidrs: readonly Cidr[],
  except: readonly Rule[] = [],
): readonly Chain[] {
  if (serviceCidrs.length === 0) return []
  const rules = [...except, ...unallocatedRules(layout, serviceCidrs)]
  return [
    natChain(CHAIN_LATE_PREROUTING, nft.NF_INET_PRE_ROUTING, LATE_NAT_PRIORITY, rules),
    natChain(CHAIN_LATE_OUTPUT, nft.NF_INET_LOCAL_OUT, LATE_NAT_PRIORITY, rules),
  ]
}

function unallocatedRules(layout: FamilyLayout, serviceCidrs: readonly Cidr[]): readonly Rule[] {
  return serviceCidrs.map(cidr => {
    const match = inPrefix(layout, 'destination', { ...cidr, op: 'eq' })
    return rule([...match, ...dropCounted], 'no such ClusterIP')
  })
}

/** Gives the connection the address of the interface that it leaves by, and a random port. */
export const masquerade: Expression = { kind: 'masquerade', flags: nft.NF_NAT_RANGE_PROTO_RANDOM_FULLY }

/** Masquerades packets that one of our chains marked, and clears the mark. */
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

/** Makes a text that is equal for equal values. Inputs of chains and sets are compared by these texts. */
export function cidrKey({ ip, bits }: Cidr): string {
  return `${hex(ip)}/${bits}`
}

export function detectorKey(detector: Detector | undefined): unknown {
  if (detector?.kind !== 'cidr') return detector
  return { kind: detector.kind, cidr: cidrKey(detector.cidr) }
}

interface NodePortPlace {
  readonly layout: FamilyLayout
  readonly nodePorts: NodePortAddresses
}

/**
 * Matches node-port addresses. Node ports are never served on loopback addresses, because the reply could not
 * leave the node.
 */
export function toNodePortAddress({ layout, nodePorts }: NodePortPlace): Expressions {
  if (nodePorts.kind === 'only') return [destinationAddress(layout, WORK), matches('nodeport-ips')]
  const local: Expressions = [
    { kind: 'fib', flags: nft.NFTA_FIB_F_DADDR, dreg: WORK },
    compare('eq', WORK, u32host(nft.RTN_LOCAL)),
  ]
  return [...local, ...toLoopback(layout, 'neq')]
}

/** Continues only if the destination is, or is not, a loopback address. */
export function toLoopback(layout: FamilyLayout, op: 'eq' | 'neq'): Expressions {
  return inPrefix(layout, 'destination', { ...LOOPBACKS[layout.family], op })
}

/** The loopback addresses of each family. */
export const LOOPBACKS: Readonly<Record<NftFamily, Cidr>> = {
  ip: { ip: '\x7f\0\0\0', bits: 8 },
  ip6: { ip: `${'\0'.repeat(15)}\x01`, bits: 128 },
}
