import { commitAsRead, deleteTable, nameOfTable, tablesNamed, withNftClient } from '../common/writers.ts'
import type { Cleaned, CleanupContext, ModeContext, Retired } from '../mode.ts'
import { isOurs, UserspacePlane } from './plane.ts'
import { tableNameOf, userspaceOptions } from './settings.ts'

/** Deletes our tables. Relayed connections continue as long as the process that relays them. */
export async function cleanUserspace(context: CleanupContext): Promise<Cleaned> {
  const name = tableNameOf(context.proxy)
  const removed = await withNftClient(context, client =>
    commitAsRead(client, async () => {
      const ours = (await tablesNamed(client, name)).filter(isOurs)
      return { value: ours.map(nameOfTable), transaction: ours.map(deleteTable) }
    }),
  )
  return { removed: removed.map(table => `table ${table}`), foreign: [] }
}

/** Deletes our tables at once. Redirected connections continue as long as the process that relays them. */
export async function retireUserspace(context: ModeContext, signal: AbortSignal): Promise<Retired> {
  const { config, clock } = context
  return await withNftClient(context, async client => {
    const plane = new UserspacePlane({ client, clock, options: userspaceOptions(config) })
    const { state } = await plane.observe()
    const isHere = state.ruleset.tables.some(isOurs)
    if (isHere && !signal.aborted) await plane.cleanup()
    return isHere ? 'removed' : 'nothing'
  })
}
