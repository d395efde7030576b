import { finish, Pauses, type Steps } from '../../base/clock.ts'
import { readU32host } from '../../base/octets.ts'
import {
  IPS_DST_NAT,
  IPS_SRC_NAT,
  NF_INET_LOCAL_IN,
  NF_INET_POST_ROUTING,
  NF_IP_PRI_NAT_DST,
  NF_IP_PRI_NAT_SRC,
  NFT_CT_STATUS,
  NFT_META_IIFNAME,
  NFT_META_OIFNAME,
  NFT_META_PRIORITY,
} from '../nft/constants.ts'
import {
  COMMENT_MATCH,
  type Expression,
  hasEffect,
  isLogOnly,
  isNote,
  type Rule,
  targetsOf,
} from '../nft/expression.ts'
import type { AnyTable, Chain, NftFamily } from '../nft/state.ts'
import { decodeExtension, type ExtensionContext } from './extensions.ts'
import type { IpvsClasses } from './ipvs.ts'
import type { Compared, RulePlace } from './noting.ts'
import {
  type CompiledRule,
  comparedIn,
  comparesBits,
  guardOf,
  indexOf,
  type RuleIndex,
} from './rule-index.ts'
import { ClassSets, type MemoryLog } from './sets.ts'

export interface CompiledChain {
  readonly name: string
  readonly rules: readonly CompiledRule[]
  readonly table: CompiledTable
  readonly isOwn: boolean
  /** The chain divides packets by bits of their destination. */
  readonly comparesBits: boolean
  /** Absent for a short chain. */
  readonly index: RuleIndex | undefined
  /** What tells the packets apart that meet a rule: the same for later versions of the chain. */
  readonly compared: readonly Compared[]
}

export interface CompiledTable {
  readonly name: string
  /** Some rules are ours. */
  readonly isOwn: boolean
  readonly sets: ClassSets
  readonly chains: Map<string, CompiledChain>
  /** Of the packets that are followed, also in a table of `inet`. */
  readonly family: NftFamily
  readonly isOwnChain: (chain: string) => boolean
  /** Undefined where IPVS and ipsets were not read. */
  readonly ipvs?: IpvsClasses | undefined
  /** Versions of a chain share their rules. */
  readonly known: WeakMap<Rule, Omit<CompiledRule, 'place'>>
}

/** Which rules are ours: the evaluator must know every expression of them. */
export interface Ownership {
  /** The name of our own table, which holds no other rules. */
  readonly ownName: string
  /** Whether a chain is ours in a table that all programs share. Jumps to it from chains at hooks are, too. */
  readonly owns?: ((table: string, chain: string) => boolean) | undefined
}

/** The kernel calls all nat chains where its own translation stands; among them their priorities count. */
export function orderOf({ hook }: Chain): readonly number[] {
  if (hook === undefined) return [0, 0]
  if (hook.type !== 'nat') return [hook.priority, 0]
  const isSource = hook.hooknum === NF_INET_POST_ROUTING || hook.hooknum === NF_INET_LOCAL_IN
  return [isSource ? NF_IP_PRI_NAT_SRC : NF_IP_PRI_NAT_DST, hook.priority]
}

export interface CompileOptions extends Ownership {
  readonly family: NftFamily
  readonly ipvs?: IpvsClasses | undefined
  readonly log: MemoryLog
  /** Chains are compiled when a packet enters them. */
  readonly isLazy?: boolean
}

/** Compiles chains when packets enter them: a single packet meets few. */
class LazyChains extends Map<string, CompiledChain> {
  readonly #compile: (name: string) => CompiledChain | undefined

  constructor(compile: LazyChains['get']) {
    super()
    this.#compile = compile
  }

  override get(name: string): CompiledChain | undefined {
    const known = super.get(name) ?? this.#compile(name)
    if (known !== undefined) this.set(name, known)
    return known
  }
}

