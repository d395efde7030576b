import type { Octets } from '../../base/octets.ts'
import type { Steps } from '../../base/steps.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import type { CompiledRule } from '../nft/compiled-rule.ts'
import type { Observed, ObservedChain, ObservedRule } from '../nft/observed.ts'
import type { NftFamily } from '../nft/state.ts'
import { printRule } from './print.ts'
import { readRule } from './read.ts'
import type { XtRule } from './rule.ts'
import type { XtChain, XtEntry, XtJump, XtPlace, XtTableName } from './scope.ts'
import { addEntry, contentOf, contentWith, makesWay, placeOfEntries } from './scope-changes.ts'
import { type OwnedRule, ScopeDraft } from './scope-draft.ts'
import { chainKey, type ScopeOperations, tableKey } from './scope-operation.ts'
import { misplacedEntries } from './scope-sequence.ts'

/** compileRule, with what it needs to know of ipsets. Throws NetlinkError for what cannot be said to the kernel. */
export type CompileRule = (rule: XtRule, family: NftFamily) => CompiledRule

/** How rules are written and read. */
export interface Language {
  readonly compile: CompileRule
  readonly nameOfIpset?: (index: number) => string | undefined
}

/** Undefined for a rule that cannot be said to the kernel. */
export function bytesOf({ compile }: Language, rule: XtRule, family: NftFamily): Octets | undefined {
  try {
    return compile(rule, family).compiled
  } catch (error) {
    if (!(error instanceof NetlinkError)) throw error
    return undefined
  }
}

/** Whose chain it is, by its name. */
export type IsOurs = (table: XtTableName, chain: string) => boolean

const ENTRIES_PER_STEP = 256
const NONE_MISPLACED: ReadonlyMap<OwnedRule, ObservedRule> = new Map()

interface CommonChain {
  readonly chain: XtChain
  readonly entries: OwnedRule[]
}

/**
 * The difference between what the kernel holds and what is wanted. It is told of everything that is wanted, the common
 * chains first. What stands in a chain of ours and is not wanted goes; what stands elsewhere stays, whatever it is.
 */
export class ObservedChanges {
  readonly #draft = new ScopeDraft()
  readonly #common = new Map<string, CommonChain>()
  readonly #wanted = new Set<string>()
  readonly #jumps: XtJump[] = []
  readonly #observed: Observed
  readonly #language: Language
  readonly #isOurs: IsOurs

  constructor(observed: Observed, language: Language, isOurs: IsOurs) {
    this.#observed = observed
    this.#language = language
    this.#isOurs = isOurs
  }

  /** A chain that all owners share, which may hold entries. */
  common(chain: XtChain): void {
    const key = chainKey(chain, chain.name)
    this.#wanted.add(key)
    this.#common.set(key, { chain, entries: [] })
  }

  jump(jump: XtJump): void {
    this.#jumps.push(jump)
  }

