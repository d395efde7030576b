import { type Cidr, familyOf } from '../../base/ip.ts'
import { hex, type Octets, u32host, zeros } from '../../base/octets.ts'
import * as nft from '../../kernel/nft/constants.ts'
import type { Chain, Expression, NftFamily, Rule, Verdict } from '../../kernel/nft/state.ts'
import type { FrontendTable, NodePortAddresses } from '../../model/frontend.ts'
import { cidrKey, type Detector, type Detectors, detectorFor, detectorKey } from './detector.ts'
import type { FamilyLayout } from './tables.ts'

/** Fragments of rules that every mode uses. Fragments work in the registers from WORK on. */
export type Expressions = readonly Expression[]

/** The first register that fragments use: nft does not use earlier ones for a statement of its own. */
export const WORK = 0

/** The inputs of the rules of one table, except the elements. */
export interface RuleContext {
  readonly layout: FamilyLayout
  /** The mark bit that requests masquerading in our postrouting hook. */
  readonly masqueradeMark: number
  readonly detector: Detector | undefined
  /** The NFLOG group that gets rejected and dropped packets; 0 for none. */
  readonly logGroup?: number
}

/** The inputs of the chains of one table that several modes have. */
export interface TableContext extends RuleContext {
  readonly masqueradeAll: boolean
  readonly nodePorts: NodePortAddresses
  readonly serviceCidrs: readonly Cidr[]
}

interface ContextOptions {
  readonly masqueradeBit: number
  readonly masqueradeAll: boolean
  readonly detector: Detectors
}

export function tableContext(
  layout: FamilyLayout,
  { masqueradeBit, masqueradeAll, detector }: ContextOptions,
  { nodePorts, serviceCidrs, node }: FrontendTable,
): TableContext {
  return {
    layout,
    masqueradeMark: markOf(masqueradeBit),
    masqueradeAll,
    detector: detectorFor(layout.model, { detector }, node),
    nodePorts: nodePorts[layout.model],
    serviceCidrs: serviceCidrs.filter(({ ip }) => familyOf(ip) === layout.model),
  }
}

/** Gives the mark with this bit alone, 0 to 31. */
export function markOf(bit: number): number {
  return (1 << bit) >>> 0
}

/** Gives equal values for contexts of the same options that make equal rules. */
export function contextKey({ detector, nodePorts, serviceCidrs }: TableContext): readonly unknown[] {
  const answers = nodePorts.kind === 'all' ? 'all' : nodePorts.ips.map(hex)
  return [detectorKey(detector), answers, serviceCidrs.map(cidrKey)]
}

/** Makes a rule. Expressions run in order; the first that does not match ends the rule. */
export function rule(expressions: Expressions, comment = ''): Rule {
  return { expressions, comment }
}

/** Ends the traversal of a chain, or of all. */
export function end(code: number): Expression {
  return { kind: 'verdict', verdict: { code, chain: undefined } }
}

/** Counts and drops the packet. */
export const dropCounted: Expressions = [{ kind: 'counter' }, end(nft.NF_DROP)]

/** Continues in another chain without return. */
export function goTo(chain: string): Expression {
  return { kind: 'verdict', verdict: { code: nft.NFT_GOTO, chain } }
}

/** Continues in another chain and returns at its end. */
export function jumpTo(chain: string): Expression {
  return { kind: 'verdict', verdict: { code: nft.NFT_JUMP, chain } }
}

/** Loads the source address of the packet. */
export function sourceAddress(layout: FamilyLayout, dreg: number): Expression {
  return address(layout, layout.sourceOffset, dreg)
}

/** Loads the destination address of the packet. */
export function destinationAddress(layout: FamilyLayout, dreg: number): Expression {
  return address(layout, layout.destinationOffset, dreg)
}

function address(layout: FamilyLayout, offset: number, dreg: number): Expression {
  return { kind: 'payload', base: nft.NFT_PAYLOAD_NETWORK_HEADER, offset, length: layout.addressLength, dreg }
}

/** Loads the packet mark. */
export function readMark(dreg: number): Expression {
  return { kind: 'meta', key: nft.NFT_META_MARK, dreg }
}

/** Sets the packet mark. */
export function writeMark(sreg: number): Expression {
  return { kind: 'meta-set', key: nft.NFT_META_MARK, sreg }
}

/** Loads the packet's priority. */
export function readPriority(dreg: number): Expression {
  return { kind: 'meta', key: nft.NFT_META_PRIORITY, dreg }
}

/** Sets the packet's priority. */
export function writePriority(sreg: number): Expression {
  return { kind: 'meta-set', key: nft.NFT_META_PRIORITY, sreg }
}

