import { type Octets, readU32be } from '../../base/octets.ts'
import * as nft from '../nft/constants.ts'
import { ipsetMatchOf, type NameOfIpset } from '../nft/ipset-match.ts'
import type { NftFamily } from '../nft/state.ts'
import { attributesOf, numberIn, type RawExpression, splitExpressions } from './expressions.ts'
import { readMatch } from './match.ts'
import { conditionAt, fieldOf } from './read-native.ts'
import type { XtMatch, XtRule, XtTarget, XtUnknown } from './rule.ts'
import { textOfOctets } from './struct.ts'
import { readTarget } from './target.ts'

/**
 * Decodes the rule of any program from its bytes. Parts without a value type stay in their position as `unknown`;
 * nothing throws. A set without a known name is called by its number, `[ipset 7]`.
 */
export function readRule(compiled: Octets, family: NftFamily, nameOfIpset?: NameOfIpset): XtRule {
  return new RuleReader(splitExpressions(compiled), family, nameOfIpset).read()
}

/** Fields of a rule under construction. */
type Draft = { -readonly [K in Exclude<keyof XtRule, 'matches'>]?: XtRule[K] } & {
  readonly matches: XtMatch[]
}

/** Matches with side effects in the kernel, or unknown ones: their order matters. */
const IMPURE: readonly XtMatch['kind'][] = ['statistic', 'recent', 'nfacct', 'unknown']

class RuleReader {
  readonly #expressions: readonly RawExpression[]
  readonly #family: NftFamily
  readonly #nameOfIpset: NameOfIpset | undefined
  readonly #draft: Draft = { matches: [] }
  #target: XtTarget | undefined
  #counted = false

  constructor(
    expressions: readonly RawExpression[],
    family: NftFamily,
    nameOfIpset: NameOfIpset | undefined,
  ) {
    this.#expressions = expressions
    this.#family = family
    this.#nameOfIpset = nameOfIpset
  }

  read(): XtRule {
    let at = 0
    while (at < this.#expressions.length) at += this.#take(at)
    return { ...this.#draft, target: this.#target }
  }

  /** Decodes the expressions at `at`; returns how many it used. */
  #take(at: number): number {
    const one = this.#expressions[at]
    if (one === undefined) return 1
    if (this.#takeWhole(one)) return 1
    const condition = conditionAt(this.#expressions, at)
    const field = condition === undefined ? undefined : fieldOf(condition, this.#draft, this.#family)
    if (condition !== undefined && field !== undefined && this.#merge(field)) return condition.length
    this.#draft.matches.push({ kind: 'unknown', name: one.name, revision: 0, info: one.data, native: true })
    return 1
  }

  /** Decodes an expression that has a meaning by itself. Nothing may follow the target. */
  #takeWhole(one: RawExpression): boolean {
    if (this.#target !== undefined) return false
    if (one.name === 'match') return this.#addMatch(this.#matchOf(one))
    if (one.name === 'counter') return this.#count()
    this.#target = one.name === 'target' ? this.#targetOf(one) : verdictOf(one)
    return this.#target !== undefined
  }

  #addMatch(match: XtMatch | undefined): boolean {
    if (match !== undefined) this.#draft.matches.push(match)
    return match !== undefined
  }

  #count(): boolean {
    if (this.#counted) return false
    this.#counted = true
    return true
  }

  #matchOf(one: RawExpression): XtMatch | undefined {
    const unknown = compatOf(one)
    if (unknown === undefined) return undefined
    const set = ipsetMatchOf(unknown, this.#nameOfIpset)
    if (set !== undefined) return { ...set, kind: 'set' }
    return readMatch(unknown, this.#family) ?? unknown
  }

  #targetOf(one: RawExpression): XtTarget | undefined {
    const unknown = compatOf(one)
    return unknown === undefined ? undefined : (readTarget(unknown, this.#family) ?? unknown)
  }

  /** Returns false where the position changes the meaning: after a match that counts or remembers packets. */
  #merge(field: NonNullable<ReturnType<typeof fieldOf>>): boolean {
    const { matches } = this.#draft
    if ('match' in field) {
      if (field.replaces !== undefined) matches.pop()
      matches.push(field.match)
      return true
    }
    if (matches.some(({ kind }) => IMPURE.includes(kind))) return false
    Object.assign(this.#draft, field)
    return true
  }
}

/** Decodes the match or target of an nft_compat expression; NFTA_TARGET_* have the numbers of NFTA_MATCH_*. */
function compatOf({ data }: RawExpression): XtUnknown | undefined {
  const attributes = attributesOf(data)
  const name = attributes?.[nft.NFTA_MATCH_NAME]
  const revision = attributes === undefined ? undefined : numberIn(attributes, nft.NFTA_MATCH_REV)
  const info = attributes?.[nft.NFTA_MATCH_INFO]
  if (name === undefined || revision === undefined || info === undefined || !name.endsWith('\0'))
    return undefined
  return { kind: 'unknown', name: name.slice(0, -1), revision, info }
}

function verdictOf({ name, data }: RawExpression): XtTarget | undefined {
  const attributes = name === 'immediate' ? attributesOf(data) : undefined
  if (attributes === undefined) return undefined
  const nest = attributes[nft.NFTA_IMMEDIATE_DATA]
  const verdict = nest === undefined ? undefined : attributesOf(nest)?.[nft.NFTA_DATA_VERDICT]
  const within = verdict === undefined ? undefined : attributesOf(verdict)
  const code = within?.[nft.NFTA_VERDICT_CODE]
  if (numberIn(attributes, nft.NFTA_IMMEDIATE_DREG) !== nft.NFT_REG_VERDICT || code?.length !== 4)
    return undefined
  const to = within?.[nft.NFTA_VERDICT_CHAIN]
  const chain = to?.endsWith('\0') ? textOfOctets(to.slice(0, -1)) : undefined
  return targetOfCode(readU32be(code) | 0, chain)
}

function targetOfCode(code: number, chain: string | undefined): XtTarget | undefined {
  if (code === nft.NFT_JUMP || code === nft.NFT_GOTO)
    return chain === undefined ? undefined : { kind: code === nft.NFT_JUMP ? 'jump' : 'goto', chain }
  if (chain !== undefined) return undefined
  if (code === nft.NF_ACCEPT) return { kind: 'ACCEPT' }
  if (code === nft.NF_DROP) return { kind: 'DROP' }
  return code === nft.NFT_RETURN ? { kind: 'RETURN' } : undefined
}
