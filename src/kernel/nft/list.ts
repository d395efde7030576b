import type { Clock } from '../../base/clock.ts'
import { PersistentMap } from '../../base/collections.ts'
import type { Octets } from '../../base/octets.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import * as nft from './constants.ts'
import { decodeChain, decodeCounters, decodeElements, decodeRule, decodeSet, decodeTable } from './decode.ts'
import { type Attempt, dumpRequest, readSettled, type Settled } from './dump.ts'
import type { IpsetNames, NameOfIpset } from './ipset-match.ts'
import { dumpChain } from './list-chains.ts'
import type {
  AnyTable,
  Chain,
  Element,
  ElementGroup,
  HookFamily,
  NftSet,
  Rule,
  Ruleset,
  Table,
  TableName,
} from './state.ts'

export interface Listing extends Omit<Settled<Ruleset>, 'value'> {
  readonly ruleset: Ruleset
}

interface ListContext {
  readonly connection: Connection
  readonly clock: Clock
  /** Names of ipsets; without them, rules show numbers. */
  readonly ipsets: IpsetNames | undefined
}

/**
 * Reads whole tables at one generation; skips tables that do not exist. When other programs commit during every
 * attempt, the last listing is unsettled: it is valid if they did not change our tables. Throws NetlinkError: EAGAIN
 * when even that could not be read, otherwise the kernel's error.
 */
export async function listTables(
  { connection, clock, ipsets }: ListContext,
  names: readonly TableName[],
): Promise<Listing> {
  const object = names.map(({ family, name }) => `table ${family} ${name}`).join(', ')
  const nameOf: NameOfIpset = index => ipsets?.nameOf(index)
  const read = async (attempt: Attempt) => {
    const tables: Table[] = []
    for (const name of names) {
      if (attempt.isOver) break
      const heads = await readHeads(attempt, name, 'table')
      const head = heads.find(each => each.name === name.name)
      if (head !== undefined) tables.push(await readTable(attempt, head, nameOf))
    }
    return tables
  }
  const { value, ...rest } = await readSettled({ connection, clock, object, read })
  return { ruleset: { tables: value }, ...rest }
}

interface AllTablesOptions extends ListContext {
  /** As in readSettled. */
  readonly attemptsMax?: number
  readonly known?: (table: AnyTableName) => AnyTable | undefined
}

/**
 * Reads every table whose chains IP packets pass, of all programs, at one generation. Sets of intervals come with the
 * bounds of their elements only. Throws as listTables does.
 */
export async function listAllTables({
  connection,
  clock,
  ipsets,
  attemptsMax,
  known,
}: AllTablesOptions): Promise<Omit<Settled<readonly AnyTable[]>, 'generation'>> {
  const nameOf: NameOfIpset = index => ipsets?.nameOf(index)
  const read = async (attempt: Attempt) => {
    const tables: AnyTable[] = []
    for (const family of HOOK_FAMILIES) {
      for (const head of await readHeads(attempt, { family, name: '' }, 'tables of family')) {
        if (attempt.isOver) return tables
        tables.push(known?.(head) ?? (await readTable(attempt, head, nameOf)))
      }
    }
    return tables
  }
  return await readSettled({ connection, clock, object: 'all tables', read, attemptsMax })
}

const HOOK_FAMILIES: readonly HookFamily[] = ['ip', 'ip6', 'inet']

type TableHead = Pick<AnyTable, 'family' | 'name' | 'flags' | 'comment'>
type AnyTableName = Pick<AnyTable, 'family' | 'name'>

/** Reads the tables of a family, which errors call `what`. */
function readHeads<T extends AnyTableName>(attempt: Attempt, table: T, what: string) {
  const dump = { type: nft.NFT_MSG_GETTABLE, what, table }
  return attempt.steadily(async () => {
    const heads: (Omit<TableHead, 'family'> & Pick<T, 'family'>)[] = []
    await attempt.dump(dump, (view, message) => {
      heads.push({ family: table.family, ...decodeTable(view, message) })
    })
    return heads
  })
}

