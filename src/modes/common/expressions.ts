import { type Cidr, type Family, familyOf } from '../../base/ip.ts'
import { type Octets, u32host, zeros } from '../../base/octets.ts'
import type { DetectLocal } from '../../config/config.ts'
import * as nft from '../../kernel/nft/constants.ts'
import type { Expression, Rule } from '../../kernel/nft/expression.ts'
import type { FrontendTable } from '../../model/frontend.ts'
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

/** Makes a rule. Expressions run in order; the first that does not match ends the rule. */
export function rule(expressions: Expressions, comment = ''): Rule {
  return { expressions, comment }
}

/** Counts and drops the packet. */
export const dropCounted: Expressions = [
  { kind: 'counter' },
  { kind: 'verdict', verdict: { code: nft.NF_DROP, chain: undefined } },
]

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

/**
 * Continues only if the map contains the value in the registers from `sreg` on. Loads the data of the entry,
 * or executes its verdict.
 */
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
export function fromPod(context: RuleContext, detector: Detector, negated: boolean): Expressions {
  const op = negated ? 'neq' : 'eq'
  if (detector.kind === 'cidr') {
    return inPrefix(context.layout, 'source', { ...detector.cidr, op })
  }
  // A comparison of fewer than the 16 bytes of a name matches a prefix.
  const name = detector.kind === 'interface' ? detector.name.padEnd(16, '\0') : detector.prefix
  return [{ kind: 'meta', key: nft.NFT_META_IIFNAME, dreg: WORK }, compare(op, WORK, name)]
}

interface PrefixMatch extends Cidr {
  /** `neq` continues only if the address is not in the prefix. */
  readonly op: 'eq' | 'neq'
}

/**
 * Continues only if an address of the packet is in a prefix. For a prefix of whole bytes nft loads only the
 * compared bytes.
 */
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

/** How rules distinguish pods of this node from other traffic. */
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

/** How planes distinguish pods of this node from other traffic, by family; undefined where they cannot. */
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
