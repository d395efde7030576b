import type { Steps } from '../../base/clock.ts'
import { PersistentMap } from '../../base/collections.ts'
import { diffRulesets } from '../../kernel/nft/diff.ts'
import type { Transaction } from '../../kernel/nft/transaction.ts'
import type { Plan, PlanLine } from '../../reconcile/dataplane.ts'
import { countChanges, describeTransaction } from '../common/tables.ts'
import { type Relay, resolveTransaction, sameRelay, type UserspaceState } from './state.ts'

/** One nf_tables transaction, with the changes of the relays around it. */
export interface UserspacePlan extends Plan<UserspaceState> {
  /** The transaction, with symbols for the addresses and ports of listeners. */
  readonly transaction: Transaction
  /** Relays to open before the transaction, or to give other endpoints after it. */
  readonly put: readonly Relay[]
  /** Relays to close after the transaction. */
  readonly remove: readonly Relay[]
}

/** No set is read through another set that changes with it. */
const NO_LATE_SETS = { lateSets: new Set<string>() } as const

export function* diffStates(from: UserspaceState, to: UserspaceState): Steps<UserspacePlan> {
  const { transaction, after, complete } = yield* diffRulesets(from.ruleset, to.ruleset, NO_LATE_SETS)
  const put: Relay[] = []
  const remove: Relay[] = []
  const lines: PlanLine[] = []
  for (const [, before, relay] of PersistentMap.differences(from.relays, to.relays)) {
    if (before !== undefined && relay !== undefined && sameRelay(before, relay)) continue
    if (relay !== undefined) put.push(relay)
    else if (before !== undefined) remove.push(before)
    const one = relay ?? before
    const verb = relay === undefined ? 'remove' : before === undefined ? 'add' : 'change'
    if (one !== undefined) lines.push({ verb, object: relayText(one), service: one.service })
  }
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

/** Describes a relay: `relay TCP ns/web:http at 192.168.0.2 (cluster) to 3 endpoints`. */
function relayText({ key, protocol, lists, balance }: Relay): string {
  const place = key.slice(key.lastIndexOf(' ') + 1)
  const name = key.slice(0, key.lastIndexOf(`/${protocol}/`))
  const count = new Set([
    ...(lists.includes('cluster') ? balance.cluster : []),
    ...(lists.includes('local') ? balance.local : []),
  ]).size
  return `relay ${protocol} ${name} at ${place} (${lists.join(', ')}) to ${count} endpoints`
}