/** Compiles the chains of a table. */
export function* compileTable(
  table: AnyTable,
  { ownName, owns, log, family, ipvs, isLazy = false }: CompileOptions,
): Steps<CompiledTable> {
  const name = `${table.family} ${table.name}`
  const isOfFamily = table.family === family
  const isWhole = isOfFamily && table.name === ownName
  const isOwnChain = (chain: string) => isWhole || (isOfFamily && owns?.(table.name, chain) === true)
  const isOwn = isWhole || [...table.chains.keys()].some(isOwnChain)
  const chains = !isLazy
    ? new Map<string, CompiledChain>()
    : new LazyChains(its => {
        const chain = table.chains.get(its)
        return chain && finish(compileInSteps(chain, compiled))
      })
  const sets = new ClassSets(
    { name, sets: table.sets, elements: table.elements.values(), isOwn: isWhole },
    log,
  )
  const compiled: CompiledTable = {
    name,
    isOwn,
    sets,
    chains,
    family,
    isOwnChain,
    ipvs,
    known: new WeakMap(),
  }
  if (isLazy) return compiled
  const pauses = new Pauses()
  for (const chain of table.chains.values()) {
    chains.set(chain.name, yield* compileInSteps(chain, compiled))
    if (pauses.due(RULE_COST * (1 + (chain.rules.length % RULES_A_STEP)))) yield
  }
  return compiled
}

/** So many rules are compiled in one step of 2,048 items. */
const RULES_A_STEP = 128
const RULE_COST = 16

/** Compiles a chain, or a later version of one. Services fill single chains with thousands of rules. */
export function* compileInSteps(
  chain: Chain,
  table: CompiledTable,
  before?: CompiledChain,
): Steps<CompiledChain> {
  const { family, isOwnChain, ipvs, known } = table
  const isOwn = isOwnChain(chain.name)
  const rules: CompiledRule[] = []
  for (const [index, rule] of chain.rules.entries()) {
    if (index % RULES_A_STEP === RULES_A_STEP - 1) yield
    const isJump = chain.hook !== undefined && targetsOf(rule.expressions).some(isOwnChain)
    const place = { table: table.name, chain: chain.name, rule: index + 1, isOwn: isOwn || isJump }
    if (!hasEffect(rule) && (!place.isOwn || isLogOnly(rule))) continue
    const its = known.get(rule) ?? compileExpressions(rule, { family, isOwn: place.isOwn, ipvs })
    known.set(rule, its)
    rules.push({ ...its, place })
  }
  return {
    name: chain.name,
    rules,
    table,
    isOwn,
    comparesBits: comparesBits(rules, family),
    index: indexOf(rules),
    compared: before?.compared ?? comparedIn(rules),
  }
}

function compileExpressions(rule: Rule, context: ExtensionContext): Omit<CompiledRule, 'place'> {
  const expressions = withoutNotes(knownStatus(wholeNames(rule))).map(each => decodeExtension(each, context))
  return { expressions, guard: guardOf(expressions, context.family) }
}

/** The kernel fills the name of a device with zeros: a comparison with its end is one with all of it. */
function wholeNames({ expressions, comment }: Rule): Rule {
  let named: number | undefined
  const whole = expressions.map((each): Expression => {
    const isName = each.kind === 'meta' && NAMES.includes(each.key)
    if (isName) named = each.dreg
    else if ('dreg' in each && each.dreg === named) named = undefined
    if (each.kind !== 'cmp' || each.sreg !== named || !each.data.endsWith('\0')) return each
    return { ...each, data: each.data.padEnd(NAME_LENGTH, '\0') }
  })
  return { expressions: whole, comment }
}

/** Of the status of a connection, the evaluator knows the bits of its translations. */
function knownStatus({ expressions, comment }: Rule): Rule {
  const known = expressions.map((each, index): Expression => {
    if (each.kind !== 'ct' || each.key !== NFT_CT_STATUS) return each
    const next = expressions[index + 1]
    const isMasked = next?.kind === 'bitwise' && next.sreg === each.dreg && next.dreg === each.dreg
    if (isMasked && (readU32host(next.mask) & ~(IPS_SRC_NAT | IPS_DST_NAT)) === 0) return each
    return { kind: 'unknown', name: 'ct status beyond snat and dnat', data: '' }
  })
  return { expressions: known, comment }
}

const NAMES: readonly number[] = [NFT_META_IIFNAME, NFT_META_OIFNAME]
const NAME_LENGTH = 16

/** Comments match every packet. Those of all rules go where a cluster becomes large. */
function withoutNotes({ expressions }: Rule): readonly Expression[] {
  return expressions.filter(each => !isNote(each) && !(each.kind === 'match' && each.name === COMMENT_MATCH))
}

export function setsPriority(expression: CompiledRule['expressions'][number]): boolean {
  return expression.kind === 'meta-set' && expression.key === NFT_META_PRIORITY
}

export function placeText({ table, chain, rule }: RulePlace): string {
  return rule === undefined ? `${table} ${chain}` : `${table} ${chain}, rule ${rule}`
}
