import type { NftClient } from './client.ts'
import type { Operation, Transaction } from './operation.ts'
import type { NftFamily } from './state.ts'

interface ProbeResult {
  readonly works: boolean
  /** The kernel's error when it rejects the transaction. */
  readonly reason: string | undefined
}

/**
 * Tests whether the kernel would accept a transaction. It sends it with one more operation that must fail: the kernel
 * checks everything, loads the modules it needs, and then undoes all of it. Nothing is committed, as with `nft
 * --check`.
 */
export async function probe(client: NftClient, transaction: Transaction): Promise<ProbeResult> {
  const [first] = transaction
  if (first === undefined) return { works: true, reason: undefined }
  const spoiler = impossible(first.family)
  const result = await client.commit([...transaction, spoiler])
  const refused = result.failures.find(({ operation }) => operation !== spoiler)
  if (refused !== undefined) return { works: false, reason: refused.error.message }
  const isSpoiled = result.failures.some(({ operation, code }) => operation === spoiler && code === 'ENOENT')
  return isSpoiled
    ? { works: true, reason: undefined }
    : { works: false, reason: `the kernel gave no result (${result.outcome})` }
}

/** Fails with ENOENT, because no table has this name. */
function impossible(family: NftFamily): Operation {
  return { verb: 'delete-table', family, table: 'kprobe-probe-that-does-not-exist' }
}
