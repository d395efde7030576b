import type { ChainHook, Observed, ObservedRule } from '../nft/state.ts'
import type { XtChain, XtJump, XtPlace } from './scope.ts'
import type { OwnedRule } from './scope-draft.ts'
import { chainKey, tableKey } from './scope-operation.ts'
import type { Asked, Common } from './scope-wanted.ts'

/** A rule in a table: as the kernel listed it, or as the last commit wrote it. */
export type HeldRule = ObservedRule | OwnedRule

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
  /** The jumps of the last commit. */
  readonly jumps: readonly XtJump[]
}

/** Returns everything that the tables hold. */
export function heldInKernel(observed: Observed): Held {
  return { kind: 'read', tables: observed, jumps: [] }
}

/**
 * The state after the last commit: the common chains, and the added owners. An unchanged owner may be omitted,
 * because it is then on neither side of the diff. Call add() for an owner before ScopeDiff.owner().
 */
export class Committed implements Held {
  readonly kind = 'written'
  readonly tables = new Map<string, { readonly chains: Map<string, HeldChain> }>()
  readonly jumps: readonly XtJump[]
  readonly #common = new Map<string, WrittenChain>()

  constructor({ chains, jumps }: Common) {
    this.jumps = jumps
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

  add(owner: string, { chains, entries }: Asked): void {
    for (const chain of chains) {
      const there = this.#chainsOf(chain)
      if (!there.has(chain.name)) there.set(chain.name, new WrittenChain(chain, owner))
    }
    for (const { rule, sequence, ...place } of entries) {
      const key = chainKey(place, place.chain)
      const common = this.#common.get(key)
      if (common === undefined) throw new Error(`${key}: entries in a chain that is not common`)
      common.entries.push({ rule, owner, sequence })
    }
  }

  /** Removes chains of owners that the diff has already processed; it does not read them again. */
  remove(chains: readonly XtChain[]): void {
    for (const chain of chains) this.#chainsOf(chain).delete(chain.name)
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
