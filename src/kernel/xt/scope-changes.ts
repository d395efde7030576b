import type { Steps } from '../../base/steps.ts'
import type { XtChain, XtEntry, XtJump } from './scope.ts'
import { type ChainContent, type OwnedRule, ScopeDraft } from './scope-draft.ts'
import { chainKey, ruleKey, type ScopeOperations, sameRules } from './scope-operation.ts'
import { misplacedEntries } from './scope-sequence.ts'

/** What one owner asks for, or asked for before. */
export interface Asked {
  readonly chains: readonly XtChain[]
  readonly entries: readonly XtEntry[]
}

/** What all owners share. */
export interface Common {
  /** By chainKey: chains that may hold entries. */
  readonly chains: ReadonlyMap<string, XtChain>
  readonly jumps: readonly XtJump[]
}

/** `before` are the jumps that were asked for until now: of those, what stays when we leave is asked for on and on. */
export function commonOf(
  chains: readonly XtChain[],
  jumps: readonly XtJump[],
  before: readonly XtJump[] = [],
): Common {
  const asked = new Set(jumps.map(jumpKey))
  const staying = before.filter(jump => !jump.removed && !asked.has(jumpKey(jump)))
  return { chains: byKey(chains), jumps: staying.length === 0 ? jumps : [...jumps, ...staying] }
}

function jumpKey(jump: XtJump): string {
  return `${chainKey(jump, jump.chain)} ${ruleKey(jump.rule)}`
}

interface ChainAnew {
  readonly chain: XtChain
  readonly isThere: boolean
  readonly entries: OwnedRule[]
}

/**
 * The difference between what was wanted, and is there, and what is wanted now. It is told of every owner of whom
 * anything changed; of all owners when it says so.
 */
export class ScopeChanges {
  /** Common chains are written anew, and their entries with them. */
  readonly concernsAll: boolean
  readonly #draft = new ScopeDraft()
  readonly #common: Common['chains']
  readonly #anew = new Map<string, ChainAnew>()
  readonly #gone = new Set<string>()
  /** Common chains whose rules behind the entries are put there anew. */
  readonly #last = new Map<string, { readonly before: XtChain; readonly after: XtChain }>()

  constructor(before: Common, after: Common) {
    this.#common = after.chains
    if (before !== after) this.#changeCommon(before, after)
    this.concernsAll = this.#anew.size + this.#gone.size > 0
  }

