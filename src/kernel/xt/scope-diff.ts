import { Pauses, type Steps } from '../../base/steps.ts'
import type { NftFamily } from '../nft/state.ts'
import { bytesOf, type Language } from './language.ts'
import { printRule } from './print.ts'
import { readRule } from './read.ts'
import type { XtRule } from './rule.ts'
import type { XtChain, XtJump, XtPlace } from './scope.ts'
import { type ChainContent, type OwnedRule, ScopeDraft } from './scope-draft.ts'
import type { Held, HeldChain, HeldRule } from './scope-held.ts'
import {
  chainKey,
  type IsOurs,
  placeOfTable,
  ruleKey,
  type ScopeOperations,
  tableKey,
} from './scope-operation.ts'
import { misplacedEntries } from './scope-sequence.ts'
import { type Asked, type Common, jumpKey } from './scope-wanted.ts'

const NONE_MISPLACED: ReadonlyMap<OwnedRule, HeldRule> = new Map()

interface CommonChain {
  readonly chain: XtChain
  readonly entries: OwnedRule[]
}

interface ScopeRules {
  readonly language: Language
  readonly isOurs: IsOurs
}

/**
 * Computes the changes from the held to the wanted state; the held state was read or committed. It removes unwanted
 * rules from chains of ours. It keeps rules in other chains, except jumps that a commit of ours added.
 */
export class ScopeDiff {
  readonly #draft = new ScopeDraft()
  readonly #held: Held
  readonly #jumps: readonly XtJump[]
  readonly #common = new Map<string, CommonChain>()
  readonly #wanted = new Set<string>()
  readonly #language: Language
  readonly #isOurs: IsOurs

  constructor(held: Held, { chains, jumps }: Common, { language, isOurs }: ScopeRules) {
    this.#held = held
    this.#jumps = jumps
    this.#language = language
    this.#isOurs = isOurs
    for (const [key, chain] of chains) {
      this.#wanted.add(key)
      this.#common.set(key, { chain, entries: [] })
    }
  }

  /** Adds the chains and entries of one owner. Several owners may want one chain, with the same rules. */
  owner(owner: string, { chains, entries }: Asked): void {
    for (const chain of chains) this.#finishOwn(owner, chain)
    for (const { rule, sequence, ...place } of entries) {
      const key = chainKey(place, place.chain)
      const common = this.#common.get(key)
      if (common === undefined) throw new Error(`${key}: entries in a chain that is not common`)
      common.entries.push({ rule, owner, sequence })
    }
  }

  *finish(): Steps<ScopeOperations> {
    for (const common of this.#common.values()) yield* this.#finishCommon(common)
    const goingJumps = this.#finishJumps()
    this.#finishTables()
    this.#removeStale(goingJumps)
    return yield* this.#draft.finish()
  }

  #chainAt(place: XtPlace, name: string): HeldChain | undefined {
    return this.#held.tables.get(tableKey(place))?.chains.get(name)
  }

