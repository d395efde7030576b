import type { ForeignChain, ForeignRule, ForeignTable } from './leftover-survey.ts'
import type { Operation, Transaction } from './operation.ts'

/** The program whose chains will be removed. */
export interface Owner {
  readonly ownsChain: (name: string) => boolean
  /** Returns whether a rule of a base chain that leads to a chain of the owner belongs to the owner, too. */
  readonly ownsJump: (rule: ForeignRule) => boolean
}

export interface Removal {
  readonly transaction: Transaction
  /** Chains that are removed. */
  readonly chains: readonly string[]
  /** Number of rules of other chains that are removed with them. */
  readonly jumps: number
  /** Chains of the owner that stay, because rules of other programs lead to them. */
  readonly kept: readonly KeptChain[]
}

interface KeptChain {
  readonly chain: string
  /** The chain that leads to it. */
  readonly usedBy: string
}

/**
 * Plans the removal of the owner's chains and of the base chain rules that lead to them: first those rules, then the
 * contents of the chains, then the chains, so that no reference to a removed chain remains. Chains that rules of
 * other programs lead to stay unchanged, as do the chains that they need. Pure.
 */
export function planRemoval(table: ForeignTable, owner: Owner): Removal {
  const kept = keptChains(table, owner)
  const going = table.chains.filter(({ name }) => owner.ownsChain(name) && !kept.has(name))
  const names = new Set(going.map(({ name }) => name))
  const place = { family: table.family, table: table.name }
  const jumps = table.chains
    .filter(({ name }) => !names.has(name))
    .flatMap(chain => jumpsInto(chain, names))
    .map(({ chain, handle }): Operation => ({ ...place, verb: 'delete-rule', chain, handle }))
  return {
    transaction: [
      ...jumps,
      ...going
        .filter(({ rules }) => rules.length > 0)
        .map(({ name }): Operation => ({ ...place, verb: 'flush-chain', chain: name })),
      ...[...names].map((chain): Operation => ({ ...place, verb: 'delete-chain', chain })),
    ],
    chains: [...names],
    jumps: jumps.length,
    kept: [...kept].map(([chain, usedBy]) => ({ chain, usedBy })),
  }
}

/** Returns the chains to keep by name, each with a chain that leads to it. */
function keptChains({ chains }: ForeignTable, owner: Owner): ReadonlyMap<string, string> {
  const byName = new Map(chains.map(chain => [chain.name, chain]))
  const kept = new Map<string, string>()
  const queue = chains.filter(({ name }) => !owner.ownsChain(name))
  for (let chain = queue.shift(); chain !== undefined; chain = queue.shift()) {
    for (const rule of chain.rules) {
      if (chain.isBase && owner.ownsJump(rule)) continue
      for (const target of rule.targets) {
        const next = byName.get(target)
        if (next === undefined || !owner.ownsChain(target) || kept.has(target)) continue
        kept.set(target, chain.name)
        queue.push(next)
      }
    }
  }
  return kept
}

function jumpsInto({ name, rules }: ForeignChain, into: ReadonlySet<string>) {
  return rules
    .filter(({ targets }) => targets.some(target => into.has(target)))
    .map(({ handle }) => ({ chain: name, handle }))
}
