import type { Steps } from '../../base/clock.ts'
import { diffRulesets } from '../../kernel/nft/diff.ts'
import type { Transaction } from '../../kernel/nft/transaction.ts'
import type { Plan } from '../../reconcile/dataplane.ts'
import { diffRelays, type RelayChanges } from '../common/relay/relay.ts'
import { countChanges, describeTransaction } from '../common/tables.ts'
import { resolveTransaction, type UserspaceState } from './state.ts'

/** One nf_tables transaction, with the changes of the relays around it. */
export interface UserspacePlan extends Plan<UserspaceState>, Pick<RelayChanges, 'put' | 'remove'> {
  /** The transaction, with symbols for the addresses and ports of listeners. */
  readonly transaction: Transaction
}

/** No set is read through another set that changes with it. */
const NO_LATE_SETS = { lateSets: new Set<string>() } as const

export function* diffStates(from: UserspaceState, to: UserspaceState): Steps<UserspacePlan> {
  const { transaction, after, complete } = yield* diffRulesets(from.ruleset, to.ruleset, NO_LATE_SETS)
  const { put, remove, lines } = diffRelays(from.relays, to.relays)
  const changes = transaction.length === 0 ? 0 : countChanges(transaction)
  return {
    transaction,
    put,
    remove,
    empty: transaction.length === 0 && lines.length === 0,
    changes: changes + lines.length,
    after: complete ? to : { ...to, ruleset: after },
    complete,
    rebuilds: false,
    *describe() {
      yield* describeTransaction(resolveTransaction(transaction, noPort), to.ruleset)
      yield* lines
    },
  }
}

/** A plan does not know the port of a listener yet. */
const noPort = () => undefined
