import type { Clock } from '../../base/clock.ts'
import type { Octets } from '../../base/octets.ts'
import type { ByteView } from '../../netlink/attribute.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import type { Message } from '../../netlink/message.ts'
import { writeAttributes } from '../../netlink/schema.ts'
import * as nft from './constants.ts'
import { decodeChain, decodeRuleBytes, decodeTable, type RuleBytes } from './decode.ts'
import { type Attempt, dumpRequest, getRequest, type OnMessage, readSettled, type Settled } from './dump.ts'
import { RULE } from './schema.ts'
import type {
  AnyTable,
  HookFamily,
  NftFamily,
  Observed,
  ObservedChain,
  ObservedRule,
  TableName,
} from './state.ts'
import { familyNumber } from './transaction.ts'

/** The chains to read from a table that other programs use as well. */
export interface ChainPlace {
  readonly family: NftFamily
  readonly table: string
  /** Selects chains by name; undefined selects all. */
  readonly chains?: (name: string) => boolean
}

export interface ChainListing extends Omit<Settled<Observed>, 'value'> {
  readonly observed: Observed
}

export interface ChainName {
  readonly family: NftFamily
  readonly table: string
  readonly chain: string
}

export interface CountedRule extends ObservedRule {
  readonly packets: bigint
}

/** An estimate for rules of common length. */
const RULES_PER_DATAGRAM = 45
/** The cost of a dump, and of each rule in it, in rules that the kernel walks past: measured on Linux 6.18. */
const VISITS_PER_DUMP = 500
const VISITS_PER_RULE = 100

/**
 * Reads chains with their rules as bytes, between two reads of the generation as listTables does. An unsettled
 * listing may lack rules that existed throughout, if other programs wrote to their table. Throws NetlinkError.
 */
export async function listChains(
  { connection, clock }: { readonly connection: Connection; readonly clock: Clock },
  places: readonly ChainPlace[],
): Promise<ChainListing> {
  const object = places.map(({ family, table }) => `table ${family} ${table}`).join(', ')
  const read = async (attempt: Attempt) => {
    const observed = new Map<string, { readonly chains: Map<string, MutableChain> }>()
    for (const family of ['ip', 'ip6'] as const) {
      const wanted = places.filter(place => place.family === family)
      if (attempt.isOver || wanted.length === 0) continue
      for (const [name, found] of await readWanted(attempt, family, wanted)) {
        if (attempt.isOver) break
        await readRules(attempt, { family, name }, found)
        observed.set(`${family} ${name}`, { chains: found.chains })
      }
    }
    return observed
  }
  // A table whose dump takes a second is not read eight times.
  const settled = await readSettled({ connection, clock, object, read, patienceMs: 2_000 })
  const { value, ...rest } = settled
  return { observed: value, ...rest }
}

/** Reads the rules of one chain with their counts; none when it does not exist. Not bracketed by the generation. */
export async function readRuleCounters(
  connection: Connection,
  place: ChainName,
): Promise<readonly CountedRule[]> {
  const rules: CountedRule[] = []
  await dumpChain(connection, place, ({ handle, compiled, packets }) =>
    rules.push({ handle, compiled, packets }),
  )
  return rules
}

/** Dumps the rules of one chain; none when it does not exist. Throws NetlinkError: ENOENT without its table. */
export async function dumpChain(
  connection: Connection,
  { family, table, chain }: Omit<ChainName, 'family'> & { readonly family: HookFamily },
  onRule: (rule: RuleBytes, view: ByteView, message: Message) => void,
): Promise<void> {
  const request = dumpRequest(chainDump({ family, name: table }, chain), (view, message) => {
    const rule = decodeRuleBytes(view, message)
    if (rule.chain === chain && rule.table === table) onRule(rule, view, message)
  })
  await connection.dump(request)
}

function chainDump(table: Pick<AnyTable, 'family' | 'name'>, chain: string) {
  const what = `rules of ${chain} in table`
  return { type: nft.NFT_MSG_GETRULE, what, table, within: [table.name, chain] }
}

