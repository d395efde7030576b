import type { Expression } from '../../kernel/nft/expression.ts'
import {
  destinationAddress,
  type Expressions,
  mapped,
  maskNumber,
  portOfPacket,
  readMark,
  sourceAddress,
  translate,
  WORK,
  writeMark,
} from '../common/expressions.ts'
import type { FamilyLayout } from '../common/family.ts'
import { CODE_MASK, ID_MASK, LOCAL_LIST } from './layout.ts'

/**
 * Fragments of rules. Registers hold, everywhere: r0.. the key of a frontend, r6 its value V, r7 the packet mark while
 * V passes through it, r8 and on what the rule works with.
 */
const KEY = 0
const VALUE = 6
const SAVED_MARK = 7

/** The maps that say what to do with a packet. */
export type FrontendMap = 'frontends' | 'nodeports'
export const FRONTEND_MAPS: readonly FrontendMap[] = ['frontends', 'nodeports']

/** Finds V of the packet in r6. The rule ends here when nothing is at its destination. */
function findValue(layout: FamilyLayout, map: FrontendMap): Expressions {
  const addressRegs = map === 'frontends' ? layout.addressRegs : 0
  const key: Expressions = addressRegs === 0 ? [] : [destinationAddress(layout, KEY)]
  return [...key, ...portOfPacket(KEY + addressRegs), mapped(map, KEY, VALUE)]
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