  /** A chain that one owner asks for, or several with the same rules. */
  chain(owner: string, chain: XtChain): void {
    const key = chainKey(chain, chain.name)
    if (this.#wanted.has(key)) return
    this.#wanted.add(key)
    const there = this.#ownAt(chain)
    if (there === undefined) this.#draft.write(contentOf(chain, owner, undefined))
    else if (!this.#holds(there.rules, rulesOf(chain), chain.family))
      this.#draft.write(contentOf(chain, owner, there.rules.length))
  }

  entry(owner: string, entry: XtEntry): void {
    const key = chainKey(entry, entry.chain)
    const common = this.#common.get(key)
    if (common === undefined) throw new Error(`${key}: entries in a chain that is not common`)
    common.entries.push({ rule: entry.rule, owner, sequence: entry.sequence })
  }

  *finish(): Steps<ScopeOperations> {
    for (const common of this.#common.values()) yield* this.#finishCommon(common)
    this.#finishJumps()
    this.#finishTables()
    this.#removeStale()
    return yield* this.#draft.finish()
  }

  #chainAt(place: XtPlace, name: string): ObservedChain | undefined {
    return this.#observed.get(tableKey(place))?.chains.get(name)
  }

  /** Nothing can lead to a chain of ours that somebody made a base chain: it is as good as not there, and in the way. */
  #ownAt({ family, table, name }: XtChain): ObservedChain | undefined {
    const there = this.#chainAt({ family, table }, name)
    if (there?.hook === undefined) return there
    this.#draft.clearTheWay({ family, table, chain: name, owner: undefined, rules: there.rules.length })
    return undefined
  }

  #same(there: ObservedRule, rule: XtRule, family: NftFamily): boolean {
    if (there.compiled === this.#bytesOf(rule, family)) return true
    return this.#textOf(there, family) === printRule(rule, family)
  }

  /** Of a rule that the kernel cannot have, no bytes: whoever writes it finds out why. */
  #bytesOf(rule: XtRule, family: NftFamily): Octets {
    return bytesOf(this.#language, rule, family) ?? ''
  }

  #textOf({ compiled }: ObservedRule, family: NftFamily): string {
    return printRule(readRule(compiled, family, this.#language.nameOfIpset), family)
  }

  #holds(there: readonly ObservedRule[], rules: readonly XtRule[], family: NftFamily): boolean {
    if (there.length !== rules.length) return false
    return there.every((each, i) => {
      const rule = rules[i]
      return rule !== undefined && this.#same(each, rule, family)
    })
  }

  *#finishCommon({ chain, entries }: CommonChain): Steps<void> {
    const there = this.#ownAt(chain)
    if (there === undefined || there.rules.length === 0) {
      const isEmpty = chain.rules.length + chain.last.length + entries.length === 0
      if (there === undefined || !isEmpty)
        this.#draft.write(contentWith(chain, entries, there === undefined ? undefined : 0))
      return
    }
    const { rules, last, family } = chain
    const sorted = yield* this.#sort(there.rules, { chain, entries })
    if (!this.#holds(sorted.before, rules, family)) {
      this.#draft.write(contentWith(chain, entries, there.rules.length))
      return
    }
    const place = { family, table: chain.table, chain: chain.name }
    const misplaced = this.#misplaced(there.rules, { chain, entries }, sorted.missing)
    const coming = new Set([...sorted.missing, ...misplaced.keys()])
    for (const entry of misplaced.size === 0 ? coming : entries)
      if (coming.has(entry)) addEntry(this.#draft, chain, entry)
    for (const rule of misplaced.values()) this.#draft.removeRule(place, rule, undefined)
    const isInTheWay = coming.size > 0 && makesWay(chain)
    for (const rule of isInTheWay ? last : sorted.missingLast)
      this.#draft.append(place, { rule, owner: undefined })
    for (const rule of isInTheWay ? [...sorted.unwanted, ...sorted.last] : sorted.unwanted)
      this.#draft.removeRule(place, rule, undefined)
  }

  /**
   * Tells what stands in a common chain by what it is. Rules that come before entries, and those that come behind, are
   * taken for themselves only where no entry is on the wrong side of them.
   */
  *#sort(there: readonly ObservedRule[], { chain, entries }: CommonChain): Steps<SortedRules> {
    const { family } = chain
    const wanted = yield* this.#byBytes(entries, family)
    const others: number[] = []
    for (const [i, { compiled }] of there.entries()) {
      if (wanted.get(compiled)?.pop() === undefined) others.push(i)
      if (i % ENTRIES_PER_STEP === ENTRIES_PER_STEP - 1) yield
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

  *#byBytes(entries: readonly OwnedRule[], family: NftFamily): Steps<Map<Octets, OwnedRule[]>> {
    const wanted = new Map<Octets, OwnedRule[]>()
    let count = 0
    for (const entry of entries) {
      const compiled = this.#bytesOf(entry.rule, family)
      const same = wanted.get(compiled)
      if (same === undefined) wanted.set(compiled, [entry])
      else same.push(entry)
      if (++count % ENTRIES_PER_STEP === 0) yield
    }
    return wanted
  }

  #isNext(there: ObservedRule, rule: XtRule | undefined, family: NftFamily): boolean {
    return rule !== undefined && this.#same(there, rule, family)
  }

  /** Takes it out of `rules`. */
  #isAmong(there: ObservedRule, rules: XtRule[], family: NftFamily): boolean {
    const at = rules.findIndex(rule => this.#same(there, rule, family))
    if (at >= 0) rules.splice(at, 1)
    return at >= 0
  }

