import type { Clock } from '../../base/clock.ts'
import type { Octets } from '../../base/octets.ts'
import { attributeLength, attributeType, type ByteView } from '../../netlink/attribute.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NLA_HDRLEN } from '../../netlink/constants.ts'
import { malformed, NetlinkError } from '../../netlink/errors.ts'
import { type Message, NFGENMSG_LENGTH } from '../../netlink/message.ts'
import { writeAttributes } from '../../netlink/schema.ts'
import * as nft from './constants.ts'
import { decodeChain, decodeTable } from './decode.ts'
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
  await dumpChain(connection, place, (spans, view) => {
    const packets = spans.packets(view)
    rules.push({ handle: spans.handle(view), compiled: spans.compiled(view), packets })
  })
  return rules
}

/** Dumps the rules of one chain; none when it does not exist. Throws NetlinkError: ENOENT without its table. */
export async function dumpChain(
  connection: Connection,
  { family, table, chain }: Omit<ChainName, 'family'> & { readonly family: HookFamily },
  onRule: (spans: RuleSpans, view: ByteView, message: Message) => void,
): Promise<void> {
  const spans = new RuleSpans()
  const request = dumpRequest(chainDump({ family, name: table }, chain), (view, message) => {
    spans.walk(view, message)
    if (spans.isInChain(view, chain) && spans.table(view) === table) onRule(spans, view, message)
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
  const collector = new RuleCollector(chains, attempt)
  const onMessage: OnMessage = (view, message) => collector.rule(view, message)
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
    const [compiled, userdata] = [spans.compiled(view), spans.userdata(view)]
    this.#current.rules.push(userdata === undefined ? { handle, compiled } : { handle, compiled, userdata })
  }
}

/**
 * Positions of the parts of a rule. One object serves a whole dump and is refilled for each rule. It parses
 * NFT_MSG_NEWRULE by hand: a shared table has a hundred thousand rules, and kprobe needs only their bytes
 * (docs/decisions/0001). A property test compares it with the attribute tables.
 */
export class RuleSpans {
  tableStart = 0
  tableEnd = 0
  chainStart = 0
  chainEnd = 0
  handleAt = 0
  start = 0
  end = 0
  userdataStart = 0
  userdataEnd = 0

  /** Locates the parts. Throws NetlinkError when the message is not a rule, or lacks its table, chain or handle. */
  walk(view: ByteView, message: Message): void {
    this.tableStart = this.chainStart = this.handleAt = this.start = this.end = this.userdataStart = 0
    const { end } = message
    for (let at = message.start + NFGENMSG_LENGTH; at < end; ) {
      const length = attributeLength(view, at, end)
      const payload = at + NLA_HDRLEN
      switch (attributeType(view, at)) {
        case nft.NFTA_RULE_TABLE:
          this.tableStart = payload
          this.tableEnd = at + length - 1
          break
        case nft.NFTA_RULE_CHAIN:
          this.chainStart = payload
          this.chainEnd = at + length - 1
          break
        case nft.NFTA_RULE_HANDLE:
          if (length === NLA_HDRLEN + 8) this.handleAt = payload
          break
        case nft.NFTA_RULE_EXPRESSIONS:
          this.start = payload
          this.end = at + length
          break
        case nft.NFTA_RULE_USERDATA:
          this.userdataStart = payload
          this.userdataEnd = at + length
      }
      at += (length + 3) & ~3
    }
    if (this.tableStart === 0 || this.chainStart === 0 || this.handleAt === 0)
      throw malformed('a rule without its table, chain or handle', message.start)
  }

  handle({ data }: ByteView): bigint {
    return data.getBigUint64(this.handleAt)
  }

  userdata({ bytes }: ByteView): Octets | undefined {
    if (this.userdataStart === 0) return undefined
    return bytes.toString('latin1', this.userdataStart, this.userdataEnd)
  }

  table({ bytes }: ByteView): string {
    return bytes.toString('utf8', this.tableStart, this.tableEnd)
  }

  chain({ bytes }: ByteView): string {
    return bytes.toString('utf8', this.chainStart, this.chainEnd)
  }

  isInChain({ bytes }: ByteView, name: string): boolean {
    const { chainStart, chainEnd } = this
    if (chainEnd - chainStart !== name.length) return false
    for (let i = 0; i < name.length; i++) if (bytes[chainStart + i] !== name.charCodeAt(i)) return false
    return true
  }

  /** Returns the sum of its counters. */
  packets(view: ByteView): bigint {
    let packets = 0n
    for (let at = nextCounter(view, this.start, this.end); at !== NONE; ) {
      const value = counterValue(view, at, nft.NFTA_COUNTER_PACKETS)
      if (value !== NONE) packets += view.data.getBigUint64(value)
      at = nextCounter(view, after(view, at), this.end)
    }
    return packets
  }

  /**
   * Returns the expressions with counters at zero. Clears the counters in the buffer. No other expression that kprobe
   * compiles has a state: the kernel lists what xtables' structures keep for themselves (statistic, nfacct) as zeros. A rule
   * with `quota`, `limit` or `connlimit` is not kprobe's, and never equal to one that is, whatever they count.
   */
  compiled(view: ByteView): Octets {
    for (let at = nextCounter(view, this.start, this.end); at !== NONE; ) {
      clear(view, counterValue(view, at, nft.NFTA_COUNTER_PACKETS))
      clear(view, counterValue(view, at, nft.NFTA_COUNTER_BYTES))
      at = nextCounter(view, after(view, at), this.end)
    }
    return view.bytes.toString('latin1', this.start, this.end)
  }
}

const NONE = -1

function after({ data }: ByteView, at: number): number {
  return at + ((data.getUint16(at, true) + 3) & ~3)
}

/** `counter` and its NUL, as two words in host order. */
const COUN = 0x6e756f63
const TER = 0x00726574
const COUNTER_NAME_LENGTH = NLA_HDRLEN + 8

/** Returns the position of the next list element that is a counter. */
function nextCounter(view: ByteView, from: number, end: number): number {
  const { data } = view
  for (let at = from; at < end; ) {
    const length = attributeLength(view, at, end)
    // The kernel writes the name first.
    const name = at + NLA_HDRLEN
    const isCounter =
      length >= NLA_HDRLEN + COUNTER_NAME_LENGTH &&
      data.getUint16(name, true) === COUNTER_NAME_LENGTH &&
      data.getUint32(name + NLA_HDRLEN, true) === COUN &&
      data.getUint32(name + NLA_HDRLEN + 4, true) === TER
    if (isCounter) return at
    at += (length + 3) & ~3
  }
  return NONE
}

/** Returns the position of the eight bytes of a counter's attribute. */
function counterValue(view: ByteView, at: number, wanted: number): number {
  const end = at + view.data.getUint16(at, true)
  for (let outer = at + NLA_HDRLEN; outer < end; ) {
    const length = attributeLength(view, outer, end)
    if (attributeType(view, outer) === nft.NFTA_EXPR_DATA) {
      const last = outer + length
      for (let inner = outer + NLA_HDRLEN; inner < last; ) {
        const size = attributeLength(view, inner, last)
        if (attributeType(view, inner) === wanted && size === NLA_HDRLEN + 8) return inner + NLA_HDRLEN
        inner += (size + 3) & ~3
      }
    }
    outer += (length + 3) & ~3
  }
  return NONE
}

function clear({ data }: ByteView, at: number): void {
  if (at === NONE) return
  data.setUint32(at, 0)
  data.setUint32(at + 4, 0)
}
