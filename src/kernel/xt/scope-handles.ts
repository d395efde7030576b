import { append } from '../../base/lists.ts'
import type { Octets } from '../../base/octets.ts'
import type { ObservedChain, ObservedRule } from '../nft/state.ts'

/**
 * Caches the kernel's rule handles for chains from which single rules are deleted, from listings and from answers to
 * our own commits. A handle may belong to another rule after another program deletes the table and creates it again:
 * handles that were cached before a commit of another program must be verified before use.
 */
export class HandleBook {
  readonly #chains = new Map<string, KnownChain>()
  /** Last generation without unknown commits of other programs. */
  #generation: number | undefined
  /** Counts the noticed commits of other programs. */
  #epoch = 0

  /** Records the kernel's current generation; a change that is not ours means that another program committed. */
  reached(generation: number): void {
    if (this.#generation !== undefined && this.#generation !== generation) this.#epoch++
    this.#generation = generation
  }

  /** Records the generation after a commit of ours without another program's commit. */
  committed(generation: number): void {
    this.#generation = generation
  }

  /** Stores all rules of a chain at the generation that was reached last. */
  learn(key: string, rules: ObservedChain['rules']): void {
    this.#chains.set(key, { epoch: this.#epoch, rules, byBytes: undefined })
  }

  forget(key: string): void {
    this.#chains.delete(key)
  }

  forgetAll(): void {
    this.#chains.clear()
  }

  get isEmpty(): boolean {
    return this.#chains.size === 0
  }

  has(key: string): boolean {
    return this.#chains.has(key)
  }

  /** Returns whether no other program committed since the chain was stored. */
  isFresh(key: string): boolean {
    return this.#chains.get(key)?.epoch === this.#epoch
  }

  /** Returns the handles of rules with these bytes, in the known order of the chain. */
  handlesOf(key: string, compiled: Octets): readonly bigint[] {
    const chain = this.#chains.get(key)
    return chain === undefined ? [] : (indexOf(chain).get(compiled) ?? [])
  }

  *rulesOf(key: string): Iterable<ObservedRule> {
    const chain = this.#chains.get(key)
    if (chain === undefined) return
    for (const [compiled, handles] of indexOf(chain)) for (const handle of handles) yield { handle, compiled }
  }

  add(key: string, { compiled, handle }: ObservedRule): void {
    const chain = this.#chains.get(key)
    if (chain === undefined) return
    const handles = indexOf(chain).get(compiled)
    if (handles === undefined) indexOf(chain).set(compiled, [handle])
    else handles.unshift(handle)
  }

  remove(key: string, { compiled, handle }: ObservedRule): void {
    const chain = this.#chains.get(key)
    if (chain === undefined) return
    const left = (indexOf(chain).get(compiled) ?? []).filter(each => each !== handle)
    if (left.length > 0) indexOf(chain).set(compiled, left)
    else indexOf(chain).delete(compiled)
  }
}

interface KnownChain {
  readonly epoch: number
  /** The listed rules, until the first lookup indexes them. */
  rules: readonly ObservedRule[]
  byBytes: Map<Octets, bigint[]> | undefined
}

function indexOf(chain: KnownChain): Map<Octets, bigint[]> {
  if (chain.byBytes !== undefined) return chain.byBytes
  const byBytes = new Map<Octets, bigint[]>()
  for (const { compiled, handle } of chain.rules) append(byBytes, compiled, handle)
  chain.byBytes = byBytes
  chain.rules = []
  return byBytes
}
