import { createNftClient } from '../../kernel/nft/client.ts'
import { NFT_FAMILIES } from '../common/tables.ts'
import { commitAsRead, deleteTable, nameOfTable } from '../common/writers.ts'
import type { Cleaned, CleanupContext, ModeContext, Retired } from '../mode.ts'
import { createUserspacePlane, isOurs } from './plane.ts'
import { tableNameOf, userspaceOptions } from './settings.ts'

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

/** Deletes our tables at once. Redirected connections continue as long as the process that relays them. */
export async function retireUserspace(
  { config, clock, sockets }: ModeContext,
  signal: AbortSignal,
): Promise<Retired> {
  const client = createNftClient({ transport: sockets.netfilter(), clock })
  const plane = createUserspacePlane({ client, clock, options: userspaceOptions(config) })
  try {
    const { state } = await plane.observe()
    const isHere = state.ruleset.tables.some(isOurs)
    if (isHere && !signal.aborted) await plane.cleanup()
    return isHere ? 'removed' : 'nothing'
  } finally {
    await client.close()
  }
}
