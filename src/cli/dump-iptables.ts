import type { NftFamily } from '../kernel/nft/state.ts'
import { targetChain } from '../kernel/xt/rule.ts'
import { isOfService } from '../modes/common/service-row.ts'
import type { ReadChain } from '../modes/xt-common/read-chains.ts'
import { type TableOptions, tableText } from './table.ts'

interface ShownChains {
  readonly text: (options: TableOptions) => string
  /** The value for JSON and YAML. */
  readonly value: unknown
  readonly isEmpty: boolean
}

/**
 * Selects the chains of iptables mode, and other programs' rules that jump to them. With `service`, only those of that
 * Service. Pure.
 */
export function showIptables(chains: readonly ReadChain[], service: string): ShownChains {
  const rows = ruleRows(chains, service)
  return {
    text: options => {
      const cells = rows.map(row => [row.services.join(', ') || '-', placeOf(row), row.rule])
      return tableText(['SERVICE', 'CHAIN', 'RULE'], cells, options)
    },
    value: { rules: rows },
    isEmpty: rows.length === 0,
  }
}

interface RuleRow {
  readonly family: NftFamily
  readonly table: string
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

function placeOf({ family, table, chain }: RuleRow): string {
  return `${family} ${table} ${chain}`
}
