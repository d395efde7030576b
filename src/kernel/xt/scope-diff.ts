import { finish, Pauses, type Steps } from '../../base/clock.ts'
import { append } from '../../base/collections.ts'
import type { NftFamily, Observed } from '../nft/state.ts'
import { bytesOf, type RuleCodec } from './compile.ts'
import { printRule } from './print.ts'
import { readRule } from './read.ts'
import { targetChain, type XtRule } from './rule.ts'
import {
  chainKey,
  type IsOurs,
  placeOfTable,
  ruleKey,
  type ScopeOperations,
  tableKey,
  type XtChain,
  type XtJump,
  type XtPlace,
} from './scope.ts'
import { type HeldRule, misplacedEntries, type OwnedRule, ScopeDraft } from './scope-draft.ts'
import {
  type Asked,
  type Common,
  type Held,
  type HeldChain,
  heldInKernel,
  jumpKey,
  NOTHING_COMMON,
} from './scope-held.ts'

const NO_ENTRIES: readonly OwnedRule[] = []

interface CommonChain {
  readonly chain: XtChain
  readonly entries: OwnedRule[]
}

interface ScopeRules {
  readonly codec: RuleCodec
  readonly isOurs: IsOurs
  /**
   * Unwanted chains that rules of other programs lead to stay whole, with the chains that they lead to. Without it,
   * they are emptied.
   */
  readonly keepsUsed?: boolean
}

/**
 * Computes the changes from the held to the wanted state; the held state was read or committed. It removes unwanted
 * rules from chains of ours. It keeps rules in other chains, except those jumps that the held state names as ours.
 */
export class ScopeDiff {
  readonly #draft = new ScopeDraft()
  readonly #held: Held
  readonly #jumps: readonly XtJump[]
  readonly #common = new Map<string, CommonChain>()
  readonly #wanted = new Set<string>()
  readonly #rules: ScopeRules

  constructor(held: Held, { chains, jumps }: Common, rules: ScopeRules) {
    this.#held = held
    this.#jumps = jumps
    this.#rules = rules
    for (const [key, chain] of chains) {
      this.#wanted.add(key)
      this.#common.set(key, { chain, entries: [] })
    }
  }

  /** Adds the chains and entries of one owner. Several owners may want one chain, with the same rules. */
  owner(owner: string, { chains, entries }: Asked): void {
    this.#held.enter?.(owner)
    for (const chain of chains) this.#finishOwn(owner, chain)
    this.#held.leave?.(chains)
    for (const { rule, sequence, ...place } of entries) {
      const key = chainKey(place, place.chain)
      const common = this.#common.get(key)
      if (common === undefined) throw new Error(`${key}: entries in a chain that is not common`)
      common.entries.push({ rule, owner, sequence })
    }
  }

  *finish(): Steps<ScopeOperations> {
    for (const common of this.#common.values()) yield* this.#finishCommon(common)
    const going = this.#finishJumps()
    this.#finishTables()
    this.#removeStale(going)
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
    const { last } = chain
    const wanted = last.length === 0 ? chain.rules : [...chain.rules, ...last]
    if (rules === undefined || !this.#holds(rules, wanted, chain.family))
      this.#draft.write({ chain, owner, entries: NO_ENTRIES, replaces: rules?.length })
  }

  #same(there: HeldRule, rule: XtRule, family: NftFamily): boolean {
    return keyOf(there) === this.#keyFor(rule, family) || this.#sameText(there, rule, family)
  }

  /** Returns an empty key for a rule that the kernel cannot hold: the commit reports why. */
  #keyFor(rule: XtRule, family: NftFamily): string {
    return this.#held.kind === 'read' ? (bytesOf(this.#rules.codec, rule, family) ?? '') : ruleKey(rule)
  }

