import type { Transaction } from '../../kernel/nft/operation.ts'
import type { Plan } from '../../reconcile/dataplane.ts'
import { countChanges, describeTransaction } from '../common/describe-transaction.ts'
import type { NftablesState } from './state.ts'

/** One transaction of nf_tables, and what the kernel holds after it. */
export interface NftablesPlan extends Plan<NftablesState> {
  readonly transaction: Transaction
}

export function makePlan(transaction: Transaction, after: NftablesState, complete: boolean): NftablesPlan {
  return {
    transaction,
    empty: transaction.length === 0,
    changes: countChanges(transaction),
    after,
    complete,
    rebuilds: transaction.some(({ verb }) => verb === 'delete-table'),
    describe: () => describeTransaction(transaction, after.ruleset),
  }
}
