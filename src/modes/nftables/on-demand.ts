import type { Chain, Table } from '../../kernel/nft/state.ts'
import type { RuleContext } from '../common/expressions.ts'
import { chainsBehind, makeChain, nextChain, parseChain } from './chains.ts'
import type { CodeDraft, Codes } from './numbering.ts'

/** The maximum number of unused on-demand chains that are kept for reuse. */
const UNUSED_MAX = 64

interface OnDemand {
  /** The names of all on-demand chains of the table. */
  readonly chains: ReadonlySet<string>
  readonly codes: Codes
}

/**
 * Chooses the chains of a table: those that elements lead to, those behind them, and the unused ones of
 * `base` unless they are too many. Keeping unused chains avoids new rules each time the endpoint count of a
 * Service goes up and down. The first version of a table also gets the chain of each list that is one
 * endpoint longer, because the kernel walks all endpoints when a chain is added later.
 */
export function chooseChains(
  base: Table | undefined,
  codes: CodeDraft,
  inUse: { has(code: number): boolean },
): OnDemand {
  const present = [...(base?.chains.keys() ?? [])].filter(name => parseChain(name) !== undefined)
  const used = [...codes.all()].flatMap(([chain, code]) => (inUse.has(code) ? chain : []))
  const needed = new Set<string>()
  for (const chain of used) add(needed, chain)
  if (present.length === 0) {
    for (const chain of used) {
      const next = nextChain(chain)
      if (next !== undefined && codes.take(next) !== undefined) add(needed, next)
    }
  }
  const unused = present.filter(name => !needed.has(name))
  if (unused.length <= UNUSED_MAX) for (const name of unused) add(needed, name)
  return { chains: needed, codes: codes.finish(needed) }
}

function add(chains: Set<string>, name: string): void {
  if (chains.has(name)) return
  chains.add(name)
  for (const behind of chainsBehind(name)) add(chains, behind)
}

/** Makes the chains. Chains of `same`, which were made from equal inputs, are reused. */
export function makeChains(
  names: Iterable<string>,
  context: RuleContext,
  same: ReadonlyMap<string, Chain> | undefined,
): readonly Chain[] {
  const chains: Chain[] = []
  for (const name of names) {
    const chain = same?.get(name) ?? makeChain(name, context)
    if (chain !== undefined) chains.push(chain)
  }
  return chains
}