  /** Other programs write the same rule in other bytes. A committed rule differs if its key does. */
  #sameText(there: HeldRule, rule: XtRule, family: NftFamily): boolean {
    return 'compiled' in there && this.#textOf(there, family) === printRule(rule, family)
  }

  #textOf(there: HeldRule, family: NftFamily): string {
    return printRule(this.#read(there, family), family)
  }

  #read(there: HeldRule, family: NftFamily): XtRule {
    const { nameOfIpset } = this.#rules.codec
    return 'compiled' in there ? readRule(there.compiled, family, nameOfIpset) : there.rule
  }

  #holds(there: readonly HeldRule[], rules: readonly XtRule[], family: NftFamily): boolean {
    if (there.length !== rules.length) return false
    return there.every((each, i) => {
      const rule = rules[i]
      return rule !== undefined && this.#same(each, rule, family)
    })
  }

  *#finishCommon({ chain, entries }: CommonChain): Steps<void> {
    const there = this.#ownAt(chain)
    if (there?.written === chain && entries.length === 0) return
    const held = there?.rules
    const sorted = held && (yield* this.#sort(held, { chain, entries }))
    if (
      held === undefined ||
      sorted === undefined ||
      !this.#holds(sorted.before, chain.rules, chain.family)
    ) {
      this.#draft.write({ chain, owner: undefined, entries, replaces: held?.length })
      return
    }
    const { positions, missing, unwanted } = sorted
    const place = { family: chain.family, table: chain.table, chain: chain.name }
    // Entries go to the head, unless rules have to stay before them.
    const at = chain.rules.length === 0 ? 'head' : 'end'
    const misplaced = misplacedEntries(entries, { at, positionOf: entry => positions.get(entry) })
    const coming = new Set([...missing, ...misplaced])
    for (const entry of entries) {
      if (!coming.has(entry)) continue
      if (at === 'head') this.#draft.insertEntry(place, entry)
      else this.#draft.append(place, entry)
    }
    const moved = misplaced.flatMap(entry => held[positions.get(entry) ?? -1] ?? [])
    // An entry at the end gets before the last rules only if these are written again behind it.
    const isInTheWay = coming.size > 0 && at === 'end'
    for (const rule of isInTheWay ? chain.last : sorted.missingLast)
      this.#draft.append(place, { rule, owner: undefined })
    for (const rule of [...moved, ...unwanted, ...(isInTheWay ? sorted.last : [])])
      this.#draft.removeRule(place, rule)
  }

  /**
   * Sorts the rules of a common chain by their role. A rule counts as one that comes before the entries, or after
   * them, only where no entry is on the wrong side of it.
   */
  *#sort(held: readonly HeldRule[], { chain, entries }: CommonChain): Steps<SortedRules> {
    const { family } = chain
    const { positions, missing, others } = yield* this.#findEntries(held, entries, family)
    const isOther = new Set(others)
    const first = held.findIndex((_, i) => !isOther.has(i))
    const end = held.findLastIndex((_, i) => !isOther.has(i))
    const [before, last, unwanted]: [HeldRule[], HeldRule[], HeldRule[]] = [[], [], []]
    const missingLast = [...chain.last]
    for (const i of others) {
      const rule = held[i]
      if (rule === undefined) continue
      const next = first < 0 || i < first ? chain.rules[before.length] : undefined
      if (next !== undefined && this.#same(rule, next, family)) before.push(rule)
      else if (i > end && this.#takeFrom(missingLast, rule, family)) last.push(rule)
      else unwanted.push(rule)
    }
    return { before, last, missingLast, positions, missing, unwanted }
  }

  /** Finds each entry among the rules: by its key, or by its text where another program wrote it in other bytes. */
  *#findEntries(
    held: readonly HeldRule[],
    entries: readonly OwnedRule[],
    family: NftFamily,
  ): Steps<FoundEntries> {
    const byKey = new Map<string, OwnedRule[]>()
    const pauses = new Pauses()
    for (const entry of entries) {
      append(byKey, this.#keyFor(entry.rule, family), entry)
      if (pauses.due()) yield
    }
    const positions = new Map<OwnedRule, number>()
    const take = (from: ReadonlyMap<string, OwnedRule[]>, key: string, i: number): boolean => {
      const entry = from.get(key)?.pop()
      if (entry?.sequence !== undefined) positions.set(entry, i)
      return entry !== undefined
    }
    const others: number[] = []
    for (const [i, rule] of held.entries()) {
      if (!take(byKey, keyOf(rule), i)) others.push(i)
      if (pauses.due()) yield
    }
    const missing = [...byKey.values()].flat()
    // A committed rule differs if its key does.
    if (missing.length === 0 || this.#held.kind === 'written') return { positions, missing, others }
    const byText = new Map<string, OwnedRule[]>()
    for (const entry of missing) append(byText, printRule(entry.rule, family), entry)
    const left = others.filter(i => {
      const rule = held[i]
      return rule === undefined || !take(byText, this.#textOf(rule, family), i)
    })
    return { positions, missing: [...byText.values()].flat(), others: left }
  }

  /** Returns whether the rule is in `rules`, and removes it there. */
  #takeFrom(rules: XtRule[], there: HeldRule, family: NftFamily): boolean {
    const at = rules.findIndex(rule => this.#same(there, rule, family))
    if (at >= 0) rules.splice(at, 1)
    return at >= 0
  }

  /** Returns the rules that it removes. */
  #finishJumps(): ReadonlySet<HeldRule> {
    const going = new Set<HeldRule>()
    if (this.#held.kind === 'written' && this.#held.jumps === this.#jumps) return going
    const remove = (jump: XtJump, rules: readonly HeldRule[]): void => {
      for (const rule of rules) {
        going.add(rule)
        this.#draft.removeJump(jump, rule)
      }
    }
    const unwanted = new Map<string, XtJump>()
    for (const jump of this.#held.jumps) if (jump.removed) unwanted.set(jumpKey(jump), jump)
    for (const jump of this.#jumps) {
      unwanted.delete(jumpKey(jump))
      if (jump.rule.target?.kind === 'jump') this.#ensureChain(jump, jump.rule.target.chain)
      this.#ensureChain(jump, jump.chain)
      const [first, ...rest] = this.#findJump(jump)
      if (first === undefined) this.#draft.insertJump(jump)
      remove(jump, rest)
    }
    for (const jump of unwanted.values()) remove(jump, this.#findJump(jump))
    return going
  }

  /** For a chain that is not ours, only its existence is wanted. */
  #ensureChain(place: XtPlace, chain: string): void {
    if (this.#chainAt(place, chain) === undefined && !this.#wanted.has(chainKey(place, chain)))
      this.#draft.addFoundation(place, chain)
  }

  #findJump({ family, table, chain, rule }: XtJump): readonly HeldRule[] {
    const there = this.#chainAt({ family, table }, chain)?.rules ?? []
    const key = this.#keyFor(rule, family)
    // Bytes that do not contain the chain's name do not lead to it.
    const target = targetChain(rule) ?? ''
    return there.filter(
      each => keyOf(each) === key || (keyOf(each).includes(target) && this.#sameText(each, rule, family)),
    )
  }

  #finishTables(): void {
    const places = [...[...this.#common.values()].map(({ chain }) => chain), ...this.#jumps]
    for (const place of places) if (!this.#held.tables.has(tableKey(place))) this.#draft.addTable(place)
  }

  #removeStale(going: ReadonlySet<HeldRule>): void {
    const { isOurs, keepsUsed } = this.#rules
    for (const [table, { chains }] of this.#held.tables) {
      const place = placeOfTable(table)
      if (place === undefined) continue
      const stale = [...chains.values()].filter(
        ({ name }) => !this.#wanted.has(chainKey(place, name)) && isOurs(place.table, name),
      )
      if (stale.length === 0) continue
      const used = this.#usedByOthers(place, chains, going)
      if (keepsUsed) this.#spread(used, place, chains)
      // The kernel does not delete a chain that a rule leads to.
      for (const { name, owner, rules } of stale)
        if (!keepsUsed || !used.has(name))
          this.#draft.removeChain({
            ...place,
            chain: name,
            owner,
            rules: rules.length,
            stays: used.has(name),
          })
    }
  }

  /** Returns the names of the chains that rules of other programs lead to. */
  #usedByOthers(place: XtPlace, chains: HeldChains, going: ReadonlySet<HeldRule>): Set<string> {
    const used = new Set<string>()
    for (const { name, rules } of chains.values()) {
      if (this.#rules.isOurs(place.table, name)) continue
      for (const rule of rules) {
        const target = going.has(rule) ? undefined : targetChain(this.#read(rule, place.family))
        if (target !== undefined) used.add(target)
      }
    }
    return used
  }

  /** Adds the chains that rules of these chains of ours lead to. */
  #spread(used: Set<string>, { table, family }: XtPlace, chains: HeldChains): void {
    for (const name of used) {
      if (!this.#rules.isOurs(table, name)) continue
      for (const rule of chains.get(name)?.rules ?? []) {
        const target = targetChain(this.#read(rule, family))
        if (target !== undefined) used.add(target)
      }
    }
  }
}

type HeldChains = ReadonlyMap<string, HeldChain>

function keyOf(there: HeldRule): string {
  return 'compiled' in there ? there.compiled : ruleKey(there.rule)
}

interface FoundEntries {
  /** The positions of those entries that belong to a sequence. */
  readonly positions: ReadonlyMap<OwnedRule, number>
  readonly missing: readonly OwnedRule[]
  /** The positions of all other rules. */
  readonly others: readonly number[]
}

interface SortedRules extends Omit<FoundEntries, 'others'> {
  /** The rules of XtChain.rules that exist. */
  readonly before: readonly HeldRule[]
  readonly last: readonly HeldRule[]
  readonly missingLast: readonly XtRule[]
  readonly unwanted: readonly HeldRule[]
}

interface Owned extends Pick<ScopeRules, 'isOurs'> {
  /** Rules of ours in chains of other programs. Those that are never removed stay. */
  readonly jumps: readonly XtJump[]
}

/** Returns the difference from what was read to nothing of ours. */
export function removalOf(observed: Observed, { isOurs, jumps }: Owned, codec: RuleCodec): ScopeOperations {
  const rules = { codec, isOurs, keepsUsed: true }
  return finish(new ScopeDiff(heldInKernel(observed, jumps), NOTHING_COMMON, rules).finish())
}
