import type { Family } from '../../base/ip.ts'
import type { NftFamily } from '../../kernel/nft/state.ts'
import { targetChain } from '../../kernel/xt/rule.ts'
import { NFT_FAMILIES } from '../common/family.ts'
import { familyName, HOOK_OF, type Hook, type ReadRules, remembered } from '../common/read-rules.ts'
import type { ChainNames } from '../xt-common/layout.ts'
import type { ReadChain } from '../xt-common/read-chains.ts'
import { createXtTracer, traceable } from '../xt-common/trace-tables.ts'

/** Makes the rules of iptables mode: our chains, and the rules that lead to them. */
export function rulesOfChains(chains: readonly ReadChain[], names: ChainNames): ReadRules {
  const made = traceable(chains, names.firewall)
  return {
    tracer: createXtTracer(() => made),
    localIps: new Set(),
    obstacle: remembered((family, hook) => chainObstacle(chains, names, { family, hook })),
    rejectsOutsideOnly: true,
  }
}

interface Side {
  readonly family: Family
  readonly hook: Hook
}

function chainObstacle(chains: readonly ReadChain[], names: ChainNames, side: Side): string | undefined {
  const family = familyName(side.family)
  const { builtin } = HOOK_OF[side.hook]
  if (!leadsTo(natChain(chains, family, builtin), names.services))
    return `chain ${family} nat ${builtin} has no jump to ${names.services}`
  return emptyNat(chains, family, names.services)
}

function natChain(chains: readonly ReadChain[], family: NftFamily, name: string): ReadChain | undefined {
  return chains.find(chain => chain.family === family && chain.table === 'nat' && chain.name === name)
}

function emptyNat(chains: readonly ReadChain[], family: NftFamily, name: string): string | undefined {
  const count = natChain(chains, family, name)?.rules.length ?? 0
  return count === 0 ? `chain ${family} nat ${name} is empty` : undefined
}

function leadsTo(chain: ReadChain | undefined, target: string): boolean {
  return chain?.rules.some(({ rule }) => targetChain(rule) === target) === true
}

/** Lists damage to the chains of iptables mode, as damageOfTables does, in the families that have any. */
export function damageOfChains(chains: readonly ReadChain[], names: ChainNames): readonly string[] {
  const families = NFT_FAMILIES.filter(family => natChain(chains, family, names.services) !== undefined)
  return families.flatMap(family => {
    const ways = [
      ['PREROUTING', names.services],
      ['OUTPUT', names.services],
      ['POSTROUTING', names.postrouting],
    ] as const
    const missing = ways
      .filter(([builtin, to]) => !leadsTo(natChain(chains, family, builtin), to))
      .map(([builtin, to]) => `chain ${family} nat ${builtin} has no jump to ${to}`)
    return [
      ...missing,
      ...[names.postrouting, names.markMasq].flatMap(name => emptyNat(chains, family, name) ?? []),
    ]
  })
}