  /**
   * Treats a chain of ours that another program made a base chain as missing, and clears it away: jumps cannot lead
   * to it.
   */
  #ownAt({ family, table, name }: XtChain): HeldChain | undefined {
    const there = this.#chainAt({ family, table }, name)
    if (there?.hook === undefined) return there
    this.#draft.clearTheWay({ family, table, chain: name, owner: undefined, rules: there.rules.length })
    return undefined
  }

  #finishOwn(owner: string, chain: XtChain): void {
    const key = chainKey(chain, chain.name)
    if (this.#wanted.has(key)) return
    this.#wanted.add(key)
    const there = this.#ownAt(chain)
    if (there?.written === chain) return
    const rules = there?.rules
    if (rules === undefined || !this.#holds(rules, rulesOf(chain), chain.family))
      this.#draft.write(contentOf(chain, owner, rules?.length))
  }

  #same(there: HeldRule, rule: XtRule, family: NftFamily): boolean {
    return keyOf(there) === this.#keyFor(rule, family) || this.#sameText(there, rule, family)
  }

  /** Returns an empty key for a rule that the kernel cannot hold: the commit reports why. */
  #keyFor(rule: XtRule, family: NftFamily): string {
    return this.#held.kind === 'read' ? (bytesOf(this.#language, rule, family) ?? '') : ruleKey(rule)
  }

  /** Other programs write the same rule in other bytes. A committed rule differs if its key does. */
  #sameText(there: HeldRule, rule: XtRule, family: NftFamily): boolean {
    return 'compiled' in there && this.#textOf(there, family) === printRule(rule, family)
  }

  #textOf(there: HeldRule, family: NftFamily): string {
    return printRule(this.#read(there, family), family)
  }

  #read(there: HeldRule, family: NftFamily): XtRule {
    return 'compiled' in there ? readRule(there.compiled, family, this.#language.nameOfIpset) : there.rule
  }

  #holds(there: readonly HeldRule[], rules: readonly XtRule[], family: NftFamily): boolean {
    if (there.length !== rules.length) return false
    return there.every((each, i) => {
      const rule = rules[i]
      return rule !== undefined && this.#same(each, rule, family)
    })
  }

  #removeRule(place: XtPlace & { readonly chain: string }, there: HeldRule): void {
    if ('compiled' in there) this.#draft.removeRule(place, there, undefined)
    else this.#draft.removeRule(place, there.rule, there.owner)
  }

  *#finishCommon({ chain, entries }: CommonChain): Steps<void> {
    const there = this.#ownAt(chain)
    if (there?.written === chain && entries.length === 0) return
    const held = there?.rules
    if (held === undefined) {
      this.#draft.write(contentWith(chain, entries, undefined))
      return
    }
    const { rules, last, family } = chain
    const sorted = yield* this.#sort(held, { chain, entries })
    if (!this.#holds(sorted.before, rules, family)) {
      this.#draft.write(contentWith(chain, entries, held.length))
      return
    }
    const place = { family, table: chain.table, chain: chain.name }
    const misplaced = this.#misplaced(held, { chain, entries }, sorted.missing)
    const coming = new Set([...sorted.missing, ...misplaced.keys()])
    for (const entry of misplaced.size === 0 ? coming : entries)
      if (coming.has(entry)) this.#addEntry(chain, entry)
    for (const rule of misplaced.values()) this.#removeRule(place, rule)
    const isInTheWay = coming.size > 0 && makesWay(chain)
    for (const rule of isInTheWay ? last : sorted.missingLast)
      this.#draft.append(place, { rule, owner: undefined })
    for (const rule of isInTheWay ? [...sorted.unwanted, ...sorted.last] : sorted.unwanted)
      this.#removeRule(place, rule)
  }

  #addEntry(chain: XtChain, entry: OwnedRule): void {
    const place = { family: chain.family, table: chain.table, chain: chain.name }
    if (placeOfEntries(chain) === 'head') this.#draft.insertEntry(place, entry)
    else this.#draft.append(place, entry)
  }

  /**
   * Sorts the rules of a common chain by their role. A rule counts as one that comes before the entries, or after
   * them, only where no entry is on the wrong side of it.
   */
  *#sort(there: readonly HeldRule[], { chain, entries }: CommonChain): Steps<SortedRules> {
    const { family } = chain
    const wanted = yield* this.#byKey(entries, family)
    const others: number[] = []
    const pauses = new Pauses()
    for (const [i, rule] of there.entries()) {
      if (wanted.get(keyOf(rule))?.pop() === undefined) others.push(i)
      if (pauses.due()) yield
    }
    const missing = [...wanted.values()].flat()
    const strange = this.#match(there, { others, missing }, family)
    const isStrange = new Set(strange)
    const [first, end] = [
      there.findIndex((_, i) => !isStrange.has(i)),
      there.findLastIndex((_, i) => !isStrange.has(i)),
    ]
    const sorted: SortedRules = { before: [], last: [], missingLast: [...chain.last], missing, unwanted: [] }
    for (const i of strange) {
      const rule = there[i]
      if (rule === undefined) continue
      const isBefore = first < 0 || i < first
      if (isBefore && this.#isNext(rule, chain.rules[sorted.before.length], family)) sorted.before.push(rule)
      else if (i > end && this.#isAmong(rule, sorted.missingLast, family)) sorted.last.push(rule)
      else sorted.unwanted.push(rule)
    }
    return sorted
  }

  *#byKey(entries: readonly OwnedRule[], family: NftFamily): Steps<Map<string, OwnedRule[]>> {
    const wanted = new Map<string, OwnedRule[]>()
    const pauses = new Pauses()
    for (const entry of entries) {
      const key = this.#keyFor(entry.rule, family)
      const same = wanted.get(key)
      if (same === undefined) wanted.set(key, [entry])
      else same.push(entry)
      if (pauses.due()) yield
    }
    return wanted
  }

  #isNext(there: HeldRule, rule: XtRule | undefined, family: NftFamily): boolean {
    return rule !== undefined && this.#same(there, rule, family)
  }

  /** Finds a rule in `rules` and removes it there. */
  #isAmong(there: HeldRule, rules: XtRule[], family: NftFamily): boolean {
    const at = rules.findIndex(rule => this.#same(there, rule, family))
    if (at >= 0) rules.splice(at, 1)
    return at >= 0
  }

  /** Removes from `missing` the entries that exist in other bytes; returns the indexes of the rest of `others`. */
  #match(
    there: readonly HeldRule[],
    { others, missing }: { readonly others: readonly number[]; readonly missing: OwnedRule[] },
    family: NftFamily,
  ): readonly number[] {
    if (others.length === 0 || missing.length === 0 || this.#held.kind === 'written') return others
    const byText = new Map<string, OwnedRule[]>()
    for (const entry of missing) {
      const text = printRule(entry.rule, family)
      const same = byText.get(text)
      if (same === undefined) byText.set(text, [entry])
      else same.push(entry)
    }
    const left = others.filter(i => {
      const rule = there[i]
      return rule === undefined || byText.get(this.#textOf(rule, family))?.pop() === undefined
    })
    const still = new Set([...byText.values()].flat())
    missing.splice(0, missing.length, ...missing.filter(entry => still.has(entry)))
    return left
  }

  /** Returns the entries that have to move, each with its current rule. */
  #misplaced(
    there: readonly HeldRule[],
    { chain, entries }: CommonChain,
    missing: readonly OwnedRule[],
  ): ReadonlyMap<OwnedRule, HeldRule> {
    const sequenced = entries.filter(({ sequence }) => sequence !== undefined)
    if (sequenced.length === 0) return NONE_MISPLACED
    const { family } = chain
    const coming = new Set(missing)
    const byKey = new Map(there.map((rule, i) => [keyOf(rule), i]))
    const inKeys = ({ rule }: OwnedRule): number | undefined => byKey.get(this.#keyFor(rule, family))
    const isAllInKeys = sequenced.every(entry => coming.has(entry) || inKeys(entry) !== undefined)
    const byText = new Map(isAllInKeys ? [] : there.map((rule, i) => [this.#textOf(rule, family), i]))
    const positionOf = (entry: OwnedRule): number | undefined =>
      coming.has(entry) ? undefined : (inKeys(entry) ?? byText.get(printRule(entry.rule, family)))
    const misplaced = new Map<OwnedRule, HeldRule>()
    for (const entry of misplacedEntries(sequenced, { at: placeOfEntries(chain), positionOf })) {
      const rule = there[positionOf(entry) ?? -1]
      if (rule !== undefined) misplaced.set(entry, rule)
    }
    return misplaced
  }

  /** Returns the jumps to remove. */
  #finishJumps(): ReadonlySet<string> {
    const going = new Map<string, XtJump>()
    if (this.#held.jumps === this.#jumps) return new Set()
    for (const jump of this.#held.jumps) if (jump.removed) going.set(jumpKey(jump), jump)
    for (const jump of this.#jumps) {
      going.delete(jumpKey(jump))
      const { target } = jump.rule
      if (target?.kind === 'jump') this.#ensureChain(jump, target.chain)
      this.#ensureChain(jump, jump.chain)
      const there = this.#chainAt(jump, jump.chain)
      const { first, rest } = this.#findJumps(there?.rules ?? [], jump)
      if (first === undefined) this.#draft.insertJump(jump)
      for (const rule of rest) this.#draft.removeJump(jump, 'compiled' in rule ? rule : rule.rule)
    }
    for (const jump of going.values()) this.#draft.removeJump(jump, jump.rule)
    return new Set(going.keys())
  }

  /** For a chain that is not ours, only its existence is wanted. */
  #ensureChain(place: XtPlace, chain: string): void {
    if (this.#chainAt(place, chain) === undefined && !this.#wanted.has(chainKey(place, chain)))
      this.#draft.addFoundation(place, chain)
  }

  #findJumps(there: readonly HeldRule[], { rule, family }: XtJump) {
    const key = this.#keyFor(rule, family)
    // Bytes that do not contain the chain's name do not lead to it.
    const target = rule.target !== undefined && 'chain' in rule.target ? rule.target.chain : ''
    const [first, ...rest] = there.filter(
      each => keyOf(each) === key || (keyOf(each).includes(target) && this.#sameText(each, rule, family)),
    )
    return { first, rest }
  }

  #finishTables(): void {
    const places = [...[...this.#common.values()].map(({ chain }) => chain), ...this.#jumps]
    for (const place of places) if (!this.#held.tables.has(tableKey(place))) this.#draft.addTable(place)
  }

  #removeStale(goingJumps: ReadonlySet<string>): void {
    for (const [table, { chains }] of this.#held.tables) {
      const place = placeOfTable(table)
      if (place === undefined) continue
      const stale = [...chains.values()].filter(
        ({ name }) => !this.#wanted.has(chainKey(place, name)) && this.#isOurs(place.table, name),
      )
      if (stale.length === 0) continue
      const needed = this.#neededByOthers(place, chains, goingJumps)
      for (const { name, owner, rules } of stale)
        this.#draft.removeChain({
          ...place,
          chain: name,
          owner,
          rules: rules.length,
          stays: needed.has(name),
        })
    }
  }

  /**
   * Returns the chains that rules of other programs lead to: the kernel does not delete them, so they are only
   * emptied.
   */
  #neededByOthers(
    place: XtPlace,
    chains: ReadonlyMap<string, HeldChain>,
    goingJumps: ReadonlySet<string>,
  ): ReadonlySet<string> {
    const needed = new Set<string>()
    for (const { name: chain, rules } of chains.values()) {
      if (this.#isOurs(place.table, chain)) continue
      for (const each of rules) {
        const rule = this.#read(each, place.family)
        const { target } = rule
        if (target?.kind !== 'jump' && target?.kind !== 'goto') continue
        if (goingJumps.size === 0 || !goingJumps.has(jumpKey({ ...place, chain, rule })))
          needed.add(target.chain)
      }
    }
    return needed
  }
}

function keyOf(there: HeldRule): string {
  return 'compiled' in there ? there.compiled : ruleKey(there.rule)
}

/** Returns whether a new entry needs the rules after the entries to be written again to get its position. */
function makesWay({ rules, last }: XtChain): boolean {
  return rules.length > 0 && last.length > 0
}

/** Returns where entries go: at the head, unless rules have to stay before them. */
function placeOfEntries({ rules }: XtChain): 'head' | 'end' {
  return rules.length === 0 ? 'head' : 'end'
}

/** Returns the complete content of a common chain with its entries. */
function contentWith(
  { family, table, name, rules, last }: XtChain,
  entries: readonly OwnedRule[],
  replaces: number | undefined,
): ChainContent {
  return { family, table, chain: name, owner: undefined, replaces, rules, entries, last }
}

function contentOf(
  { family, table, name, rules, last }: XtChain,
  owner: string,
  replaces: number | undefined,
): ChainContent {
  return { family, table, chain: name, owner, replaces, rules, entries: NO_ENTRIES, last }
}

const NO_ENTRIES: readonly OwnedRule[] = []

function rulesOf({ rules, last }: XtChain): readonly XtRule[] {
  return last.length === 0 ? rules : [...rules, ...last]
}

interface SortedRules {
  /** The rules of XtChain.rules that exist. */
  readonly before: HeldRule[]
  readonly last: HeldRule[]
  readonly missingLast: XtRule[]
  readonly missing: readonly OwnedRule[]
  readonly unwanted: HeldRule[]
}