  /** Takes from `missing` what is there in other bytes; gives the indexes of the rest of `others`. */
  #match(
    there: readonly ObservedRule[],
    { others, missing }: { readonly others: readonly number[]; readonly missing: OwnedRule[] },
    family: NftFamily,
  ): readonly number[] {
    if (others.length === 0 || missing.length === 0) return others
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

  /** Entries that have to move, each with the rule that it is now. */
  #misplaced(
    there: readonly ObservedRule[],
    { chain, entries }: CommonChain,
    missing: readonly OwnedRule[],
  ): ReadonlyMap<OwnedRule, ObservedRule> {
    const sequenced = entries.filter(({ sequence }) => sequence !== undefined)
    if (sequenced.length === 0) return NONE_MISPLACED
    const { family } = chain
    const coming = new Set(missing)
    const byBytes = new Map(there.map(({ compiled }, i) => [compiled, i]))
    const inBytes = ({ rule }: OwnedRule): number | undefined => byBytes.get(this.#bytesOf(rule, family))
    const isAllInBytes = sequenced.every(entry => coming.has(entry) || inBytes(entry) !== undefined)
    const byText = new Map(isAllInBytes ? [] : there.map((rule, i) => [this.#textOf(rule, family), i]))
    const positionOf = (entry: OwnedRule): number | undefined =>
      coming.has(entry) ? undefined : (inBytes(entry) ?? byText.get(printRule(entry.rule, family)))
    const misplaced = new Map<OwnedRule, ObservedRule>()
    for (const entry of misplacedEntries(sequenced, { at: placeOfEntries(chain), positionOf })) {
      const rule = there[positionOf(entry) ?? -1]
      if (rule !== undefined) misplaced.set(entry, rule)
    }
    return misplaced
  }

  #finishJumps(): void {
    for (const jump of this.#jumps) {
      const { target } = jump.rule
      if (target?.kind === 'jump') this.#ensureChain(jump, target.chain)
      this.#ensureChain(jump, jump.chain)
      const there = this.#chainAt(jump, jump.chain)
      const { first, rest } = this.#findJumps(there?.rules ?? [], jump)
      if (first === undefined) this.#draft.insertJump(jump)
      for (const rule of rest) this.#draft.removeJump(jump, rule)
    }
  }

  /** Of a chain that is not ours nothing is wanted but that it is there. */
  #ensureChain(place: XtPlace, chain: string): void {
    if (this.#chainAt(place, chain) === undefined && !this.#wanted.has(chainKey(place, chain)))
      this.#draft.addFoundation(place, chain)
  }

  #findJumps(there: readonly ObservedRule[], { rule, family }: XtJump) {
    const compiled = this.#bytesOf(rule, family)
    const text = printRule(rule, family)
    // What does not name the chain in its bytes does not lead to it.
    const target = rule.target !== undefined && 'chain' in rule.target ? rule.target.chain : ''
    const [first, ...rest] = there.filter(
      each =>
        each.compiled === compiled || (each.compiled.includes(target) && this.#textOf(each, family) === text),
    )
    return { first, rest }
  }

  #finishTables(): void {
    const places = [...[...this.#common.values()].map(({ chain }) => chain), ...this.#jumps]
    for (const place of places) if (!this.#observed.has(tableKey(place))) this.#draft.addTable(place)
  }

  #removeStale(): void {
    for (const [table, { chains }] of this.#observed) {
      const place = placeOfTable(table)
      if (place === undefined) continue
      const stale = [...chains.values()].filter(
        ({ name }) => this.#isOurs(place.table, name) && !this.#wanted.has(chainKey(place, name)),
      )
      if (stale.length === 0) continue
      const needed = this.#neededByOthers(place, chains)
      for (const { name, rules } of stale)
        this.#draft.removeChain({
          ...place,
          chain: name,
          owner: undefined,
          rules: rules.length,
          stays: needed.has(name),
        })
    }
  }

  /** Chains that rules of others lead to: the kernel lets none of them go, so that they are only emptied. */
  #neededByOthers(place: XtPlace, chains: ReadonlyMap<string, ObservedChain>): ReadonlySet<string> {
    const needed = new Set<string>()
    for (const { name, rules } of chains.values()) {
      if (this.#isOurs(place.table, name)) continue
      for (const { compiled } of rules) {
        const { target } = readRule(compiled, place.family, this.#language.nameOfIpset)
        if (target?.kind === 'jump' || target?.kind === 'goto') needed.add(target.chain)
      }
    }
    return needed
  }
}

function rulesOf({ rules, last }: XtChain): readonly XtRule[] {
  return last.length === 0 ? rules : [...rules, ...last]
}

interface SortedRules {
  /** Those that XtChain.rules asks for, as far as they are there. */
  readonly before: ObservedRule[]
  readonly last: ObservedRule[]
  readonly missingLast: XtRule[]
  readonly missing: readonly OwnedRule[]
  readonly unwanted: ObservedRule[]
}

const TABLES: Readonly<Record<string, XtTableName>> = { filter: 'filter', nat: 'nat', mangle: 'mangle' }

export function placeOfTable(key: string): XtPlace | undefined {
  const [family, name = ''] = key.split(' ')
  const table = TABLES[name]
  if (table === undefined || (family !== 'ip' && family !== 'ip6')) return undefined
  return { family, table }
}
