import type { Clock } from '../../base/clock.ts'
import type { Octets } from '../../base/octets.ts'
import type { ByteView } from '../../netlink/bytes.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NLM_F_DUMP } from '../../netlink/constants.ts'
import type { Request } from '../../netlink/conversation.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import type { Message } from '../../netlink/message.ts'
import { type AttributeSet, type Attributes, type Fields, writeAttributes } from '../../netlink/schema.ts'
import * as nft from './constants.ts'
import { decodeTable, decodeUsedChain, familyOf } from './decode.ts'
import { familyNumber } from './encode.ts'
import { getRequest } from './get-request.ts'
import { RuleSpans } from './rule-walk.ts'
import { CHAIN, RULE, TABLE } from './schema.ts'
import { readSettled, type Settled } from './settle.ts'
import type { NftFamily, Observed, ObservedChain, ObservedRule } from './state.ts'

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

/** The chain whose rules are read. */
export interface ChainName {
  readonly family: NftFamily
  readonly table: string
  readonly chain: string
}

export interface CountedRule extends ObservedRule {
  readonly packets: bigint
}

/** A dump of all tables or chains takes a fraction of the time that their rules take. */
const SHORT_DUMP_ATTEMPTS = 16
/** A table whose dump takes a second is not read eight times. */
const PATIENCE_MS = 2_000
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
  const read = (unsettled: boolean) => new ChainReading(connection, unsettled).read(places)
  const settled = await readSettled({ connection, clock, object, read, patienceMs: PATIENCE_MS })
  const { value, ...rest } = settled
  return { observed: value, ...rest }
}

/** Reads the rules of one chain with their counts; none when it does not exist. Not bracketed by the generation. */
export async function readRuleCounters(
  connection: Connection,
  { family, table, chain }: ChainName,
): Promise<readonly CountedRule[]> {
  const rules: CountedRule[] = []
  const spans = new RuleSpans()
  const dump = { type: nft.NFT_MSG_GETRULE, what: `rules of ${chain} in`, family, table, set: RULE }
  await dumpAll(connection, { ...dump, filter: { table, chain } }, (view, message) => {
    spans.walk(view, message)
    if (!spans.isInChain(view, chain) || spans.table(view) !== table) return
    const packets = spans.packets(view)
    rules.push({ handle: spans.handle(view), compiled: spans.compiled(view), packets })
  })
  return rules
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
        const spans = new RuleSpans()
        spans.walk(view, message)
        if (spans.handle(view) === handle) compiled = spans.compiled(view)
      },
    })
  } catch (error) {
    if (!(error instanceof NetlinkError) || error.code !== 'ENOENT') throw error
  }
  return compiled
}

interface Dump<F extends Fields> {
  readonly type: number
  readonly what: string
  readonly family: NftFamily
  readonly table: string
  readonly set: AttributeSet<F>
  readonly filter: Attributes<F>
}

/** Dumps objects. Returns false when the kernel reports an inconsistent dump. */
function dumpAll<F extends Fields>(
  connection: Connection,
  dump: Dump<F>,
  onMessage: OnMessage,
): Promise<boolean> {
  return connection.dump(requestOf(dump, onMessage))
}

type OnMessage = (view: ByteView, message: Message) => void

function requestOf<F extends Fields>(
  { type, what, family, table, set, filter }: Dump<F>,
  onMessage: OnMessage,
): Request {
  return {
    operation: 'list',
    object: `${what} table ${family} ${table}`,
    build: sequence =>
      getRequest({ type, flags: NLM_F_DUMP, family: familyNumber(family), sequence }, out =>
        writeAttributes(out, set, filter),
      ),
    onMessage(view, message) {
      if (familyOf(view, message) === family) onMessage(view, message)
    },
  }
}

interface MutableChain extends ObservedChain {
  readonly rules: ObservedRule[]
}

/** The wanted chains of one table, and the size of the whole table. */
interface Found {
  readonly chains: Map<string, MutableChain>
  /**
   * The kernel's use count: rules of all chains of the table and jumps to them. `wantedUse` counts only those of
   * `chains`.
   */
  use: number
  wantedUse: number
}

/** One attempt to read chains. */
class ChainReading {
  readonly #connection: Connection
  readonly #unsettled: boolean
  /** Another program committed: the attempt is over, unless it accepts that. */
  #interrupted = false

  constructor(connection: Connection, unsettled: boolean) {
    this.#connection = connection
    this.#unsettled = unsettled
  }

