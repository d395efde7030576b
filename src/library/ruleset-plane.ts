import type { Steps } from '../base/steps.ts'
import type { NftClient } from '../kernel/nft/client.ts'
import { type DiffOptions, diffRulesets } from '../kernel/nft/diff.ts'
import type { Touched } from '../kernel/nft/monitor.ts'
import type { Transaction } from '../kernel/nft/operation.ts'
import type { NftFamily, Ruleset, Table, TableName } from '../kernel/nft/state.ts'
import type { FrontendTable } from '../model/frontend.ts'
import { deleteTables } from '../modes/common/commit-looked.ts'
import { transactionPlan } from '../modes/common/describe-transaction.ts'
import { type FamilyLayout, LAYOUTS, NFT_FAMILIES } from '../modes/common/family.ts'
import { refusalOf } from '../modes/common/refusal.ts'
import { generationWatch, watchWritersOf } from '../modes/common/writers.ts'
import type { Transport } from '../netlink/transport.ts'
import { type Dataplane, generationOf, guardOf, type Plan } from '../reconcile/dataplane.ts'

export interface RulesetPlaneOptions {
  /** The name of the plane and of its tables. */
  readonly name: string
  readonly client: NftClient
  /**
   * Families of the tables of that name, ip and ip6 by default. The plane owns these tables with all their contents.
   */
  readonly families?: readonly NftFamily[]
  /** Renders the whole table of one family. Pure: equal Services give equal tables. */
  readonly render: (layout: FamilyLayout, frontends: FrontendTable) => Table
  /**
   * Names the processes that change the tables, if drift recurs. It opens a further socket; `own` is the port id of the
   * commits of `client`. Without it, drift is repaired, but no process is named.
   */
  readonly writers?: { readonly openTransport: () => Transport; readonly own: number }
}

/** One transaction of nf_tables, and the kernel state after it. */
export interface RulesetPlan extends Plan<Ruleset> {
  readonly transaction: Transaction
}

const NOTHING: Ruleset = { tables: [] }
const NONE_LATE: DiffOptions = { lateSets: new Set() }

/**
 * Makes a data plane of one function, which renders all tables. Each diff is one transaction, and listing finds drift.
 * The quarantine of a single Service needs its elements in a group of its name (Table.elements). Rendering and diffing
 * walk all Services: for tens of thousands of Services implement Dataplane.
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
    generation: () => generationOf(client.generation()),
    ...(writers && { watchGeneration: generationWatch(writers.openTransport) }),
    watchWriters: report =>
      writers === undefined ? () => undefined : watchWritersOf({ ...writers, touchesUs }, report),
    async observe() {
      const { ruleset, generation, unsettled } = await client.list(tables)
      return { state: ruleset, generation: generationOf(generation), unsettled }
    },
    async commit({ transaction }, commitOptions) {
      const { failures, handles: _, ...result } = await client.commit(transaction, guardOf(commitOptions))
      return { ...result, generation: generationOf(result.generation), refusals: failures.map(refusalOf) }
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
