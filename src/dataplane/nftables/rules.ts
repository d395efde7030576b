import { type Octets, u32host, zeros } from '../../base/octets.ts'
import {
  NF_DROP,
  NFT_GOTO,
  NFT_META_IIFNAME,
  NFT_META_L4PROTO,
  NFT_META_MARK,
  NFT_PAYLOAD_NETWORK_HEADER,
  NFT_PAYLOAD_TRANSPORT_HEADER,
  NFTA_FIB_F_SADDR,
  RTN_LOCAL,
} from '../../kernel/nft/constants.ts'
import type { Expression, Rule } from '../../kernel/nft/expression.ts'
import { CODE_MASK, type FamilyLayout, ID_MASK, LOCAL_LIST, prefixMask } from './layout.ts'
import type { Detector } from './options.ts'
import type { SetName } from './sets.ts'

/**
 * Fragments of rules. Registers hold, everywhere: r0.. the key of a frontend, r6 its value V, r7 the packet mark while
 * V passes through it, r8 and on what the rule works with.
 */
export type Expressions = readonly Expression[]

const KEY = 0
const VALUE = 6
const SAVED_MARK = 7
export const WORK = 8

/** What the rules of one table depend on, beside what is in its elements. */
export interface RuleContext {
  readonly layout: FamilyLayout
  /** The bit that asks our postrouting hook to masquerade. */
  readonly masqueradeMark: number
  readonly detector: Detector | undefined
}

/** The maps that say what to do with a packet. */
export type FrontendMap = 'frontends' | 'nodeports'
export const FRONTEND_MAPS: readonly FrontendMap[] = ['frontends', 'nodeports']

export function rule(expressions: Expressions, comment = ''): Rule {
  return { expressions, comment }
}

export const dropCounted: Expressions = [
  { kind: 'counter' },
  { kind: 'verdict', verdict: { code: NF_DROP, chain: undefined } },
]

export function goTo(chain: string): Expression {
  return { kind: 'verdict', verdict: { code: NFT_GOTO, chain } }
}

export function sourceAddress(layout: FamilyLayout, dreg: number): Expression {
  return address(layout, layout.sourceOffset, dreg)
}

export function destinationAddress(layout: FamilyLayout, dreg: number): Expression {
  return address(layout, layout.destinationOffset, dreg)
}

function address(layout: FamilyLayout, offset: number, dreg: number): Expression {
  return { kind: 'payload', base: NFT_PAYLOAD_NETWORK_HEADER, offset, length: layout.addressLength, dreg }
}

export function readMark(dreg: number): Expression {
  return { kind: 'meta', key: NFT_META_MARK, dreg }
}

export function writeMark(sreg: number): Expression {
  return { kind: 'meta-set', key: NFT_META_MARK, sreg }
}

export function matches(set: SetName, sreg = WORK): Expression {
  return { kind: 'lookup', set, sreg, dreg: undefined, inverted: false }
}

export function mapped(set: SetName, sreg: number, dreg: number | 'verdict'): Expression {
  return { kind: 'lookup', set, sreg, dreg, inverted: false }
}

/** `reg & mask ^ xor`, in place, over numbers in host order. */
export function maskNumber(reg: number, mask: number, xor = 0): Expression {
  return { kind: 'bitwise', sreg: reg, dreg: reg, mask: u32host(mask), xor: u32host(xor) }
}

export function maskBytes(reg: number, mask: Octets): Expression {
  return { kind: 'bitwise', sreg: reg, dreg: reg, mask, xor: zeros(mask.length) }
}

export function compare(op: 'eq' | 'neq', sreg: number, data: Octets): Expression {
  return { kind: 'cmp', op, sreg, data }
}

/** Finds V of the packet in r6. The rule ends here when nothing is at its destination. */
function findValue(layout: FamilyLayout, map: FrontendMap): Expressions {
  const addressRegs = map === 'frontends' ? layout.addressRegs : 0
  const key: Expressions = addressRegs === 0 ? [] : [destinationAddress(layout, KEY)]
  return [
    ...key,
    { kind: 'meta', key: NFT_META_L4PROTO, dreg: KEY + addressRegs },
    {
      kind: 'payload',
      base: NFT_PAYLOAD_TRANSPORT_HEADER,
      offset: 2,
      length: 2,
      dreg: KEY + addressRegs + 1,
    },
    mapped(map, KEY, VALUE),
  ]
}

/**
 * Copies a number to `dregs` by way of the packet mark, which it restores: nft cannot print a map's result as the key
 * of another map unless it has passed through something it knows. Nothing in between can end the rule, so a foreign
 * mark never gets lost. A mask has to come after, or nft prints "[invalid type]".
 */
function throughMark(sreg: number, ...dregs: readonly number[]): Expressions {
  return [readMark(SAVED_MARK), writeMark(sreg), ...dregs.map(readMark), writeMark(SAVED_MARK)]
}

