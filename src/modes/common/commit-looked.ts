import type { CommitResult, NftClient } from '../../kernel/nft/client.ts'
import type { Operation, Transaction } from '../../kernel/nft/operation.ts'
import type { Table } from '../../kernel/nft/state.ts'

/** A commit names the generation from before the look it follows from, and the next try looks again. */
const TRIES = 16

export interface Looked<T> {
  readonly value: T
  readonly transaction: Transaction
}

/**
 * Commits what a look at the kernel asks for, in one transaction, and looks again whenever somebody else committed in
 * between. Gives what the look that counted saw. Throws when the kernel refuses, or never comes to rest.
 */
export async function commitLooked<T>(client: NftClient, look: () => Promise<Looked<T>>): Promise<T> {
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

export function deleteTable({ family, name }: Pick<Table, 'family' | 'name'>): Operation {
  return { verb: 'delete-table', family, table: name }
}

export function nameOfTable({ family, name }: Table): string {
  return `${family} ${name}`
}
