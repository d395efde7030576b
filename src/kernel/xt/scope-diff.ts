import { append } from '../../base/collections.ts'
import type { Octets } from '../../base/octets.ts'
import type { NftFamily, Observed, ObservedChain, ObservedRule } from '../nft/state.ts'
import { bytesOf, type RuleCodec } from './compile.ts'
import { readRule } from './read.ts'
import { targetChain, type XtRule } from './rule.ts'
import {
  chainKey,
  type IsOurs,
  placeOfTable,
  type ScopeOperations,
  tableKey,
  type XtChain,
  type XtJump,
  type XtPlace,
} from './scope.ts'
import { type ChainContent, type OwnedEntry, ScopeDraft } from './scope-draft.ts'

interface ScopeRules {
  readonly codec: RuleCodec
  readonly isOurs: IsOurs
  /** Keeps unwanted chains to which rules of other programs lead, and what they lead to. Otherwise they are emptied. */
  readonly keepsUsed?: boolean
}

/**
 * Computes the changes from what was read to the wanted state. A chain of ours that differs is written anew, and one
 * that is not wanted is removed. Rules in other chains stay, except jumps of ours.
 */
export class ScopeDiff {
  readonly #draft = new ScopeDraft()
  readonly #observed: Observed
  readonly #wanted = new Set<string>()
  /** The tables of what is written, by tableKey. */
  readonly #places = new Map<string, XtPlace>()
  readonly #rules: ScopeRules

  constructor(observed: Observed, rules: ScopeRules) {
    this.#observed = observed
    this.#rules = rules
  }