async function readTable<H extends TableHead>(attempt: Attempt, head: H, nameOf: NameOfIpset) {
  const chains = await readChains(attempt, head, nameOf)
  const sets = await readSets(attempt, head)
  const elements: [string, ElementGroup][] = []
  for (const set of sets.values()) {
    if (attempt.isOver) break
    elements.push([set.name, await readElements(attempt, head, set)])
  }
  return { ...head, chains, sets, elements: PersistentMap.from(elements) }
}

async function readChains(
  attempt: Attempt,
  table: AnyTableName,
  nameOf: NameOfIpset,
): Promise<ReadonlyMap<string, Chain>> {
  const chainDump = { type: nft.NFT_MSG_GETCHAIN, what: 'chains of table', table }
  const chains = await attempt.steadily(async () => {
    const found = new Map<string, Chain & { readonly rules: Rule[] }>()
    await attempt.dump(chainDump, (view, message) => {
      const chain = decodeChain(view, message)
      if (chain.table === table.name) found.set(chain.value.name, { ...chain.value, rules: [] })
    })
    return found
  })
  const ruleDump = { type: nft.NFT_MSG_GETRULE, what: 'rules of table', table, within: [table.name] }
  await attempt.dump(ruleDump, (view, message) => {
    const rule = decodeRule(view, message, nameOf)
    if (rule.table === table.name) chains.get(rule.chain)?.rules.push(rule.value)
  })
  return chains
}

async function readSets(attempt: Attempt, table: AnyTableName): Promise<ReadonlyMap<string, NftSet>> {
  const sets = new Map<string, NftSet>()
  const dump = { type: nft.NFT_MSG_GETSET, what: 'sets of table', table, within: [table.name] }
  await attempt.dump(dump, (view, message) => {
    const set = decodeSet(view, message)
    if (set.table === table.name) sets.set(set.value.name, set.value)
  })
  return sets
}

async function readElements(attempt: Attempt, table: AnyTableName, set: NftSet): Promise<ElementGroup> {
  const found: Element[] = []
  const what = `elements of ${set.name} in table`
  const expirations = (set.flags & nft.NFT_SET_EVAL) !== 0
  const dump = { type: nft.NFT_MSG_GETSETELEM, what, table, within: [table.name, set.name] }
  await attempt.dump(dump, (view, message) => {
    for (const element of decodeElements(view, message, { expirations }).value) found.push(element)
  })
  return found
}

/**
 * Reads the packet count of each element of a counted set while the dump arrives, without collecting it. Elements
 * that come or go meanwhile may be missing. Returns false when the kernel reports an inconsistent dump.
 */
export function readCounters(
  connection: Connection,
  { table, set }: { readonly table: TableName; readonly set: string },
  onCounter: (key: Octets, packets: bigint) => void,
): Promise<boolean> {
  const what = `counters of ${set} in table`
  const dump = { type: nft.NFT_MSG_GETSETELEM, what, table, within: [table.name, set] }
  const request = dumpRequest(dump, (view, message) => {
    for (const [key, packets] of decodeCounters(view, message).value) onCounter(key, packets)
  })
  return connection.dump(request)
}

/** A rule of any program, with the kernel's number for it. */
export interface HandledRule {
  readonly handle: bigint
  readonly rule: Rule
  readonly compiled: Octets
  /** The sum of the rule's counters. */
  readonly packets: bigint
}

/**
 * Lists the rules of one chain of any program, in their order; none when the chain does not exist. A commit meanwhile may
 * tear the list. Throws NetlinkError.
 */
export async function listHandles(
  connection: Connection,
  place: { readonly family: HookFamily; readonly table: string; readonly chain: string },
): Promise<readonly HandledRule[]> {
  const rules: HandledRule[] = []
  try {
    await dumpChain(connection, place, ({ handle, compiled, packets }, view, message) => {
      rules.push({ handle, rule: decodeRule(view, message).value, compiled, packets })
    })
  } catch (error) {
    if (!(error instanceof NetlinkError) || error.code !== 'ENOENT') throw error
    return []
  }
  return rules
}
