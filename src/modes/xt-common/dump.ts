import { targetChain } from '../../kernel/xt/rule.ts'
import { isOfService } from '../common/show.ts'
import type { ModeDump } from '../mode.ts'
import { chainNames } from './layout.ts'
import { type ReadChain, readIptables, saveIptables } from './read-chains.ts'

/** The chains of iptables mode, and other programs' rules that jump to them. */
export const CHAIN_DUMP: ModeDump = {
  what: 'iptables',
  saveFormat: 'iptables-save',
  isNamed: true,
  saveTables: {
    note: 'this is the input of two commands: `--family=IPv4` prints that of iptables-restore, `--family=IPv6` that of ip6tables-restore',
    print: saveIptables,
  },
  async read(kernel, { families, service, proxy, chains }) {
    const rules = ruleRows(chains ?? (await readIptables(kernel, families, chainNames(proxy))), service)
    return {
      heading: ['SERVICE', 'CHAIN', 'RULE'],
      rows: rules.map(({ services, family, table, chain, rule }) => [
        services.join(', ') || '-',
        `${family} ${table} ${chain}`,
        rule,
      ]),
      value: { rules },
      save: [],
      isEmpty: rules.length === 0,
      hasUnnamed: false,
    }
  },
}

interface RuleRow extends Pick<ReadChain, 'family' | 'table'> {
  readonly chain: string
  readonly services: readonly string[]
  /** The rule as iptables-save prints it, without `-A CHAIN `. */
  readonly rule: string
}

function ruleRows(chains: readonly ReadChain[], service: string): readonly RuleRow[] {
  const isOurs = new Set(chains.filter(({ ours }) => ours).map(placeKey))
  return chains.flatMap(chain =>
    chain.rules
      .filter(({ rule, services }) => {
        const leads = isOurs.has(placeKey({ ...chain, name: targetChain(rule) ?? '' }))
        return (chain.ours || leads) && isOfService(services, service)
      })
      .map(({ text, services }): RuleRow => {
        const { family, table, name } = chain
        return { family, table, chain: name, services, rule: text }
      }),
  )
}

function placeKey({ family, table, name }: Pick<ReadChain, 'family' | 'table' | 'name'>): string {
  return `${family} ${table} ${name}`
}
