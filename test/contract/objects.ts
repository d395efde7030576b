import { APPEND, attribute, CREATE, MSG, nest, nft, type Raw, str, u32, u64 } from './wire.ts'

/** The objects that the suites are about, as messages in the table `ip t`. */
export const TABLE = 't'

export function table(flags = 0, name = TABLE): Raw {
  return nft(MSG.newTable, CREATE, str(1, name), u32(2, flags))
}

export function deleteTable(): Raw {
  return nft(MSG.delTable, 0, str(1, TABLE))
}

export interface Hook {
  readonly type: string
  readonly hooknum: number
  readonly priority: number
}

export function chain(name: string, hook?: Hook, tableName = TABLE): Raw {
  const base =
    hook === undefined
      ? []
      : [nest(4, u32(1, hook.hooknum), u32(2, hook.priority)), u32(5, 1), str(7, hook.type)]
  return nft(MSG.newChain, CREATE, str(1, tableName), str(3, name), ...base)
}

export const PREROUTING: Hook = { type: 'nat', hooknum: 0, priority: -100 }
export const POSTROUTING: Hook = { type: 'nat', hooknum: 4, priority: 100 }
export const FILTER: Hook = { type: 'filter', hooknum: 0, priority: 0 }

export function deleteChain(name: string): Raw {
  return nft(MSG.delChain, 0, str(1, TABLE), str(3, name))
}

export function rule(chainName: string, ...expressions: readonly Buffer[]): Raw {
  return nft(MSG.newRule, CREATE | APPEND, str(1, TABLE), str(2, chainName), nest(4, ...expressions))
}

export function flushChain(name: string): Raw {
  return nft(MSG.delRule, 0, str(1, TABLE), str(2, name))
}

export function expression(name: string, ...data: readonly Buffer[]): Buffer {
  return nest(1, str(1, name), nest(2, ...data))
}

// Register n of 32 bits is number 8 + n.
export const counter = (): Buffer => expression('counter')
export const unknownExpression = (): Buffer => expression('foo')
/** The match of xtables; `info` as bytes. */
export const match = (name: string, revision: number | undefined, info: readonly number[]): Buffer =>
  expression(
    'match',
    str(1, name),
    ...(revision === undefined ? [] : [u32(2, revision)]),
    attribute(3, Buffer.from(info)),
  )
export const daddr = (register: number): Buffer =>
  expression('payload', u32(1, 8 + register), u32(2, 1), u32(3, 16), u32(4, 4))
export const dport = (register: number): Buffer =>
  expression('payload', u32(1, 8 + register), u32(2, 2), u32(3, 2), u32(4, 2))
export const compare = (register: number, data: string): Buffer =>
  expression('cmp', u32(1, 8 + register), u32(2, 0), nest(3, attribute(1, Buffer.from(data, 'latin1'))))
export const dnat = (address: number, port: number): Buffer =>
  expression('nat', u32(1, 1), u32(2, 2), u32(3, 8 + address), u32(5, 8 + port))
export const masquerade = (): Buffer => expression('masq', u32(1, 0x10))

const JUMP = -3
const GOTO = -4

function verdict(code: number, target: string | undefined): Buffer {
  return nest(2, u32(1, code), ...(target === undefined ? [] : [str(2, target)]))
}

export const jump = (target: string): Buffer =>
  expression('immediate', u32(1, 0), nest(2, verdict(JUMP, target)))
export const goTo = (target: string): Buffer =>
  expression('immediate', u32(1, 0), nest(2, verdict(GOTO, target)))

/** `into` undefined tests membership; 'verdict' is register 0. */
export function lookup(set: string, register: number, into?: number | 'verdict'): Buffer {
  const dreg = into === undefined ? [] : [u32(3, into === 'verdict' ? 0 : 8 + into)]
  return expression('lookup', str(1, set), u32(2, 8 + register), ...dreg)
}

export interface SetShape {
  readonly flags?: number
  readonly keyLength?: number
  readonly dataType?: number
  readonly dataLength?: number
  readonly size?: number
  readonly timeoutMs?: number
  readonly withoutId?: boolean
  readonly createFlags?: number
}

export const SET_MAP = 8
export const SET_TIMEOUT = 16
export const VERDICT = 0xffffff00
export const MAP: SetShape = { flags: SET_MAP, dataType: 19, dataLength: 4 }
export const VERDICT_MAP: SetShape = { flags: SET_MAP, dataType: VERDICT }

/** Keys are IPv4 addresses unless the shape says otherwise. */
export function set(name: string, shape: SetShape = {}): Raw {
  const {
    flags = 0,
    keyLength = 4,
    dataType,
    dataLength,
    size,
    timeoutMs,
    withoutId = false,
    createFlags = CREATE,
  } = shape
  const parts = [str(1, TABLE), str(2, name), u32(3, flags), u32(4, 7), u32(5, keyLength)]
  if (dataType !== undefined) parts.push(u32(6, dataType))
  if (dataLength !== undefined) parts.push(u32(7, dataLength))
  if (size !== undefined) parts.push(nest(9, u32(1, size)))
  if (!withoutId) parts.push(u32(10, 1))
  if (timeoutMs !== undefined) parts.push(u64(11, timeoutMs))
  return nft(MSG.newSet, createFlags, ...parts)
}

export function deleteSet(name: string): Raw {
  return nft(MSG.delSet, 0, str(1, TABLE), str(2, name))
}

export interface ElementShape {
  /** Bytes, one a character; the last byte of 10.0.0.n when it is a number. */
  readonly key: string | number
  readonly data?: string
  /** A chain to go to, or `drop`. */
  readonly to?: string
  readonly timeoutMs?: number
  readonly expirationMs?: number
  readonly comment?: string
}

export function element(shape: ElementShape): Buffer {
  const { key, data, to, timeoutMs, expirationMs, comment } = shape
  const bytes = typeof key === 'number' ? Buffer.from([10, 0, 0, key]) : Buffer.from(key, 'latin1')
  const parts = [nest(1, attribute(1, bytes))]
  if (data !== undefined) parts.push(nest(2, attribute(1, Buffer.from(data, 'latin1'))))
  if (to !== undefined) parts.push(nest(2, to === 'drop' ? verdict(0, undefined) : verdict(GOTO, to)))
  if (timeoutMs !== undefined) parts.push(u64(4, timeoutMs))
  if (expirationMs !== undefined) parts.push(u64(5, expirationMs))
  if (comment !== undefined) {
    parts.push(
      attribute(6, Buffer.concat([Buffer.from([0, comment.length + 1]), Buffer.from(`${comment}\0`)])),
    )
  }
  return nest(1, ...parts)
}

export function add(setName: string, ...elements: readonly ElementShape[]): Raw {
  return nft(MSG.newElem, CREATE, str(1, TABLE), str(2, setName), nest(3, ...elements.map(element)))
}

export function remove(setName: string, ...elements: readonly ElementShape[]): Raw {
  return nft(MSG.delElem, 0, str(1, TABLE), str(2, setName), nest(3, ...elements.map(element)))
}

/** All elements. */
export function flushSet(name: string): Raw {
  return nft(MSG.delElem, 0, str(1, TABLE), str(2, name))
}