export function dispatch(layout: FamilyLayout, map: FrontendMap): Expressions {
  return [
    ...findValue(layout, map),
    ...throughMark(VALUE, WORK),
    maskNumber(WORK, CODE_MASK),
    mapped('dispatch', WORK, 'verdict'),
  ]
}

/** Puts the id of the service port with `low` in its low bits into r8. */
export function serviceWith(layout: FamilyLayout, map: FrontendMap, low: number): Expressions {
  return [...findValue(layout, map), ...throughMark(VALUE, WORK), maskNumber(WORK, ID_MASK, low)]
}

export function askMasquerade(context: RuleContext): Expressions {
  const mark = context.masqueradeMark
  return [readMark(WORK), maskNumber(WORK, ~mark >>> 0, mark), writeMark(WORK)]
}

/** Matches packets that the detector takes for those of this node's pods, or all others. */
export function fromPod(context: RuleContext, detector: Detector, negated: boolean): Expressions {
  const op = negated ? 'neq' : 'eq'
  if (detector.kind === 'cidr') {
    const { ip, bits } = detector.cidr
    const { layout } = context
    return [
      sourceAddress(layout, WORK),
      maskBytes(WORK, prefixMask(bits, layout.addressLength)),
      compare(op, WORK, ip),
    ]
  }
  // Comparing fewer than the 16 bytes of a name makes it a prefix.
  const name = detector.kind === 'interface' ? detector.name.padEnd(16, '\0') : detector.prefix
  return [{ kind: 'meta', key: NFT_META_IIFNAME, dreg: WORK }, compare(op, WORK, name)]
}

export const fromThisNode: Expressions = [
  { kind: 'fib', flags: NFTA_FIB_F_SADDR, dreg: WORK },
  compare('eq', WORK, u32host(RTN_LOCAL)),
]

/** Sends the packet to a random one of the first `modulus` slots of its list. */
export function pickSlot(layout: FamilyLayout, map: FrontendMap, list: ListChoice): Expressions {
  const random = WORK + 1
  const endpoint = WORK + 2
  return [
    ...serviceWith(layout, map, list.local ? LOCAL_LIST : 0),
    { kind: 'numgen', modulus: list.modulus, dreg: random },
    mapped('endpoints', WORK, endpoint),
    translate(layout, endpoint),
  ]
}

export interface ListChoice {
  readonly local: boolean
  readonly modulus: number
}

function translate(layout: FamilyLayout, reg: number): Expression {
  return { kind: 'dnat', family: layout.family, addressReg: reg, portReg: reg + layout.addressRegs }
}

/**
 * Session affinity needs two keys at once: (service . client) in r8.. for `affinity`, and (list . slot or id) in r13
 * and r14 for `slots` and `endpoints`. The endpoint then takes the place of the frontend's key in r0...
 */
const LIST = 13
const CHOICE = 14

function affinityKeys(layout: FamilyLayout, map: FrontendMap, local: boolean): Expressions {
  return [
    ...findValue(layout, map),
    readMark(SAVED_MARK),
    writeMark(VALUE),
    readMark(WORK),
    maskNumber(WORK, ID_MASK),
    readMark(LIST),
    maskNumber(LIST, ID_MASK, local ? LOCAL_LIST : 0),
    writeMark(SAVED_MARK),
    sourceAddress(layout, WORK + 1),
  ]
}

function remember(timeoutMs: number): Expression {
  return { kind: 'dynset', op: 'update', set: 'affinity', keyReg: WORK, dataReg: CHOICE, timeoutMs }
}

/** Sends a client to the endpoint it had before, if that still exists, and gives it another timeout. */
export function pickKnown(
  layout: FamilyLayout,
  map: FrontendMap,
  options: { local: boolean; timeoutMs: number },
): Expressions {
  return [
    ...affinityKeys(layout, map, options.local),
    mapped('affinity', WORK, CHOICE),
    ...throughMark(CHOICE, CHOICE),
    mapped('endpoints', LIST, KEY),
    remember(options.timeoutMs),
    translate(layout, KEY),
  ]
}

/**
 * Sends a client to a random endpoint. With a timeout it is remembered; `update` alone would keep what a live entry
 * says, so that goes first. The rule ends without a translation when the map is full.
 */
export function pickNew(
  layout: FamilyLayout,
  map: FrontendMap,
  options: ListChoice & { readonly timeoutMs: number | undefined },
): Expressions {
  const remembering: Expressions =
    options.timeoutMs === undefined
      ? []
      : [
          // The kernel wants data for a map even here.
          { kind: 'dynset', op: 'delete', set: 'affinity', keyReg: WORK, dataReg: CHOICE, timeoutMs: 0 },
          remember(options.timeoutMs),
        ]
  return [
    ...affinityKeys(layout, map, options.local),
    { kind: 'numgen', modulus: options.modulus, dreg: CHOICE },
    mapped('slots', LIST, CHOICE),
    ...throughMark(CHOICE, CHOICE),
    mapped('endpoints', LIST, KEY),
    ...remembering,
    translate(layout, KEY),
  ]
}