  /** Adds a wanted chain. Several owners may want one chain, with the same rules. */
  want(content: ChainContent): void {
    const { chain, owner, entries } = content
    const key = chainKey(chain, chain.name)
    if (this.#wanted.has(key)) return
    this.#wanted.add(key)
    const there = this.#ownAt(chain)
    if (there !== undefined && this.#holds(there.rules, content)) return
    this.#places.set(tableKey(chain), chain)
    this.#draft.write({ chain, owner, entries, replaces: there?.rules.length })
  }

  /** Ends the diff with the wanted jumps, and with those to remove. */
  finish(jumps: readonly XtJump[], unwanted: readonly XtJump[] = []): ScopeOperations {
    const going = new Set<ObservedRule>()
    const remove = (jump: XtJump, rules: readonly ObservedRule[]): void => {
      for (const rule of rules) {
        going.add(rule)
        this.#draft.removeJump(jump, rule)
      }
    }
    for (const jump of jumps) {
      this.#places.set(tableKey(jump), jump)
      if (jump.rule.target?.kind === 'jump') this.#ensureChain(jump, jump.rule.target.chain)
      this.#ensureChain(jump, jump.chain)
      const [first, ...rest] = this.#findJump(jump)
      if (first === undefined) this.#draft.insertJump(jump)
      remove(jump, rest)
    }
    for (const jump of unwanted) remove(jump, this.#findJump(jump))
    for (const [key, place] of this.#places) if (!this.#observed.has(key)) this.#draft.addTable(place)
    this.#removeStale(going)
    return this.#draft.finish()
  }

  #chainAt(place: XtPlace, name: string): ObservedChain | undefined {
    return this.#observed.get(tableKey(place))?.chains.get(name)
  }

  /** Treats a chain of ours that another program made a base chain as missing: jumps cannot lead to it. */
  #ownAt({ family, table, name }: XtChain): ObservedChain | undefined {
    const there = this.#chainAt({ family, table }, name)
    if (there?.hook === undefined) return there
    this.#draft.clearTheWay({ family, table, chain: name, owner: undefined, rules: there.rules.length })
    return undefined
  }

  #holds(there: readonly ObservedRule[], { chain, entries }: ChainContent): boolean {
    const { rules, last, family } = chain
    if (there.length !== rules.length + entries.length + last.length) return false
    if (!rules.every((rule, i) => this.#isSame(there[i], this.#bytesOf(rule, family), family))) return false
    if (there.length === rules.length) return true
    const end = there.length - last.length
    return (
      this.#holdsInAnyOrder(there.slice(rules.length, end), entries, family) &&
      this.#holdsInAnyOrder(
        there.slice(end),
        last.map(rule => ({ rule })),
        family,
      )
    )
  }

  /** Returns whether the rules are these, in any order but for sequences. There are as many of both. */
  #holdsInAnyOrder(
    there: readonly ObservedRule[],
    wanted: readonly (Pick<OwnedEntry, 'rule'> & Partial<OwnedEntry>)[],
    family: NftFamily,
  ): boolean {
    const indexes = new Map<Octets, number[]>()
    for (const [i, { rule }] of wanted.entries()) append(indexes, this.#bytesOf(rule, family), i)
    const latest = new Map<string, number>()
    return there.every(rule => {
      const index =
        indexes.get(rule.compiled)?.shift() ?? indexes.get(this.#normalized(rule, family))?.shift()
      if (index === undefined) return false
      const { owner, sequence } = wanted[index] ?? {}
      if (sequence === undefined) return true
      const key = `${owner} ${sequence}`
      const isNext = index > (latest.get(key) ?? -1)
      latest.set(key, index)
      return isNext
    })
  }

  /** Returns empty bytes for a rule that the kernel cannot hold: the commit reports why. */
  #bytesOf(rule: XtRule, family: NftFamily): Octets {
    return bytesOf(this.#rules.codec, rule, family) ?? ''
  }

  #isSame(there: ObservedRule | undefined, bytes: Octets, family: NftFamily): boolean {
    return there !== undefined && (there.compiled === bytes || this.#normalized(there, family) === bytes)
  }

  /** Compiles what another program may have written in other bytes: the same rule gets the same bytes. */
  #normalized(there: ObservedRule, family: NftFamily): Octets {
    return this.#bytesOf(this.#read(there, family), family) || there.compiled
  }

  #read({ compiled }: ObservedRule, family: NftFamily): XtRule {
    return readRule(compiled, family, this.#rules.codec.nameOfIpset)
  }

  /** Creates a chain of another program if it is missing; its content stays. */
  #ensureChain(place: XtPlace, chain: string): void {
    if (this.#chainAt(place, chain) === undefined && !this.#wanted.has(chainKey(place, chain)))
      this.#draft.addFoundation(place, chain)
  }

  #findJump({ chain, rule, ...place }: XtJump): readonly ObservedRule[] {
    const bytes = this.#bytesOf(rule, place.family)
    // Bytes that do not contain the chain's name do not lead to it.
    const target = targetChain(rule) ?? ''
    return (this.#chainAt(place, chain)?.rules ?? []).filter(
      each => each.compiled.includes(target) && this.#isSame(each, bytes, place.family),
    )
  }

  #removeStale(going: ReadonlySet<ObservedRule>): void {
    const { isOurs, keepsUsed } = this.#rules
    for (const [table, { chains }] of this.#observed) {
      const place = placeOfTable(table)
      if (place === undefined) continue
      const stale = [...chains.values()].filter(
        ({ name }) => !this.#wanted.has(chainKey(place, name)) && isOurs(place.table, name),
      )
      if (stale.length === 0) continue
      const used = this.#usedByOthers(place, chains, going)
      if (keepsUsed) this.#spread(used, place, chains)
      // The kernel does not delete a chain that a rule leads to.
      for (const { name, rules } of stale) {
        const stays = used.has(name)
        const gone = { ...place, chain: name, owner: undefined, rules: rules.length, stays }
        if (!keepsUsed || !stays) this.#draft.removeChain(gone)
      }
    }
  }

  /** Returns the names of the chains that rules of other programs lead to. */
  #usedByOthers(place: XtPlace, chains: ObservedChains, going: ReadonlySet<ObservedRule>): Set<string> {
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
  #spread(used: Set<string>, { table, family }: XtPlace, chains: ObservedChains): void {
    for (const name of used) {
      if (!this.#rules.isOurs(table, name)) continue
      for (const rule of chains.get(name)?.rules ?? []) {
        const target = targetChain(this.#read(rule, family))
        if (target !== undefined) used.add(target)
      }
    }
  }
}

type ObservedChains = ReadonlyMap<string, ObservedChain>

interface Owned extends Pick<ScopeRules, 'isOurs'> {
  /** Rules of ours in chains of other programs. Those that are never removed stay. */
  readonly jumps: readonly XtJump[]
}

/** Returns the difference from what was read to nothing of ours. */
export function removalOf(observed: Observed, { isOurs, jumps }: Owned, codec: RuleCodec): ScopeOperations {
  const diff = new ScopeDiff(observed, { codec, isOurs, keepsUsed: true })
  return diff.finish(
    [],
    jumps.filter(({ removed }) => removed),
  )
}
