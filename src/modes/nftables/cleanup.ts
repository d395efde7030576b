import { count } from '../../base/text.ts'
import { tableNameOf } from '../../config/modes/nftables.ts'
import type { NftSet, Table } from '../../kernel/nft/state.ts'
import type { Operation, Transaction } from '../../kernel/nft/transaction.ts'
import { isKubeProxyTable, outlinesOf } from '../common/kube-proxy.ts'
import {
  CHAIN_EARLY_POSTROUTING,
  CHAIN_LATE_OUTPUT,
  CHAIN_LATE_PREROUTING,
  CHAIN_LOCALHOST,
  CHAIN_NO_LOCAL,
  CHAIN_OUTPUT,
  CHAIN_PREROUTING,
  CHAIN_REJECT,
} from '../common/rules.ts'
import {
  type AsRead,
  commitAsRead,
  deleteTable,
  nameOfTable,
  tablesNamed,
  withNftClient,
} from '../common/writers.ts'
import type { Cleaned, CleanupContext } from '../mode.ts'
import { parseChain } from './chains.ts'
import { ENDPOINTS, SET_NAMES, type SetName } from './layout.ts'

/** Deletes our tables, and the leftovers of ours in tables that belong to kube-proxy now. */
export async function cleanNftables(context: CleanupContext): Promise<Cleaned> {
  const { removed, foreign, remains } = await removeOurs(context, tableNameOf(context.proxy))
  return {
    removed: [...removed.map(table => `table ${table}`), ...remains.map(remainsText)],
    foreign: foreign.map(table => `table ${table}`),
  }
}

interface RemovedTables {
  /** Each with its family. */
  readonly removed: readonly string[]
  /** Tables with our name that belong neither to us nor to kube-proxy. */
  readonly foreign: readonly string[]
  /** Objects that were removed from tables that stay. */
  readonly remains: readonly Remains[]
}

async function removeOurs(context: CleanupContext, name: string): Promise<RemovedTables> {
  return await withNftClient(context, async client => {
    const done = await commitAsRead(client, async () => firstStep(await tablesNamed(client, name)))
    if (done.remains.length > 0)
      await commitAsRead(client, async () => ({
        value: undefined,
        transaction: remainsOf(await tablesNamed(client, name)).flatMap(({ second }) => second),
      }))
    return done
  })
}

function firstStep(tables: readonly Table[]): AsRead<RemovedTables> {
  const ours = tables.filter(isOurs)
  const others = tables.filter(table => !isOurs(table) && !isKubeProxyTable(outlinesOf(table)))
  const remains = remainsOf(tables)
  return {
    value: { removed: ours.map(nameOfTable), foreign: others.map(nameOfTable), remains },
    transaction: [...ours.map(deleteTable), ...remains.flatMap(({ first }) => first)],
  }
}

function remainsOf(tables: readonly Table[]): readonly Remains[] {
  return tables.flatMap(table => remainsIn(table) ?? [])
}

/**
 * Tests whether a table is ours. kube-proxy's own has the same name, but not our sets. Once kube-proxy has written its
 * chains into a table of ours, it serves from there, and our remaining sets have no effect.
 */
export function isOurs(table: Table): boolean {
  return hasOurSets(table) && !isKubeProxyTable(outlinesOf(table))
}

/** Describes what of ours was removed from a table of kube-proxy's. Pure. */
function remainsText({ table, chains, sets }: Remains): string {
  return `kprobe's objects in table ${table.family} ${table.name}, which is kube-proxy's now: ${count(chains.length, 'chain')}, ${count(sets.length, 'set')}`
}

/**
 * Sets that kprobe and kube-proxy have with the same name and type: kube-proxy continues to use the ones that
 * it finds.
 */
const SHARED_SETS: ReadonlySet<string> = new Set<SetName>(['cluster-ips', 'nodeport-ips'])
/** A size above the number of Services that a cluster can have. */
const AMPLE_SIZE = 2 ** 20

/** Objects of ours in a table that belongs to kube-proxy now. */
interface Remains {
  readonly table: Pick<Table, 'family' | 'name'>
  readonly chains: readonly string[]
  readonly sets: readonly string[]
  /**
   * Empties the chains and deletes the sets, to which only these chains refer. Also enlarges the sets that
   * both programs have: kube-proxy makes them without a size, and fails when ours is full. Linux 6.1 and
   * earlier ignore a new size.
   */
  readonly first: Transaction
  /** Deletes the chains. Kernels before 6.2 count them as in use until the first transaction is committed. */
  readonly second: Transaction
}

/** Gives undefined when kube-proxy has not written into the table, or when nothing of ours is in it. Pure. */
function remainsIn(table: Table): Remains | undefined {
  if (!isKubeProxyTable(outlinesOf(table))) return undefined
  const place = { family: table.family, table: table.name }
  const chains = [...table.chains.keys()].filter(isOurChain)
  const sets = [...SET_NAMES, FORMER_SET].filter(name => !SHARED_SETS.has(name) && table.sets.has(name))
  if (chains.length === 0 && sets.length === 0) return undefined
  const narrow = [...table.sets.values()].filter(isNarrow)
  const { family, name } = table
  return {
    table: { family, name },
    chains,
    sets,
    first: [
      ...chains
        .filter(chain => table.chains.get(chain)?.rules.length !== 0)
        .map((chain): Operation => ({ ...place, verb: 'flush-chain', chain })),
      ...sets.map((set): Operation => ({ ...place, verb: 'delete-set', set })),
      ...narrow.map((set): Operation => ({ ...place, verb: 'add-set', set: { ...set, size: AMPLE_SIZE } })),
    ],
    second: chains.map((chain): Operation => ({ ...place, verb: 'delete-chain', chain })),
  }
}

/** The name `reject` was used up to version 0.1. */
const CHAINS: ReadonlySet<string> = new Set([
  CHAIN_PREROUTING,
  CHAIN_OUTPUT,
  CHAIN_EARLY_POSTROUTING,
  CHAIN_LATE_PREROUTING,
  CHAIN_LOCALHOST,
  CHAIN_NO_LOCAL,
  CHAIN_LATE_OUTPUT,
  CHAIN_REJECT,
  'reject',
])
/** The name of the set up to version 0.1. */
const FORMER_SET = 'endpoints'

function isOurChain(name: string): boolean {
  return CHAINS.has(name) || parseChain(name) !== undefined
}

function isNarrow({ name, size }: NftSet): boolean {
  return SHARED_SETS.has(name) && size > 0 && size < AMPLE_SIZE
}

/** Recognizes the sets of nftables mode. Up to version 0.1 one map held the endpoints of all protocols. */
function hasOurSets({ sets }: { readonly sets: ReadonlyMap<string, unknown> }): boolean {
  const hasEndpoints = sets.has(ENDPOINTS.TCP) || sets.has('endpoints')
  return sets.has('frontends') && sets.has('dispatch') && hasEndpoints
}
