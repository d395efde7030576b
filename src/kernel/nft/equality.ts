import * as nft from './constants.ts'
import type { Expression, Rule } from './expression.ts'
import type { NftSet } from './state.ts'
import { sameUserdata } from './userdata.ts'

/** Of four octets each. */
const REGISTERS = nft.NFT_REG32_15 - nft.NFT_REG32_00 + 1

/* What makes two rules, or two sets, equal: whatever nft loads from its own listing equals what was listed. */

/** Returns whether two sets are declared alike. */
export function sameDeclaration(a: NftSet, b: NftSet): boolean {
  return (
    sameShape(a, b) &&
    a.size === b.size &&
    a.timeoutMs === b.timeoutMs &&
    sameUserdata(a.userdata, b.userdata)
  )
}

/** Returns whether a set can hold the elements of another one. */
export function sameShape(a: NftSet, b: NftSet): boolean {
  return (
    a.flags === b.flags &&
    a.keyType === b.keyType &&
    a.keyLength === b.keyLength &&
    a.counted === b.counted &&
    a.dataType === b.dataType &&
    // The kernel reports the size of its own structure for verdicts.
    (a.dataLength === b.dataLength || a.dataType === nft.NFT_DATA_VERDICT)
  )
}

export function sameRules(a: readonly Rule[], b: readonly Rule[]): boolean {
  if (a === b) return true
  if (a.length !== b.length) return false
  return a.every((rule, i) => {
    const other = b[i]
    return rule === other || (other !== undefined && ruleKey(rule) === ruleKey(other))
  })
}

/** Returns a key that is equal exactly for equal rules, whatever the order of their objects' fields. */
export function ruleKey({ comment, expressions }: Rule): string {
  return JSON.stringify([comment, withoutDataRegisters(expressions).map(canonical)])
}

/** Returns fields sorted by name, without absent ones; verdicts and lists are the only objects within an expression. */
function canonical(value: object): readonly unknown[] {
  return Object.entries(value)
    .filter(([, field]) => field !== undefined)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, field]) => [name, typeof field === 'object' && field !== null ? canonical(field) : field])
}

/**
 * Returns expressions without the number of a register that holds only the data of `update @map` and the like: nft
 * 1.0.6 takes the register behind the longest key there can be, and later versions the one behind the key.
 */
function withoutDataRegisters(expressions: readonly Expression[]): readonly object[] {
  const data = new Set<number>()
  const others = new Set<number | undefined>()
  for (const [i, each] of expressions.entries()) {
    if (isDataOf(each, expressions[i + 1])) data.add(each.dreg)
    else for (const register of registersOf(each, expressions[i - 1])) others.add(register)
  }
  for (const register of others) if (register !== undefined) data.delete(register)
  if (data.size === 0) return expressions
  return expressions.map((each, i) => {
    if (each.kind === 'dynset' && each.dataReg !== undefined && data.has(each.dataReg))
      return { ...each, dataReg: 'data' }
    return isDataOf(each, expressions[i + 1]) && data.has(each.dreg) ? { ...each, dreg: 'data' } : each
  })
}

/** Returns whether an expression loads the data for the dynamic set that follows. */
function isDataOf(
  load: Expression | undefined,
  next: Expression | undefined,
): load is Extract<Expression, { kind: 'meta' }> {
  return load?.kind === 'meta' && next?.kind === 'dynset' && next.dataReg === load.dreg
}

/** Returns the registers that an expression names, and all those that it fills, or reads more than four octets of. */
function registersOf(
  expression: Expression,
  before: Expression | undefined,
): readonly (number | undefined)[] {
  switch (expression.kind) {
    case 'payload':
      return registersFrom(expression.dreg, expression.length)
    case 'meta':
      return registersFrom(expression.dreg, NAMES.includes(expression.key) ? NAME_LENGTH : 4)
    case 'cmp':
      return registersFrom(expression.sreg, expression.data.length)
    case 'dynset':
      return [expression.keyReg, isDataOf(before, expression) ? undefined : expression.dataReg]
    case 'lookup':
      return [expression.sreg, expression.dreg === 'verdict' ? undefined : expression.dreg]
    case 'bitwise':
      return [
        ...registersFrom(expression.sreg, expression.mask.length),
        ...registersFrom(expression.dreg, expression.mask.length),
      ]
    case 'dnat':
      return [expression.addressReg, expression.portReg]
    default:
      return 'dreg' in expression ? [expression.dreg] : 'sreg' in expression ? [expression.sreg] : []
  }
}

const NAMES: readonly number[] = [nft.NFT_META_IIFNAME, nft.NFT_META_OIFNAME]
const NAME_LENGTH = 16

/** A foreign rule may name any length. */
function registersFrom(first: number, octets: number): readonly number[] {
  return Array.from({ length: Math.min(Math.ceil(octets / 4), REGISTERS) }, (_, i) => first + i)
}
