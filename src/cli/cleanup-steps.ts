import type { Clock } from '../base/clock.ts'
import { openNetfilter } from '../daemon/open.ts'
import { createNftClient } from '../kernel/nft/client.ts'
import { commitAsRead, deleteTable } from '../modes/common/commit-looked.ts'
import { Connection } from '../netlink/connection.ts'
import { type Leftovers, lookInNfTables } from './leftovers.ts'

/**
 * Deletes kube-proxy's objects in nf_tables; chains of iptables mode only with `iptables`. Gives what it removed, and
 * what it had to keep.
 */
export async function removeLeftovers(
  clock: Clock,
  tableName: string,
  { iptables }: { readonly iptables: boolean },
): Promise<Pick<Leftovers, 'nftables' | 'iptables'>> {
  const client = createNftClient({ transport: openNetfilter(), clock })
  const transport = openNetfilter()
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
