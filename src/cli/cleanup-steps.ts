import type { Clock } from '../base/clock.ts'
import { openNetfilter } from '../daemon/open.ts'
import { type CommitResult, createNftClient, type NftClient } from '../kernel/nft/client.ts'
import type { Operation, Transaction } from '../kernel/nft/operation.ts'
import type { Table } from '../kernel/nft/state.ts'
import { NFT_FAMILIES } from '../modes/common/family.ts'
import { hasOurSets } from '../modes/nftables/sets.ts'
import { isOurs as isUserspaceTable } from '../modes/userspace/plane.ts'
import { Connection } from '../netlink/connection.ts'
import { type Leftovers, lookInNfTables } from './leftovers.ts'
import { isKubeProxyTable, outlinesOf } from './leftovers-kube-proxy.ts'
import { type Remains, remainsIn } from './leftovers-ours.ts'

/** A commit names the generation from before the look it follows from, and the next try looks again. */
const TRIES = 16

interface Looked<T> {
  readonly value: T
  readonly transaction: Transaction
}

/**
 * Commits what a look at the kernel asks for, in one transaction, and looks again whenever somebody else committed in
 * between. Gives what the look that counted saw. Throws when the kernel refuses, or never comes to rest.
 */
async function commitLooked<T>(client: NftClient, look: () => Promise<Looked<T>>): Promise<T> {
  for (let tries = 1; tries <= TRIES; tries++) {
    const generation = client.generation()
    const { value, transaction } = await look()
    if (transaction.length === 0) return value
    const result = await client.commit(transaction, { generation })
    if (result.outcome === 'committed') return value
    if (result.outcome !== 'stale') throw refusal(result)
  }
  throw new Error(`clean up: the kernel's generation moved on before each of ${TRIES} commits`)
}

function refusal({ outcome, failures }: CommitResult): Error {
  const [first] = failures
  return new Error(`clean up: ${first?.error.message ?? outcome}`, { cause: first?.error })
}

export interface RemovedTables {
  /** With their families. */
  readonly removed: readonly string[]
  /** Tables with our name that are neither ours nor kube-proxy's. */
  readonly foreign: readonly string[]
  /** What went from tables that stay. */
  readonly remains: readonly Remains[]
}

/** Deletes our tables, and what is left of ours in tables that are kube-proxy's now. */
export async function removeOurs(clock: Clock, name: string): Promise<RemovedTables> {
  const client = createNftClient({ transport: openNetfilter(), clock })
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
    value: { removed: ours.map(nameOf), foreign: others.map(nameOf), remains },
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

/** Deletes what kube-proxy left in nf_tables; chains of iptables mode only where `iptables`. Gives what that was, and what had to stay. */
export async function removeLeftovers(
  clock: Clock,
  tableName: string,
  { iptables }: { readonly iptables: boolean },
): Promise<Pick<Leftovers, 'nftables' | 'iptables'>> {
  const client = createNftClient({ transport: openNetfilter(), clock })
  const transport = openNetfilter()
  try {
    const connection = new Connection({ transport, clock })
    return await commitLooked(client, async () => {
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

/** Deletes the tables of userspace mode: what is relayed goes on for as long as the process that relays it. */
export async function removeUserspace(clock: Clock, name: string): Promise<readonly string[]> {
  const client = createNftClient({ transport: openNetfilter(), clock })
  try {
    return await commitLooked(client, async () => {
      const { tables } = (await client.list(NFT_FAMILIES.map(family => ({ family, name })))).ruleset
      const ours = tables.filter(isUserspaceTable)
      return { value: ours.map(nameOf), transaction: ours.map(deleteTable) }
    })
  } finally {
    await client.close()
  }
}

function deleteTable({ family, name }: Pick<Table, 'family' | 'name'>): Operation {
  return { verb: 'delete-table', family, table: name }
}

function nameOf({ family, name }: Table): string {
  return `${family} ${name}`
}
