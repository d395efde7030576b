import type { CommitResult, NftClient, TableName } from '../../kernel/nft/client.ts'
import type { Operation, Transaction } from '../../kernel/nft/operation.ts'
import type { Table } from '../../kernel/nft/state.ts'

/**
 * The maximum number of tries. A commit names the generation from before its read; when another program
 * committed in between, the next try reads again.
 */
const TRIES = 16

export interface AsRead<T> {
  readonly value: T
  readonly transaction: Transaction
}

/**
 * Commits the changes that `read` computes from what it reads from the kernel, in one transaction. Reads
 * again when another program committed in between. Gives the value of the read that the commit was based on.
 * Throws an error that begins with `what` when the kernel rejects the transaction, or when each try meets another commit.
 */
export async function commitAsRead<T>(
  client: NftClient,
  read: () => Promise<AsRead<T>>,
  what = 'clean up',
): Promise<T> {
  for (let tries = 1; tries <= TRIES; tries++) {
    const generation = client.generation()
    const { value, transaction } = await read()
    if (transaction.length === 0) return value
    const result = await client.commit(transaction, { generation })
    if (result.outcome === 'committed') return value
    if (result.outcome !== 'stale') throw refusal(what, result)
  }
  throw new Error(`${what}: the kernel's generation moved on before each of ${TRIES} commits`)
}

function refusal(what: string, { outcome, failures }: CommitResult): Error {
  const [first] = failures
  return new Error(`${what}: ${first?.error.message ?? outcome}`, { cause: first?.error })
}

/** Deletes those of the tables that are ours. Throws as commitAsRead does. */
export async function deleteTables(
  client: NftClient,
  tables: readonly TableName[],
  isOurs: (table: Table) => boolean = () => true,
): Promise<void> {
  const read = async (): Promise<AsRead<void>> => {
    const { ruleset } = await client.list(tables)
    return { value: undefined, transaction: ruleset.tables.filter(isOurs).map(deleteTable) }
  }
  await commitAsRead(client, read, 'delete tables')
}

export function deleteTable({ family, name }: Pick<Table, 'family' | 'name'>): Operation {
  return { verb: 'delete-table', family, table: name }
}

export function nameOfTable({ family, name }: Table): string {
  return `${family} ${name}`
}
