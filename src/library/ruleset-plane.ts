import type { Steps } from '../base/steps.ts'
import type { NftClient } from '../kernel/nft/client.ts'
import { type DiffOptions, diffRulesets } from '../kernel/nft/diff.ts'
import type { TableName } from '../kernel/nft/list.ts'
import type { Touched } from '../kernel/nft/monitor.ts'
import type { Transaction } from '../kernel/nft/operation.ts'
import type { NftFamily, Ruleset, Table } from '../kernel/nft/state.ts'
import type { FrontendTable } from '../model/frontend.ts'
import { deleteTables } from '../modes/common/delete-tables.ts'
import { transactionPlan } from '../modes/common/describe-transaction.ts'
import { type FamilyLayout, LAYOUTS, NFT_FAMILIES } from '../modes/common/family.ts'
import { refusalOf } from '../modes/common/refusal.ts'
import { watchWritersOf } from '../modes/common/writers.ts'
import type { Transport } from '../netlink/transport.ts'
import type { Dataplane, Plan } from '../reconcile/dataplane.ts'

export interface RulesetPlaneOptions {
  /** The name of the plane and of its tables. */
  readonly name: string
  readonly client: NftClient
  /** Families of the tables of that name that belong to the plane; ip and ip6 by default. Everything in them does. */
  readonly families?: readonly NftFamily[]
  /** Everything that the table of one family should hold. Pure: equal Services give equal tables. */
  readonly render: (layout: FamilyLayout, frontends: FrontendTable) => Table
  /**
   * Names the processes that change the tables, once damage comes back: opens a further socket, and says which port id
   * the commits of `client` have. Without it they are repaired, and no process is named.
   */
  readonly writers?: { readonly openTransport: () => Transport; readonly own: number }
}

/** One transaction of nf_tables, and what the kernel holds after it. */
export interface RulesetPlan extends Plan<Ruleset> {
  readonly transaction: Transaction
}

const NOTHING: Ruleset = { tables: [] }
const NONE_LATE: DiffOptions = { lateSets: new Set() }

/**
 * A data plane that is one function: it gives the tables, all of them, and everything else follows. Each difference is
 * one transaction, what others change is found by listing, and a Service that the kernel refuses is left out alone if
 * the elements that serve it are in a group of its name (Table.elements). Rendering and comparing walk all Services: for
 * tens of thousands of them implement Dataplane.
 */
export function createRulesetPlane(options: RulesetPlaneOptions): Dataplane<Ruleset, RulesetPlan> {
  const { name, client, families = NFT_FAMILIES, writers } = options
  const tables: readonly TableName[] = families.map(family => ({ family, name }))
  const touchesUs = ({ family, table }: Touched) =>
    tables.some(ours => ours.family === family && ours.name === table)
  return {
    name,
    empty: NOTHING,
    *render(frontends, { without }) {
      const served = leavingOut(frontends, without)
      const tables: Table[] = []
      for (const family of families) {
        tables.push(options.render(LAYOUTS[family], served))
        yield
      }
      return { tables }
    },
    diff: planOf,
    generation: () => client.generation(),
    watchWriters: report =>
      writers === undefined ? () => undefined : watchWritersOf({ ...writers, touchesUs }, report),
    async observe() {
      const { ruleset, generation, unsettled } = await client.list(tables)
      return { state: ruleset, generation, unsettled }
    },
    async commit({ transaction }, commitOptions) {
      const { failures, handles: _, ...result } = await client.commit(transaction, commitOptions)
      return { ...result, refusals: failures.map(refusalOf) }
    },
    cleanup: () => deleteTables(client, tables),
  }
}

function leavingOut(frontends: FrontendTable, without: ReadonlySet<string>): FrontendTable {
  if (without.size === 0) return frontends
  return { ...frontends, services: frontends.services.with([...without].map(key => [key, undefined])) }
}

function* planOf(from: Ruleset, to: Ruleset): Steps<RulesetPlan> {
  const { transaction, after, complete } = yield* diffRulesets(from, to, NONE_LATE)
  return transactionPlan({ transaction, complete, after, ruleset: after })
}
