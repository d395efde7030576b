import type { XtRule } from '../../../kernel/xt/rule.ts'
import { base32Hash } from '../chain-hash.ts'
import { jump } from '../rules-parts.ts'
import type { ServiceChain } from '../service-rules.ts'
import { withoutComments } from './reduce.ts'

/** Chains of one Service in one family, by what becomes of their names. */
export interface Shared {
  readonly chains: readonly ServiceChain[]
  /** A target, with the new name of the chain it leads to. */
  readonly redirect: (rule: XtRule, family: ServiceChain['family']) => XtRule
}

/**
 * Chains of equal content become one, named after that content: those of single endpoints, and those that do nothing but
 * choose among such. Whoever remembers clients keeps its own, since lists of `recent` belong to one Service.
 */
export function shareChains(chains: readonly ServiceChain[]): Shared {
  const names = new Map<string, string>()
  const redirect: Shared['redirect'] = (rule, family) => {
    const { target } = rule
    if (target?.kind !== 'jump') return rule
    const name = names.get(`${family} ${target.chain}`)
    return name === undefined ? rule : { ...rule, target: jump(name) }
  }
  const done = new Map<string, ServiceChain>()
  const share = (chain: ServiceChain, prefix: string, rules: readonly XtRule[]): void => {
    const content = rules.map(rule => redirect(withoutComments(rule), chain.family))
    const name = `${prefix}-${base32Hash(JSON.stringify(content))}`
    names.set(`${chain.family} ${chain.name}`, name)
    done.set(`${chain.family} ${name}`, { ...chain, name, rules: content, shared: true })
  }
  const others: ServiceChain[] = []
  const lists: ServiceChain[] = []
  for (const chain of chains) {
    if (isEndpoint(chain)) share(chain, 'KUBE-SEP', chain.rules)
    else if (/^KUBE-SV[CL]-/.test(chain.name)) lists.push(chain)
    else others.push(chain)
  }
  for (const chain of lists) {
    const isChoice = chain.rules.length > 0 && chain.rules.every(rule => isChoiceOf(rule, chain, names))
    if (isChoice) share(chain, 'KUBE-SVC', chain.rules)
    else others.push(chain)
  }
  return { chains: [...others, ...done.values()], redirect }
}

function isEndpoint({ name, rules, last }: ServiceChain): boolean {
  return (
    name.startsWith('KUBE-SEP-') &&
    last.length === 0 &&
    rules.every(({ matches }) => matches.every(({ kind }) => ONLY_OF_PACKETS.has(kind)))
  )
}

const ONLY_OF_PACKETS: ReadonlySet<string> = new Set(['comment', 'tcp', 'udp', 'sctp'])

function isChoiceOf(
  { target, matches }: XtRule,
  { family }: ServiceChain,
  names: ReadonlyMap<string, string>,
): boolean {
  return (
    target?.kind === 'jump' &&
    names.has(`${family} ${target.chain}`) &&
    matches.every(({ kind }) => kind === 'comment' || kind === 'statistic')
  )
}
