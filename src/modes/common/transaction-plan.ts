import type { Transaction } from '../../kernel/nft/operation.ts'
import type { Ruleset } from '../../kernel/nft/state.ts'
import type { Plan } from '../../reconcile/dataplane.ts'
import { countChanges, describeTransaction } from './describe-transaction.ts'

/** One transaction of nf_tables, and what the kernel holds after it. */
export interface TransactionPlan<State> extends Plan<State> {
  readonly transaction: Transaction
}

/** `ruleset` is the part of `after` that the transaction is about. */
export function transactionPlan<State>({
  transaction,
  ruleset,
  ...its
}: Pick<TransactionPlan<State>, 'transaction' | 'after' | 'complete'> & {
  readonly ruleset: Ruleset
}): TransactionPlan<State> {
  return {
    ...its,
    transaction,
    empty: transaction.length === 0,
    changes: countChanges(transaction),
    rebuilds: transaction.some(({ verb }) => verb === 'delete-table'),
    describe: () => describeTransaction(transaction, ruleset),
  }
}
