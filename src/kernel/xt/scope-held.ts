import type { ChainHook, Observed } from '../nft/state.ts'
import {
  chainKey,
  ruleKey,
  sameRules,
  tableKey,
  type XtChain,
  type XtEntry,
  type XtJump,
  type XtPlace,
} from './scope.ts'
import type { HeldRule, OwnedRule } from './scope-draft.ts'

/** The chains and entries that one owner wants. */
export interface Asked {
  readonly chains: readonly XtChain[]
  readonly entries: readonly XtEntry[]
}

/** The chains and jumps that all owners share. */
export interface Common {
  /** By chainKey: chains that may hold entries. */
  readonly chains: ReadonlyMap<string, XtChain>
  readonly jumps: readonly XtJump[]
}

export const NOTHING_COMMON: Common = { chains: new Map(), jumps: [] }

/** Creates the common state. It keeps those jumps of `before` that are never removed. */
export function commonOf(
  chains: readonly XtChain[],
  jumps: readonly XtJump[],
  before: readonly XtJump[] = [],
): Common {
  const asked = new Set(jumps.map(jumpKey))
  const staying = before.filter(jump => !jump.removed && !asked.has(jumpKey(jump)))
  return {
    chains: new Map(chains.map(chain => [chainKey(chain, chain.name), chain])),
    jumps: staying.length === 0 ? jumps : [...jumps, ...staying],
  }
}

export function jumpKey(jump: Pick<XtJump, 'family' | 'table' | 'chain' | 'rule'>): string {
  return `${chainKey(jump, jump.chain)} ${ruleKey(jump.rule)}`
}

/**
 * Returns whether a change of the common chains rewrites one of them, with the entries of all owners. A diff then
 * needs every owner.
 */
export function rewritesCommon(before: Common, after: Common): boolean {
  if (before.chains === after.chains) return false
  if ([...before.chains.keys()].some(key => !after.chains.has(key))) return true
  return [...after.chains].some(([key, chain]) => {
    const was = before.chains.get(key)
    return was === undefined || !sameRules(was.rules, chain.rules)
  })
}

export interface HeldChain {
  readonly name: string
  readonly hook: ChainHook | undefined
  readonly rules: readonly HeldRule[]
  /** The owner that wants the chain; undefined for a chain that was read. */
  readonly owner?: string | undefined
  /** The chain that was written, if it holds nothing else. */
  readonly written?: XtChain | undefined
}

/** The held state of a diff: one form for what was read from the kernel and what was committed last. */
export interface Held {
  readonly kind: 'read' | 'written'
  /** By tableKey. */
  readonly tables: ReadonlyMap<string, { readonly chains: ReadonlyMap<string, HeldChain> }>
  /** Jumps of ours: those that are not wanted are removed. */
  readonly jumps: readonly XtJump[]
  /** Adds what an owner holds, before the diff compares it. */
  readonly enter?: (owner: string) => void
  /** Removes chains that the diff has compared, and does not read again. */
  readonly leave?: (chains: readonly XtChain[]) => void
}

/** Returns everything that the tables hold. `jumps` are those of ours that may be among the rules. */
export function heldInKernel(observed: Observed, jumps: readonly XtJump[] = []): Held {
  return { kind: 'read', tables: observed, jumps }
}

/**
 * The state after the last commit: the common chains, and the owners that the diff compares, one at a time, because
 * all of them would take too much memory. An unchanged owner may be omitted: it is then on neither side of the diff.
 */
export class Committed implements Held {
  readonly kind = 'written'
  readonly tables = new Map<string, { readonly chains: Map<string, HeldChain> }>()
  readonly jumps: readonly XtJump[]
  readonly #common = new Map<string, WrittenChain>()
  readonly #askedBy: (owner: string) => Asked

  constructor({ chains, jumps }: Common, askedBy: (owner: string) => Asked = () => NOTHING_ASKED) {
    this.jumps = jumps
    this.#askedBy = askedBy
    for (const [key, chain] of chains) {
      const written = new WrittenChain(chain, undefined)
      this.#common.set(key, written)
      this.#chainsOf(chain).set(chain.name, written)
    }
    for (const jump of jumps) {
      const { target } = jump.rule
      if (target?.kind === 'jump') this.#foundation(jump, target.chain)
      this.#foundation(jump, jump.chain)?.rules.push({ rule: jump.rule, owner: undefined })
    }
  }

  /** Adds the shared chains of an owner: another owner may want one of them now. */
  addShared(owner: string): void {
    this.#addChains(owner, this.#askedBy(owner).chains.filter(isShared))
  }

  enter(owner: string): void {
    const { chains, entries } = this.#askedBy(owner)
    this.#addChains(owner, chains)
    for (const { rule, sequence, ...place } of entries) {
      const key = chainKey(place, place.chain)
      const common = this.#common.get(key)
      if (common === undefined) throw new Error(`${key}: entries in a chain that is not common`)
      common.entries.push({ rule, owner, sequence })
    }
  }

  leave(chains: readonly XtChain[]): void {
    for (const chain of chains) if (!isShared(chain)) this.#chainsOf(chain).delete(chain.name)
  }

  #addChains(owner: string, chains: readonly XtChain[]): void {
    for (const chain of chains) {
      const there = this.#chainsOf(chain)
      if (!there.has(chain.name)) there.set(chain.name, new WrittenChain(chain, owner))
    }
  }

  #chainsOf(place: XtPlace): Map<string, HeldChain> {
    const key = tableKey(place)
    const there = this.tables.get(key)
    if (there !== undefined) return there.chains
    const chains = new Map<string, HeldChain>()
    this.tables.set(key, { chains })
    return chains
  }

  /** Returns a chain of another program; undefined for a common chain, which contains no jump. */
  #foundation(place: XtPlace, name: string): FoundationChain | undefined {
    const chains = this.#chainsOf(place)
    const there = chains.get(name)
    if (there instanceof FoundationChain) return there
    if (there !== undefined) return undefined
    const made = new FoundationChain(name)
    chains.set(name, made)
    return made
  }
}

const NOTHING_ASKED: Asked = { chains: [], entries: [] }

function isShared({ shared }: XtChain): boolean {
  return shared === true
}

class FoundationChain implements HeldChain {
  readonly hook = undefined
  readonly name: string
  readonly rules: OwnedRule[] = []

  constructor(name: string) {
    this.name = name
  }
}

/** Lists its rules only when a diff reads them: most common chains are never read. */
class WrittenChain implements HeldChain {
  readonly hook = undefined
  readonly owner: string | undefined
  readonly entries: OwnedRule[] = []
  readonly #chain: XtChain

  constructor(chain: XtChain, owner: string | undefined) {
    this.#chain = chain
    this.owner = owner
  }

  get name(): string {
    return this.#chain.name
  }

  get written(): XtChain | undefined {
    return this.entries.length === 0 ? this.#chain : undefined
  }

  get rules(): readonly OwnedRule[] {
    const { rules, last } = this.#chain
    const own = (rule: OwnedRule['rule']): OwnedRule => ({ rule, owner: this.owner })
    return [...rules.map(own), ...this.entries, ...last.map(own)]
  }
}
