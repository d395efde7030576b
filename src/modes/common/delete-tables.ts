import type { CommitResult, NftClient, TableName } from '../../kernel/nft/client.ts'
import type { Operation } from '../../kernel/nft/operation.ts'
import type { Table } from '../../kernel/nft/state.ts'

/**
 * The maximum number of tries. A cleanup names the generation that it read, and reads again when another
 * program commits in between.
 */
const TRIES = 16

/** Deletes those of the tables that are ours. Throws the kernel's error. */
export async function deleteTables(
  client: NftClient,
  tables: readonly TableName[],
  isOurs: (table: Table) => boolean = () => true,
): Promise<void> {
  for (let tries = 1; tries <= TRIES; tries++) {
    const { ruleset, generation } = await client.list(tables)
    const ours = ruleset.tables.filter(isOurs)
    if (ours.length === 0) return
    const result = await client.commit(ours.map(deletion), { generation })
    if (result.outcome === 'committed') return
    if (result.outcome !== 'stale') throw cleanupError(result)
  }
  throw new Error(`delete tables: the kernel's generation moved on before each of ${TRIES} commits`)
}

function deletion({ family, name }: Table): Operation {
  return { verb: 'delete-table', family, table: name }
}

function cleanupError({ outcome, failures }: CommitResult): Error {
  const [first] = failures
  return new Error(`delete tables: ${first?.error.message ?? outcome}`, { cause: first?.error })
}
