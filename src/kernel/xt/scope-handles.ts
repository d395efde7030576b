import type { Octets } from '../../base/octets.ts'
import type { ObservedChain, ObservedRule } from '../nft/state.ts'

/**
 * The kernel's numbers for rules of chains from which single rules are deleted, as they are learnt from listings and
 * from answers to our own commits. A number may be another rule's once somebody deleted the table and made it again: what
 * was learnt before somebody else's commit has to be verified before it is used.
 */
export class HandleBook {
  readonly #chains = new Map<string, KnownChain>()
  /** Generation up to which nobody but us is known to have committed. */
  #generation: number | undefined
  /** Grows with every commit of others that was noticed. */
  #epoch = 0

  /** The kernel is at this generation now, as somebody read it: has anybody else committed? */
  reached(generation: number): void {
    if (this.#generation !== undefined && this.#generation !== generation) this.#epoch++
    this.#generation = generation
  }

  /** Our own commit, and nobody else's, led here. */
  committed(generation: number): void {
    this.#generation = generation
  }

  /** All rules of a chain, as they were at the generation that was reached last. */
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

  /** Whether nobody else committed since the chain was learnt. */
  isFresh(key: string): boolean {
    return this.#chains.get(key)?.epoch === this.#epoch
  }

  /** The handles of rules with these bytes, in the order of the chain as far as it is known. */
  handlesOf(key: string, compiled: Octets): readonly bigint[] {
    const chain = this.#chains.get(key)
    return chain === undefined ? [] : (indexOf(chain).get(compiled) ?? [])
  }

  /** All rules of a chain that is known. */
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
  /** As listed, until somebody asks for one of them. */
  rules: readonly ObservedRule[]
  byBytes: Map<Octets, bigint[]> | undefined
}

function indexOf(chain: KnownChain): Map<Octets, bigint[]> {
  if (chain.byBytes !== undefined) return chain.byBytes
  const byBytes = new Map<Octets, bigint[]>()
  for (const { compiled, handle } of chain.rules) {
    const handles = byBytes.get(compiled)
    if (handles === undefined) byBytes.set(compiled, [handle])
    else handles.push(handle)
  }
  chain.byBytes = byBytes
  chain.rules = []
  return byBytes
}
