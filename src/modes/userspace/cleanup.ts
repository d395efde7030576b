import { createNftClient } from '../../kernel/nft/client.ts'
import { commitAsRead, deleteTable, nameOfTable } from '../common/commit-looked.ts'
import { NFT_FAMILIES } from '../common/family.ts'
import type { Cleaned, CleanupContext } from '../mode.ts'
import { tableNameOf } from './options.ts'
import { isOurs } from './plane.ts'

/** Deletes our tables. Relayed connections continue as long as the process that relays them. */
export async function cleanUserspace({ sockets, clock, proxy }: CleanupContext): Promise<Cleaned> {
  const client = createNftClient({ transport: sockets.netfilter(), clock })
  const name = tableNameOf(proxy)
  try {
    const removed = await commitAsRead(client, async () => {
      const { tables } = (await client.list(NFT_FAMILIES.map(family => ({ family, name })))).ruleset
      const ours = tables.filter(isOurs)
      return { value: ours.map(nameOfTable), transaction: ours.map(deleteTable) }
    })
    return { removed: removed.map(table => `table ${table}`), foreign: [] }
  } finally {
    await client.close()
  }
}