/** Continues only if the set contains the value in the registers from `sreg` on. */
export function matches(set: string, sreg = WORK): Expression {
  return { kind: 'lookup', set, sreg, dreg: undefined, inverted: false }
}

/** Continues only if the map has the value in the registers from `sreg` on. Loads the data or executes the verdict. */
export function mapped(set: string, sreg: number, dreg: number | 'verdict'): Expression {
  return { kind: 'lookup', set, sreg, dreg, inverted: false }
}

/** Computes `reg & mask ^ xor` in place, over numbers in host order. */
export function maskNumber(reg: number, mask: number, xor = 0): Expression {
  return { kind: 'bitwise', sreg: reg, dreg: reg, mask: u32host(mask), xor: u32host(xor) }
}

/** Computes `reg & mask` in place, over bytes in network order. */
export function maskBytes(reg: number, mask: Octets): Expression {
  return { kind: 'bitwise', sreg: reg, dreg: reg, mask, xor: zeros(mask.length) }
}

/** Continues only if the registers from `sreg` on equal, or do not equal, these bytes. */
export function compare(op: 'eq' | 'neq', sreg: number, data: Octets): Expression {
  return { kind: 'cmp', op, sreg, data }
}

/** Loads protocol and destination port into two registers, in the format of portKey(). */
export function portOfPacket(dreg: number): Expressions {
  return [
    { kind: 'meta', key: nft.NFT_META_L4PROTO, dreg },
    { kind: 'payload', base: nft.NFT_PAYLOAD_TRANSPORT_HEADER, offset: 2, length: 2, dreg: dreg + 1 },
  ]
}

/** Sets the bit of the packet mark that masqueradeMarked() matches. */
export function askMasquerade(context: RuleContext): Expressions {
  const mark = context.masqueradeMark
  return [readMark(WORK), maskNumber(WORK, ~mark >>> 0, mark), writeMark(WORK)]
}

/** Matches packets that the detector assigns to pods of this node, or all others. */
function fromPod({ layout }: RuleContext, detector: Detector, negated: boolean): Expressions {
  const op = negated ? 'neq' : 'eq'
  if (detector.kind === 'cidr') {
    return inPrefix(layout, 'source', { ...detector.cidr, op })
  }
  // A comparison of fewer than the 16 bytes of a name matches a prefix.
  const name = detector.kind === 'interface' ? detector.name.padEnd(16, '\0') : detector.prefix
  return [{ kind: 'meta', key: nft.NFT_META_IIFNAME, dreg: WORK }, compare(op, WORK, name)]
}

interface PrefixMatch extends Cidr {
  /** `neq` continues only if the address is not in the prefix. */
  readonly op: 'eq' | 'neq'
}

/** Continues only if an address of the packet is in a prefix. For whole bytes, nft loads only the compared ones. */
export function inPrefix(
  layout: FamilyLayout,
  side: 'source' | 'destination',
  { ip, bits, op }: PrefixMatch,
): Expressions {
  const load = side === 'source' ? sourceAddress(layout, WORK) : destinationAddress(layout, WORK)
  const length = bits / 8
  if (bits > 0 && Number.isInteger(length) && load.kind === 'payload')
    return [{ ...load, length }, compare(op, WORK, ip.slice(0, length))]
  return [load, maskBytes(WORK, prefixMask(bits, layout.addressLength)), compare(op, WORK, ip)]
}

/** Makes the rules for clients inside: pods of this node, and its processes. Policy Local sends both everywhere. */
export function insideRules(context: RuleContext, ofPods: Expressions, ofNode: Expressions): readonly Rule[] {
  const { detector } = context
  const pods = detector === undefined ? [] : [rule([...fromPod(context, detector, false), ...ofPods])]
  return [...pods, rule([...fromThisNode, ...ofNode])]
}

/** Masquerades clients outside the cluster on their way to a ClusterIP, so that replies come back through this node. */
export function offClusterRules(context: TableContext, toClusterIp: Expressions): readonly Rule[] {
  const { masqueradeAll, detector } = context
  const mark = [...toClusterIp, ...askMasquerade(context)]
  if (masqueradeAll) return [rule(mark)]
  return detector === undefined ? [] : [rule([...fromPod(context, detector, true), ...mark])]
}

/** Continues only if the source address is one of this node. */
export const fromThisNode: Expressions = [
  { kind: 'fib', flags: nft.NFTA_FIB_F_SADDR, dreg: WORK },
  compare('eq', WORK, u32host(nft.RTN_LOCAL)),
]

