import { NF_DROP } from '../../kernel/nft/constants.ts'
import type { HookFamily } from '../../kernel/nft/state.ts'
import type { ForeignTable, SurveyedChain } from '../../kernel/nft/survey.ts'
import { KUBE_PROXY } from '../common/kube-proxy.ts'
import { chainNames, isIpvsChain, isOurChain, namedPrefixOf } from '../xt-common/layout.ts'
import { XT_TABLES } from '../xt-common/read-chains.ts'

interface Surveyed {
  readonly chains: readonly SurveyedChain[]
  /** The tables of other programs, with their rules. */
  readonly tables?: readonly ForeignTable<HookFamily>[]
  readonly proxy?: string | undefined
}

const NAMES_SHOWN = 3

/** Hooks by their numbers: NF_INET_* of linux/netfilter.h. */
const HOOKS: readonly string[] = ['prerouting', 'input', 'forward', 'output', 'postrouting', 'ingress']

/** Describes base chains from which a packet reaches a rule that drops, in a chain that is not kprobe's. */
export function droppingChains({ chains, tables = [], proxy }: Surveyed): readonly string[] {
  const names = chainNames(proxy)
  const isOurs = (name: string) =>
    KUBE_PROXY.ownsChain(name) ||
    XT_TABLES.some(xt => isOurChain(names, xt, name) || isIpvsChain(xt, name)) ||
    namedPrefixOf(name) !== undefined
  return tables.flatMap(({ family, name: table, chains: its }) => {
    const byName = new Map(its.map(chain => [chain.name, chain]))
    const found: string[] = []
    for (const { chain } of chains.filter(each => each.family === family && each.table === table)) {
      const { hook } = chain
      if (hook === undefined || hook.policy === NF_DROP) continue
      const reached = new Set([chain.name])
      for (const name of reached)
        for (const { targets } of byName.get(name)?.rules ?? [])
          for (const target of targets) if (!isOurs(target)) reached.add(target)
      const dropping = [...reached].filter(name => byName.get(name)?.rules.some(({ mayDrop }) => mayDrop))
      if (dropping.length === 0) continue
      const through = dropping.filter(name => name !== chain.name).slice(0, NAMES_SHOWN)
      const by = through.length === 0 ? '' : ` by ${through.join(', ')}`
      found.push(`${family} ${table} ${chain.name} may drop packets${by} (hook ${hookName(hook.hooknum)})`)
    }
    return found
  })
}

export const DROP_ADVICE =
  'it decides about traffic to Services as well: `kprobe trace --reject-only` names the rule that dropped a packet'

export function hookName(hooknum: number | undefined): string {
  return hooknum === undefined ? 'none' : (HOOKS[hooknum] ?? String(hooknum))
}
