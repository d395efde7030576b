import { count } from '../../base/text.ts'
import { createNftClient } from '../../kernel/nft/client.ts'
import type { Table } from '../../kernel/nft/state.ts'
import { commitLooked, deleteTable, type Looked, nameOfTable } from '../common/commit-looked.ts'
import { NFT_FAMILIES } from '../common/family.ts'
import { isKubeProxyTable, outlinesOf } from '../common/kube-proxy.ts'
import type { Cleaned, CleanupContext } from '../mode.ts'
import { tableNameOf } from './options.ts'
import { type Remains, remainsIn } from './remains.ts'
import { hasOurSets } from './sets.ts'

/** Deletes our tables, and what is left of ours in tables that are kube-proxy's now. */
export async function cleanNftables(context: CleanupContext): Promise<Cleaned> {
  const { removed, foreign, remains } = await removeOurs(context, tableNameOf(context.proxy))
  return {
    removed: [...removed.map(table => `table ${table}`), ...remains.map(remainsText)],
    foreign: foreign.map(table => `table ${table}`),
  }
}

interface RemovedTables {
  /** With their families. */
  readonly removed: readonly string[]
  /** Tables with our name that are neither ours nor kube-proxy's. */
  readonly foreign: readonly string[]
  /** What went from tables that stay. */
  readonly remains: readonly Remains[]
}

async function removeOurs({ sockets, clock }: CleanupContext, name: string): Promise<RemovedTables> {
  const client = createNftClient({ transport: sockets.netfilter(), clock })
  const tables = async (): Promise<readonly Table[]> => {
    const places = NFT_FAMILIES.map(family => ({ family, name }))
    return (await client.list(places)).ruleset.tables
  }
  try {
    const done = await commitLooked(client, async () => firstStep(await tables()))
    if (done.remains.length > 0)
      await commitLooked(client, async () => ({
        value: undefined,
        transaction: remainsOf(await tables()).flatMap(({ second }) => second),
      }))
    return done
  } finally {
    await client.close()
  }
}

function firstStep(tables: readonly Table[]): Looked<RemovedTables> {
  const ours = tables.filter(isOurs)
  const others = tables.filter(table => !isOurs(table) && !isKubeProxyTable(outlinesOf(table)))
  const remains = remainsOf(tables)
  return {
    value: { removed: ours.map(nameOfTable), foreign: others.map(nameOfTable), remains },
    transaction: [...ours.map(deleteTable), ...remains.flatMap(({ first }) => first)],
  }
}

function remainsOf(tables: readonly Table[]): readonly Remains[] {
  return tables.flatMap(table => remainsIn(table) ?? [])
}

/** Once kube-proxy has written into it, it serves from there: the sets of ours that are left mean nothing any more. */
function isOurs(table: Table): boolean {
  return hasOurSets(table) && !isKubeProxyTable(outlinesOf(table))
}

/** What of ours was taken out of a table of kube-proxy's. Pure. */
function remainsText({ table, chains, sets }: Remains): string {
  return `what was ours in table ${table.family} ${table.name}, which is kube-proxy's now: ${count(chains.length, 'chain')}, ${count(sets.length, 'set')}`
}
