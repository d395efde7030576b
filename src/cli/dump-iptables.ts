import { systemClock } from '../base/clock.ts'
import { openNetfilter } from '../daemon/open.ts'
import { createIpsetClient } from '../kernel/ipset/client.ts'
import { createNftClient } from '../kernel/nft/client.ts'
import type { NameOfIpset } from '../kernel/nft/ipset-match.ts'
import type { Observed, ObservedChain } from '../kernel/nft/observed.ts'
import type { NftFamily } from '../kernel/nft/state.ts'
import { builtinChains, builtinHook } from '../kernel/xt/builtin.ts'
import { printTables } from '../kernel/xt/print-tables.ts'
import type { ChainNames } from '../modes/iptables/layout.ts'
import { XT_TABLES } from './cleanup-iptables.ts'
import type { Shown } from './dump-ipvs.ts'
import { isOfService, type ReadChain, readChains, targetOf } from './iptables-chains.ts'
import { tableText } from './table.ts'

/** What is in tables of iptables-nft, of others as well; what is of these names counts as ours. Throws NetlinkError. */
export async function readIptables(
  families: readonly NftFamily[],
  names: ChainNames,
): Promise<readonly ReadChain[]> {
  return await observeIptables(families, (observed, nameOfIpset) =>
    readChains(observed, { names, nameOfIpset }),
  )
}

/** Rules about ipsets have their numbers: the kernel is asked for the names while it is read. */
async function observeIptables<T>(
  families: readonly NftFamily[],
  read: (observed: Observed, nameOfIpset: NameOfIpset) => T,
): Promise<T> {
  const client = createNftClient({ transport: openNetfilter(), clock: systemClock })
  const ipset = createIpsetClient({ transport: openNetfilter(), clock: systemClock })
  try {
    const places = families.flatMap(family => XT_TABLES.map(table => ({ family, table })))
    return read((await client.listChains(places)).observed, index => ipset.nameOf(index))
  } finally {
    await Promise.all([client.close(), ipset.close()])
  }
}

/** Chains of an iptables mode, and the rules of others that lead to them; of one Service, unless `service` is empty. Pure. */
export function showIptables(
  chains: readonly ReadChain[],
  service: string,
): Pick<Shown, 'text' | 'value' | 'isEmpty'> {
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

/** The tables of each family as iptables-save prints them, whoever has something in them. */
export async function saveIptables(families: readonly NftFamily[]): Promise<readonly string[]> {
  return await observeIptables(families, (found, nameOfIpset) => {
    const observed = withBuiltin(found)
    return families.map(family => {
      const text = printTables(observed, family, nameOfIpset)
      return `# ${family === 'ip' ? 'iptables' : 'ip6tables'}\n${text}`
    })
  })
}

/** iptables-save names the chains that packets enter in every table that it prints, whether the kernel has them or not. */
function withBuiltin(observed: Observed): Observed {
  return new Map(
    [...observed].map(([key, { chains }]) => {
      const table = XT_TABLES.find(name => key.endsWith(` ${name}`))
      const builtin = table === undefined ? [] : builtinChains(table)
      const missing = builtin.flatMap((name): readonly [string, ObservedChain][] =>
        table === undefined || chains.has(name)
          ? []
          : [[name, { name, hook: builtinHook(table, name), rules: [] }]],
      )
      return [key, { chains: new Map([...chains, ...missing]) }]
    }),
  )
}

export interface RuleRow {
  readonly family: NftFamily
  readonly table: string
  readonly chain: string
  readonly services: readonly string[]
  /** As iptables-save prints it, without `-A CHAIN `. */
  readonly rule: string
}

function ruleRows(chains: readonly ReadChain[], service: string): readonly RuleRow[] {
  const isOurs = new Set(chains.filter(({ ours }) => ours).map(placeKey))
  return chains.flatMap(chain =>
    chain.rules
      .filter(({ rule, services }) => {
        const leads = isOurs.has(placeKey({ ...chain, name: targetOf(rule) ?? '' }))
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
