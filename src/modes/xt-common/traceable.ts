import { printRule } from '../../kernel/xt/print.ts'
import { type ReadChain, targetOf } from './read-chains.ts'
import type { Traceable } from './trace-tables.ts'

/** The rules of others in chains that all share are theirs to judge: only ways to ours are followed. */
export function traceable(chains: readonly ReadChain[]): Traceable {
  const ours = chains.filter(({ ours }) => ours)
  const isOurs = new Set(ours.map(({ family, table, name }) => `${family} ${table} ${name}`))
  const shared = chains
    .filter(({ ours, policy }) => !ours && policy !== undefined)
    .map(chain => ({
      ...chain,
      rules: chain.rules.filter(({ rule }) =>
        isOurs.has(`${chain.family} ${chain.table} ${targetOf(rule) ?? ''}`),
      ),
    }))
  return {
    chains: [...ours, ...shared].map(({ family, table, name, rules }) => {
      return { family, table, name, rules: rules.map(({ rule }) => rule), last: [] }
    }),
    jumps: [],
    print: printRule,
  }
}
