import { NF_DROP } from '../nft/constants.ts'
import type { NameOfIpset } from '../nft/ipset-match.ts'
import type { Observed, ObservedChain } from '../nft/observed.ts'
import type { NftFamily } from '../nft/state.ts'
import { printRule } from './print.ts'
import { readRule } from './read.ts'

/** In the order of iptables-nft-save. */
const TABLES = ['mangle', 'raw', 'filter', 'nat', 'security'] as const

/**
 * Tables of one family as iptables-save prints them, but for the comments with its name and the time; with as many chains
 * and rules as were read. A rule with something in brackets is one that iptables would print otherwise, or not at all.
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
  for (const table of TABLES) {
    const found = observed.get(`${family} ${table}`)
    if (found === undefined) continue
    const chains = [...found.chains.values()].toSorted(inOrder)
    yield `*${table}`
    for (const chain of chains) yield `:${chain.name} ${policyOf(chain)} [0:0]`
    for (const { name, rules } of chains)
      for (const { compiled } of rules)
        yield `-A ${name} ${printRule(readRule(compiled, family, nameOfIpset), family)}`.trimEnd()
    yield 'COMMIT'
  }
}

/** Chains that packets enter by themselves in the order in which they do, then the others by the bytes of their names. */
function inOrder(a: ObservedChain, b: ObservedChain): number {
  const hooks = hookOf(a) - hookOf(b)
  return hooks === 0 ? Buffer.compare(Buffer.from(a.name), Buffer.from(b.name)) : hooks
}

function hookOf({ hook }: ObservedChain): number {
  return hook === undefined ? Number.MAX_SAFE_INTEGER : hook.hooknum
}

/** Chains without a hook have none. */
function policyOf({ hook }: ObservedChain): string {
  if (hook === undefined) return '-'
  return hook.policy === NF_DROP ? 'DROP' : 'ACCEPT'
}