  /** Reads the chains; undefined when a commit interrupted the read. */
  async read(places: readonly ChainPlace[]): Promise<Observed | undefined> {
    const observed = new Map<string, { readonly chains: Map<string, MutableChain> }>()
    for (const family of ['ip', 'ip6'] as const) {
      const wanted = places.filter(place => place.family === family)
      const tables = wanted.length === 0 ? new Map<string, Found>() : await this.#chains(family, wanted)
      for (const [table, found] of tables) {
        if (this.#interrupted) return undefined
        await this.#rules({ family, table }, found)
        observed.set(`${family} ${table}`, { chains: found.chains })
      }
      if (this.#interrupted) return undefined
    }
    return observed
  }

  /** Reads the wanted chains of all tables that exist, by table. */
  async #chains(family: NftFamily, places: readonly ChainPlace[]): Promise<ReadonlyMap<string, Found>> {
    const names = new Set(places.map(({ table }) => table))
    const about = { family, table: [...names].join(', ') }
    return await this.#steadily(async () => {
      const tables = new Map<string, Found>()
      const dump = { type: nft.NFT_MSG_GETTABLE, what: '', ...about, set: TABLE, filter: {} }
      const wholeTables = await dumpAll(this.#connection, dump, (view, message) => {
        const { name } = decodeTable(view, message)
        if (names.has(name)) tables.set(name, { chains: new Map(), use: 0, wantedUse: 0 })
      })
      const chainDump = { type: nft.NFT_MSG_GETCHAIN, what: 'chains of', ...about, set: CHAIN, filter: {} }
      const wholeChains = await dumpAll(this.#connection, chainDump, (view, message) => {
        const { table, value, use } = decodeUsedChain(view, message)
        const found = tables.get(table)
        if (found === undefined) return
        found.use += use
        const isWanted = places.some(place => place.table === table && place.chains?.(value.name) !== false)
        if (!isWanted) return
        found.wantedUse += use
        found.chains.set(value.name, { name: value.name, hook: value.hook, rules: [] })
      })
      return { value: tables, whole: wholeTables && wholeChains }
    })
  }

  /** Repeats a dump until it is consistent: a dump across all tables may skip ours when another table is removed. */
  async #steadily<T>(read: () => Promise<{ readonly value: T; readonly whole: boolean }>): Promise<T> {
    for (let attempt = 1; ; attempt++) {
      const { value, whole } = await read()
      if (whole) return value
      if (!this.#unsettled || attempt === SHORT_DUMP_ATTEMPTS) this.#interrupted = true
      if (this.#interrupted) return value
    }
  }

  async #rules({ family, table }: Omit<ChainName, 'chain'>, found: Found): Promise<void> {
    const { chains } = found
    const collector = new RuleCollector(chains, { unsettled: this.#unsettled })
    const onMessage: OnMessage = (view, message) => collector.rule(view, message)
    const dump = { type: nft.NFT_MSG_GETRULE, family, table, set: RULE }
    const torn = isCheaperByChain(found)
      ? await this.#byChain(chains.keys(), chain =>
          requestOf({ ...dump, what: `rules of ${chain} in`, filter: { table, chain } }, onMessage),
        )
      : !(await dumpAll(this.#connection, { ...dump, what: 'rules of', filter: { table } }, onMessage))
    if (torn && !this.#unsettled) this.#interrupted = true
  }

  /**
   * Reads rules chain by chain. Returns whether the dump was inconsistent: it then omits the rest, unless this
   * attempt accepts that.
   */
  async #byChain(chains: Iterable<string>, request: (chain: string) => Request): Promise<boolean> {
    const words = { operation: 'list', object: 'rules chain by chain' }
    const left = requests(chains, request)
    let whole = await this.#connection.dumps(words, left)
    const torn = !whole
    while (!whole && this.#unsettled) whole = await this.#connection.dumps(words, left)
    return torn
  }
}

/** Returns an iterable that a second loop continues where the first one stopped. */
function requests(chains: Iterable<string>, request: (chain: string) => Request): Iterable<Request> {
  const names = chains[Symbol.iterator]()
  const next = (): IteratorResult<Request> => {
    const { done, value } = names.next()
    return done === true ? { done, value: undefined } : { done: false, value: request(value) }
  }
  return { [Symbol.iterator]: () => ({ next }) }
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

/** Collects the rules of one table, which arrive chain by chain. */
class RuleCollector {
  readonly #chains: ReadonlyMap<string, MutableChain>
  readonly #spans = new RuleSpans()
  /** An inconsistent dump may repeat a rule: the kernel counts rules to find its position. */
  readonly #seen: Set<bigint> | undefined
  #current: MutableChain | undefined

  constructor(chains: ReadonlyMap<string, MutableChain>, { unsettled }: { readonly unsettled: boolean }) {
    this.#chains = chains
    this.#seen = unsettled ? new Set() : undefined
  }

  rule(view: ByteView, message: Message): void {
    const spans = this.#spans
    spans.walk(view, message)
    if (this.#current === undefined || !spans.isInChain(view, this.#current.name))
      this.#current = this.#chains.get(spans.chain(view))
    if (this.#current === undefined) return
    const handle = spans.handle(view)
    if (this.#seen?.has(handle) === true) return
    this.#seen?.add(handle)
    this.#current.rules.push({ handle, compiled: spans.compiled(view) })
  }
}