/** Translates the destination to the address and port in the registers from `reg` on. */
export function translate(layout: FamilyLayout, reg: number): Expression {
  return { kind: 'dnat', family: layout.family, addressReg: reg, portReg: reg + layout.addressRegs }
}

/**
 * Translates the destination to the address in the registers from `reg` on, and keeps the port if the
 * protocol has one.
 */
export function translateAddress({ family }: FamilyLayout, reg: number): Expression {
  return { kind: 'dnat', family, addressReg: reg, portReg: undefined }
}

/** Gives `length` bytes of which the first `bits` bits are set. */
export function prefixMask(bits: number, length: number): Octets {
  let mask = ''
  for (let left = bits; mask.length < length; left -= 8) {
    mask += String.fromCharCode(left >= 8 ? 255 : left <= 0 ? 0 : (0xff00 >>> left) & 255)
  }
  return mask
}

/**
 * Names of the chains that the tables of every mode have. These two are not kube-proxy's, which have another priority: the
 * kernel would reject all that a running kube-proxy writes into the table, since it changes no priority of a chain.
 */
export const CHAIN_PREROUTING = 'early-prerouting'
export const CHAIN_OUTPUT = 'early-output'
export const CHAIN_POSTROUTING = 'nat-postrouting'
/** This chain runs before the nat chains of other programs translate sources. */
export const CHAIN_EARLY_POSTROUTING = 'early-postrouting'
/** This chain runs behind the nat chains of other programs. It exists where there are ServiceCIDRs. */
export const CHAIN_LATE_PREROUTING = 'late-prerouting'
export const CHAIN_LATE_OUTPUT = 'late-output'
export const CHAIN_SERVICES = 'services'
/** The name is not `reject`, because that is a keyword of nft, which cannot load a chain with that name. */
export const CHAIN_REJECT = 'refuse'
export const CHAIN_NO_LOCAL = 'no-local-endpoints'
export const CHAIN_FIREWALL = 'firewall-check'
/** This chain exists where a forwarder of the daemon serves node ports at localhost. */
export const CHAIN_LOCALHOST = 'localhost-nodeports'

export const GOTO_REJECT: Verdict = { code: nft.NFT_GOTO, chain: CHAIN_REJECT }
export const GOTO_NO_LOCAL: Verdict = { code: nft.NFT_GOTO, chain: CHAIN_NO_LOCAL }

/**
 * The priority of the hooks that translate destinations: one before that of kube-proxy and of nearly all other programs.
 * The newest of chains with equal priorities runs first: another program's host port would take packets to Services.
 */
export const NAT_PRIORITY = nft.NF_IP_PRI_NAT_DST - 1
/** The priority of named proxies. It fixes which proxy comes first, independently of the order in which they started. */
const EARLY_NAT_PRIORITY = NAT_PRIORITY - 1
/** A priority behind all chains that translate destinations, including those of iptables: docs/decisions/0021. */
const LATE_NAT_PRIORITY = nft.NF_IP_PRI_NAT_DST + 1

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

export function natChain(name: string, hooknum: number, priority: number, rules: readonly Rule[]): Chain {
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

/** Makes the only chain that drops for want of an endpoint on this node, so that its counter counts all such drops. */
export const noLocalChain: Chain = {
  name: CHAIN_NO_LOCAL,
  hook: undefined,
  rules: [rule(dropCounted)],
}

/**
 * Makes two hooks for addresses that may become ClusterIPs and belong to no Service. They run after another
 * named proxy has translated what it serves. `except` comes first.
 */
export function unallocatedChains(
  { layout, serviceCidrs }: TableContext,
  except: readonly Rule[] = [],
): readonly Chain[] {
  if (serviceCidrs.length === 0) return []
  const drops = serviceCidrs.map(cidr => {
    const match = inPrefix(layout, 'destination', { ...cidr, op: 'eq' })
    return rule([...match, ...dropCounted], 'no such ClusterIP')
  })
  const rules = [...except, ...drops]
  return [
    natChain(CHAIN_LATE_PREROUTING, nft.NF_INET_PRE_ROUTING, LATE_NAT_PRIORITY, rules),
    natChain(CHAIN_LATE_OUTPUT, nft.NF_INET_LOCAL_OUT, LATE_NAT_PRIORITY, rules),
  ]
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

/** Matches node-port addresses, never loopback addresses: the reply could not leave the node. */
export function toNodePortAddress({ layout, nodePorts }: TableContext): Expressions {
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

export const LOOPBACKS: Readonly<Record<NftFamily, Cidr>> = {
  ip: { ip: '\x7f\0\0\0', bits: 8 },
  ip6: { ip: `${'\0'.repeat(15)}\x01`, bits: 128 },
}
