import { NF_DROP } from '../nft/constants.ts'
import type { NameOfIpset } from '../nft/ipset-match.ts'
import type { NftFamily, Observed, ObservedChain, ObservedTable } from '../nft/state.ts'
import { builtinChains } from './builtin.ts'
import { printRule } from './print.ts'
import { readRule } from './read.ts'

/** Tables in the order of iptables-nft-save, with their built-in chains. */
const TABLES = [
  { table: 'mangle', builtin: builtinChains('mangle') },
  { table: 'raw', builtin: ['PREROUTING', 'OUTPUT'] },
  { table: 'filter', builtin: builtinChains('filter') },
  { table: 'nat', builtin: builtinChains('nat') },
  { table: 'security', builtin: ['INPUT', 'FORWARD', 'OUTPUT'] },
] as const

/**
 * Prints the tables of one family as iptables-save does, without its comments: all chains and rules that were read,
 * and built-in chains even if they do not exist. A rule with brackets is one that iptables prints differently, or not
 * at all.
 */
export function printTables(observed: Observed, family: NftFamily, nameOfIpset?: NameOfIpset): string {
  let text = ''
  for (const line of tableLines(observed, family, nameOfIpset)) text += `${line}\n`
  return text
}

function* tableLines(
  observed: Observed,
  family: NftFamily,
  nameOfIpset: NameOfIpset | undefined,
): Generator<string> {
  for (const { table, builtin } of TABLES) {
    const found = observed.get(`${family} ${table}`)
    if (found === undefined) continue
    const chains = inOrder(found, builtin)
    yield `*${table}`
    for (const chain of chains) yield `:${chain.name} ${policyOf(chain)} [0:0]`
    for (const { name, rules } of chains)
      for (const { compiled } of rules)
        yield `-A ${name} ${printRule(readRule(compiled, family, nameOfIpset), family)}`.trimEnd()
    yield 'COMMIT'
  }
}

type PrintedChain = Pick<ObservedChain, 'name' | 'rules'> & {
  readonly hook: { readonly policy?: number } | undefined
}

/** Returns built-in chains first, including those that do not exist; then the others by their bytes. */
function inOrder({ chains }: ObservedTable, builtin: readonly string[]): readonly PrintedChain[] {
  const entered = builtin.map(name => chains.get(name) ?? { name, hook: {}, rules: [] })
  const others = [...chains.values()].filter(({ name }) => !builtin.includes(name))
  return [...entered, ...others.toSorted((a, b) => Buffer.compare(Buffer.from(a.name), Buffer.from(b.name)))]
}

/** Returns the policy; a chain without a hook has none. */
function policyOf({ hook }: PrintedChain): string {
  if (hook === undefined) return '-'
  return hook.policy === NF_DROP ? 'DROP' : 'ACCEPT'
}
