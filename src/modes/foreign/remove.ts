import { createNftClient } from '../../kernel/nft/client.ts'
import { Connection } from '../../netlink/connection.ts'
import { commitAsRead, deleteTable } from '../common/commit-looked.ts'
import type { ModeContext } from '../mode.ts'
import { type Leftovers, lookInNfTables } from './leftovers.ts'

/**
 * Deletes kube-proxy's objects in nf_tables; chains of iptables mode only with `iptables`. Gives what it removed, and
 * what it had to keep.
 */
export async function removeLeftovers(
  { sockets, clock }: Pick<ModeContext, 'sockets' | 'clock'>,
  tableName: string,
  { iptables }: { readonly iptables: boolean },
): Promise<Pick<Leftovers, 'nftables' | 'iptables'>> {
  const client = createNftClient({ transport: sockets.netfilter(), clock })
  const transport = sockets.netfilter()
  try {
    const connection = new Connection({ transport, clock })
    return await commitAsRead(client, async () => {
      const there = await lookInNfTables(connection, tableName)
      const found = iptables ? there : { ...there, iptables: [] }
      const tables = found.nftables.map(deleteTable)
      return {
        value: found,
        transaction: [...found.iptables.flatMap(({ transaction }) => transaction), ...tables],
      }
    })
  } finally {
    await client.close()
    await transport.close()
  }
}
