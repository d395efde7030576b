import type { Clock } from '../../base/clock.ts'
import { createIpsetClient } from '../../kernel/ipset/client.ts'
import { createNftClient } from '../../kernel/nft/client.ts'
import type { NameOfIpset } from '../../kernel/nft/ipset-match.ts'
import type { NftFamily, Observed } from '../../kernel/nft/state.ts'
import { printTables } from '../../kernel/xt/print-tables.ts'
import type { XtPlace, XtTableName } from '../../kernel/xt/scope.ts'
import type { Transport } from '../../netlink/transport.ts'
import type { ChainNames } from './layout.ts'
import { type ReadChain, readChains } from './read-chains.ts'

export const XT_TABLES: readonly XtTableName[] = ['filter', 'nat', 'mangle']

export function placesOf(families: readonly NftFamily[]): readonly XtPlace[] {
  return families.flatMap(family => XT_TABLES.map(table => ({ family, table })))
}

interface XtReadContext {
  readonly sockets: { readonly netfilter: () => Transport }
  readonly clock: Clock
}

/**
 * Reads the tables of iptables-nft, including chains of other programs. Chains with `names` count as ours. Throws
 * NetlinkError.
 */
export async function readIptables(
  context: XtReadContext,
  families: readonly NftFamily[],
  names: ChainNames,
): Promise<readonly ReadChain[]> {
  return await observeIptables(context, families, (observed, nameOfIpset) =>
    readChains(observed, { names, nameOfIpset }),
  )
}

/** Reads tables together with the ipset names: rules contain only ipset numbers. */
async function observeIptables<T>(
  { sockets, clock }: XtReadContext,
  families: readonly NftFamily[],
  read: (observed: Observed, nameOfIpset: NameOfIpset) => T,
): Promise<T> {
  const client = createNftClient({ transport: sockets.netfilter(), clock })
  const ipset = createIpsetClient({ transport: sockets.netfilter(), clock })
  try {
    return read((await client.listChains(placesOf(families))).observed, index => ipset.nameOf(index))
  } finally {
    await Promise.all([client.close(), ipset.close()])
  }
}

/** Prints the tables of each family as iptables-save does, including rules of other programs. */
export async function saveIptables(
  context: XtReadContext,
  families: readonly NftFamily[],
): Promise<readonly string[]> {
  return await observeIptables(context, families, (observed, nameOfIpset) =>
    families.map(family => {
      const text = printTables(observed, family, nameOfIpset)
      return `# ${family === 'ip' ? 'iptables' : 'ip6tables'}\n${text}`
    }),
  )
}