  #changeCommon(before: Common, after: Common): void {
    for (const [key, chain] of after.chains) this.#changeChain(key, before.chains.get(key), chain)
    for (const [key, chain] of before.chains) {
      if (after.chains.has(key)) continue
      this.#gone.add(key)
      // How many entries there were is nobody's business here: one at least may have been.
      this.#draft.removeChain({ ...placeOf(chain), owner: undefined, rules: chain.rules.length + 1 })
    }
    this.#changeJumps(before.jumps, after.jumps)
  }

  #changeChain(key: string, before: XtChain | undefined, after: XtChain): void {
    if (before === undefined || !sameRules(before.rules, after.rules))
      this.#anew.set(key, { chain: after, isThere: before !== undefined, entries: [] })
    else if (!sameRules(before.last, after.last)) this.#last.set(key, { before, after })
  }

  #changeJumps(before: readonly XtJump[], after: readonly XtJump[]): void {
    const there = new Map(before.map(jump => [jumpKey(jump), jump]))
    for (const jump of after) if (!there.delete(jumpKey(jump))) this.#draft.insertJump(jump)
    for (const jump of there.values()) if (jump.removed) this.#draft.removeJump(jump, jump.rule)
  }

  owner(owner: string, before: Asked, after: Asked): void {
    const old = byKey(before.chains)
    for (const chain of after.chains) {
      const key = chainKey(chain, chain.name)
      const was = old.get(key)
      old.delete(key)
      if (was === undefined) this.addChain(owner, chain)
      else if (!sameRules(was.rules, chain.rules) || !sameRules(was.last, chain.last))
        this.#draft.write(contentOf(chain, owner, was.rules.length + was.last.length))
    }
    for (const chain of old.values()) this.removeChain(owner, chain)
    this.#changeEntries(owner, before.entries, after.entries)
  }

  /** For chains that several owners ask for: with the first of them. */
  addChain(owner: string, chain: XtChain): void {
    this.#draft.write(contentOf(chain, owner, undefined))
  }

  /** With the last of them. */
  removeChain(owner: string, chain: XtChain): void {
    this.#draft.removeChain({ ...placeOf(chain), owner, rules: chain.rules.length + chain.last.length })
  }

  #changeEntries(owner: string, before: readonly XtEntry[], after: readonly XtEntry[]): void {
    const old = new Map<string, XtEntry[]>()
    for (const entry of before) {
      const chain = chainKey(entry, entry.chain)
      if (this.#gone.has(chain) || this.#anew.has(chain)) continue
      const key = `${chain} ${ruleKey(entry.rule)}`
      const same = old.get(key)
      if (same === undefined) old.set(key, [entry])
      else same.push(entry)
    }
    const kept = new Map<OwnedRule, number>()
    const byChain = new Map<string, OwnedRule[]>()
    for (const entry of after) {
      const { rule, sequence } = entry
      const chain = chainKey(entry, entry.chain)
      const owned = { rule, owner, sequence }
      const anew = this.#anew.get(chain)
      if (anew !== undefined) {
        anew.entries.push(owned)
        continue
      }
      if (old.get(`${chain} ${ruleKey(rule)}`)?.pop() !== undefined) kept.set(owned, kept.size)
      const same = byChain.get(chain)
      if (same === undefined) byChain.set(chain, [owned])
      else same.push(owned)
    }
    for (const [chain, entries] of byChain) this.#addEntries(chain, entries, kept)
    for (const left of old.values())
      for (const entry of left) this.#draft.removeRule(entry, entry.rule, owner)
  }

  /** `kept` are those that are there, in their order. */
  #addEntries(key: string, entries: readonly OwnedRule[], kept: ReadonlyMap<OwnedRule, number>): void {
    if (entries.every(entry => kept.has(entry))) return
    const chain = this.#common.get(key)
    if (chain === undefined) throw new Error(`${key}: entries in a chain that is not common`)
    const at = placeOfEntries(chain)
    const misplaced = new Set(misplacedEntries(entries, { at, positionOf: entry => kept.get(entry) }))
    for (const entry of entries)
      if (!kept.has(entry) || misplaced.has(entry)) addEntry(this.#draft, chain, entry)
    for (const { rule, owner } of misplaced) this.#draft.removeRule(placeOf(chain), rule, owner)
    if (makesWay(chain) && !this.#last.has(key)) this.#last.set(key, { before: chain, after: chain })
  }

  finish(): Steps<ScopeOperations> {
    for (const { before, after } of this.#last.values()) {
      const place = placeOf(after)
      for (const rule of after.last) this.#draft.append(place, { rule, owner: undefined })
      for (const rule of before.last) this.#draft.removeRule(place, rule, undefined)
    }
    for (const { chain, isThere, entries } of this.#anew.values()) {
      const replaces = isThere ? chain.rules.length + entries.length + 1 : undefined
      this.#draft.write(contentWith(chain, entries, replaces))
    }
    return this.#draft.finish()
  }
}

/** Whether an entry comes to stand where it belongs only when the rules behind the entries are put there anew. */
export function makesWay({ rules, last }: XtChain): boolean {
  return rules.length > 0 && last.length > 0
}

/** At the head, unless rules have to stay before them. */
export function placeOfEntries({ rules }: XtChain): 'head' | 'end' {
  return rules.length === 0 ? 'head' : 'end'
}

export function addEntry(draft: ScopeDraft, chain: XtChain, entry: OwnedRule): void {
  if (placeOfEntries(chain) === 'head') draft.insertEntry(placeOf(chain), entry)
  else draft.append(placeOf(chain), entry)
}

/** A common chain, written anew with its entries. */
export function contentWith(
  { family, table, name, rules, last }: XtChain,
  entries: readonly OwnedRule[],
  replaces: number | undefined,
): ChainContent {
  return { family, table, chain: name, owner: undefined, replaces, rules, entries, last }
}

export function contentOf(
  { family, table, name, rules, last }: XtChain,
  owner: string,
  replaces: number | undefined,
): ChainContent {
  return { family, table, chain: name, owner, replaces, rules, entries: NO_ENTRIES, last }
}

const NO_ENTRIES: readonly OwnedRule[] = []

function placeOf({ family, table, name }: XtChain) {
  return { family, table, chain: name }
}

function byKey(chains: readonly XtChain[]): Map<string, XtChain> {
  return new Map(chains.map(chain => [chainKey(chain, chain.name), chain]))
}
