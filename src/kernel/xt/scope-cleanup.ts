import type { Observed, ObservedChain, ObservedRule } from '../nft/state.ts'
import type { Language } from './language.ts'
import { printRule } from './print.ts'
import { readRule } from './read.ts'
import type { XtJump, XtPlace } from './scope.ts'
import { type IsOurs, placeOfTable, type ScopeOperation, type ScopeOperations } from './scope-operation.ts'

export interface Owned {
  readonly isOurs: IsOurs
  /** Rules of ours in chains of other programs. Cleanup keeps those that are never removed. */
  readonly jumps: readonly XtJump[]
}

/**
 * Removes everything of ours from the tables: jumps, then the contents of our chains, then the chains. Chains that
 * rules of other programs lead to stay unchanged, with the chains that they lead to.
 */
export function removalOf(observed: Observed, owned: Owned, language: Language): ScopeOperations {
  return [...observed].flatMap(([key, { chains }]) => {
    const place = placeOfTable(key)
    return place === undefined ? [] : new TableRemoval(place, chains, { ...owned, language }).operations()
  })
}

class TableRemoval {
  readonly #place: XtPlace
  readonly #chains: ReadonlyMap<string, ObservedChain>
  readonly #given: Owned & { readonly language: Language }

  constructor(
    place: XtPlace,
    chains: ReadonlyMap<string, ObservedChain>,
    given: Owned & { readonly language: Language },
  ) {
    this.#place = place
    this.#chains = chains
    this.#given = given
  }

  operations(): ScopeOperations {
    const place = { ...this.#place, owner: undefined }
    const jumps: ScopeOperation[] = []
    const roots: string[] = []
    for (const { name, rules } of this.#chains.values()) {
      if (this.#isOurs(name)) continue
      const texts = this.#jumpsIn(name)
      for (const rule of rules) {
        const { text, target } = this.#read(rule)
        if (texts.has(text)) jumps.push({ ...place, verb: 'delete-rule', chain: name, rule })
        else if (target !== undefined) roots.push(target)
      }
    }
    const kept = this.#reachable(roots)
    const going = [...this.#chains.values()].filter(({ name }) => this.#isOurs(name) && !kept.has(name))
    return [
      ...jumps,
      ...going
        .filter(({ rules }) => rules.length > 0)
        .map((chain): ScopeOperation => {
          return { ...place, verb: 'flush-chain', chain: chain.name, rules: chain.rules.length }
        }),
      ...going.map(({ name }): ScopeOperation => ({ ...place, verb: 'delete-chain', chain: name })),
    ]
  }

  #isOurs(name: string): boolean {
    return this.#given.isOurs(this.#place.table, name)
  }

  #jumpsIn(chain: string): ReadonlySet<string> {
    const { family, table } = this.#place
    const isHere = (jump: XtJump): boolean =>
      jump.removed && jump.family === family && jump.table === table && jump.chain === chain
    return new Set(this.#given.jumps.filter(isHere).map(({ rule }) => printRule(rule, family)))
  }

  #read({ compiled }: ObservedRule): { readonly text: string; readonly target: string | undefined } {
    const { family } = this.#place
    const rule = readRule(compiled, family, this.#given.language.nameOfIpset)
    const { target } = rule
    const leads = target?.kind === 'jump' || target?.kind === 'goto'
    return { text: printRule(rule, family), target: leads ? target.chain : undefined }
  }

  #reachable(roots: readonly string[]): ReadonlySet<string> {
    const reached = new Set<string>()
    const queue = [...roots]
    for (let name = queue.pop(); name !== undefined; name = queue.pop()) {
      const chain = this.#chains.get(name)
      if (chain === undefined || reached.has(name) || !this.#isOurs(name)) continue
      reached.add(name)
      for (const rule of chain.rules) {
        const { target } = this.#read(rule)
        if (target !== undefined) queue.push(target)
      }
    }
    return reached
  }
}