/** Reads the bytes of one rule; undefined when it, its chain or its table is gone. Synchronous, under 20 us. */
export function readRule(
  connection: Connection,
  { family, table, chain, handle }: ChainName & { readonly handle: bigint },
): Octets | undefined {
  let compiled: Octets | undefined
  try {
    connection.roundTrip({
      operation: 'read',
      object: `rule ${family} ${table} ${chain} handle ${handle}`,
      build: sequence =>
        getRequest({ type: nft.NFT_MSG_GETRULE, flags: 0, family: familyNumber(family), sequence }, out =>
          writeAttributes(out, RULE, { table, chain, handle }),
        ),
      onMessage(view, message) {
        const rule = decodeRuleBytes(view, message)
        if (rule.handle === handle) compiled = rule.compiled
      },
    })
  } catch (error) {
    if (!(error instanceof NetlinkError) || error.code !== 'ENOENT') throw error
  }
  return compiled
}

interface MutableChain extends ObservedChain {
  readonly rules: ObservedRule[]
}

/** The wanted chains of one table, and the size of the whole table. */
interface Found {
  readonly chains: Map<string, MutableChain>
  /** The kernel's use count: rules of all chains and jumps to them. `wantedUse` counts only those of `chains`. */
  use: number
  wantedUse: number
}

/** Reads the wanted chains of all tables that exist, by table. */
async function readWanted(
  attempt: Attempt,
  family: NftFamily,
  places: readonly ChainPlace[],
): Promise<ReadonlyMap<string, Found>> {
  const names = new Set(places.map(({ table }) => table))
  const table = { family, name: [...names].join(', ') }
  return await attempt.steadily(async () => {
    const tables = new Map<string, Found>()
    const tableDump = { type: nft.NFT_MSG_GETTABLE, what: 'table', table }
    await attempt.dump(tableDump, (view, message) => {
      const { name } = decodeTable(view, message)
      if (names.has(name)) tables.set(name, { chains: new Map(), use: 0, wantedUse: 0 })
    })
    const chainDump = { type: nft.NFT_MSG_GETCHAIN, what: 'chains of table', table }
    await attempt.dump(chainDump, (view, message) => {
      const { table: of, value, use } = decodeChain(view, message)
      const found = tables.get(of)
      if (found === undefined) return
      found.use += use
      const isWanted = places.some(place => place.table === of && place.chains?.(value.name) !== false)
      if (!isWanted) return
      found.wantedUse += use
      found.chains.set(value.name, { ...value, rules: [] })
    })
    return tables
  })
}

async function readRules(attempt: Attempt, table: TableName, found: Found): Promise<void> {
  const { chains } = found
  // An inconsistent dump may repeat a rule: the kernel counts rules to find its position.
  const seen = attempt.unsettled ? new Set<bigint>() : undefined
  const onMessage: OnMessage = (view, message) => {
    const { chain, handle, compiled, userdata } = decodeRuleBytes(view, message)
    const rules = chains.get(chain)?.rules
    if (rules === undefined || seen?.has(handle) === true) return
    seen?.add(handle)
    rules.push({ handle, compiled, userdata })
  }
  if (isCheaperByChain(found)) {
    const requests = function* () {
      for (const chain of chains.keys()) yield dumpRequest(chainDump(table, chain), onMessage)
    }
    const words = { operation: 'list', object: 'rules chain by chain' }
    attempt.note(await attempt.connection.dumps(words, requests(), { throughout: attempt.unsettled }))
  } else {
    const ruleDump = { type: nft.NFT_MSG_GETRULE, what: 'rules of table', table, within: [table.name] }
    await attempt.dump(ruleDump, onMessage)
  }
}

/**
 * Estimates the cost. For each datagram of a dump the kernel walks all rules of the table, or the chain, from the
 * first, so a dump grows with the square of the number of rules (110,000 rules took 7 s). Reading chain by chain
 * costs one request per chain.
 */
function isCheaperByChain({ chains, use, wantedUse }: Found): boolean {
  const together = use * (use / RULES_PER_DATAGRAM) + use * VISITS_PER_RULE
  return chains.size * VISITS_PER_DUMP + wantedUse * VISITS_PER_RULE < together
}
