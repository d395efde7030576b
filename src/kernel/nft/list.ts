import type { Clock } from '../../base/clock.ts'
import { PersistentMap } from '../../base/persistent-map.ts'
import type { ByteView } from '../../netlink/bytes.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NLM_F_DUMP } from '../../netlink/constants.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import type { Message } from '../../netlink/message.ts'
import { type AttributeSet, type Attributes, type Fields, writeAttributes } from '../../netlink/schema.ts'
import * as nft from './constants.ts'
import {
  decodeChain,
  decodeElements,
  decodeRule,
  decodeSet,
  decodeTable,
  familyOf,
  type TableHead,
} from './decode.ts'
import { familyNumber } from './encode.ts'
import type { Rule } from './expression.ts'
import { getRequest } from './get-request.ts'
import { type IpsetNames, rememberIpsets } from './ipset-names.ts'
import { CHAIN, RULE, SET, SET_ELEMENTS, TABLE } from './schema.ts'
import { readSettled, type Settled } from './settle.ts'
import type { Chain, Element, ElementGroup, NftFamily, NftSet, Ruleset, Table } from './state.ts'

export interface TableName {
  readonly family: NftFamily
  readonly name: string
}

export interface Listing extends Omit<Settled<Ruleset>, 'value'> {
  readonly ruleset: Ruleset
}

/** A dump of all tables or chains takes microseconds, a listing takes milliseconds. */
const SHORT_DUMP_ATTEMPTS = 16

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
  tables: readonly TableName[],
): Promise<Listing> {
  const object = tables.map(({ family, name }) => `table ${family} ${name}`).join(', ')
  const read = (unsettled: boolean) => new Listings(connection, { ipsets, unsettled }).read(tables)
  const { value, ...rest } = await readSettled({ connection, clock, object, read })
  return { ruleset: { tables: value }, ...rest }
}

/** A dump: a message type, and a filter; kernels that do not know it ignore it. */
interface Dump<F extends Fields> {
  readonly type: number
  readonly what: string
  readonly table: TableName
  readonly set: AttributeSet<F>
  readonly filter: Attributes<F>
}

/**
 * One attempt at reading tables. An unsettled one accepts commits of other programs meanwhile. Dumps of one table's
 * rules, sets and elements do not depend on other tables. Dumps of all tables or all chains may skip ours when
 * another table is removed, so they are repeated until they are consistent.
 */
class Listings {
  readonly #connection: Connection
  readonly #ipsets: IpsetNames
  readonly #unsettled: boolean
  /** Set when this attempt cannot succeed any more. */
  #interrupted = false
  /** The kernel reported a change during a dump. */
  #torn = false

  constructor(
    connection: Connection,
    options: { readonly ipsets: IpsetNames | undefined; readonly unsettled: boolean },
  ) {
    const { ipsets, unsettled } = options
    this.#connection = connection
    this.#ipsets = rememberIpsets(ipsets)
    this.#unsettled = unsettled
  }

  /** Reads the tables; undefined when a commit interrupted the read. */
  async read(names: readonly TableName[]): Promise<readonly Table[] | undefined> {
    const tables: Table[] = []
    for (const name of names) {
      const head = await this.#head(name)
      if (head !== undefined) tables.push(await this.#table(name, head))
      if (this.#interrupted) return undefined
    }
    return tables
  }

  async #head(table: TableName): Promise<TableHead | undefined> {
    const dump = { type: nft.NFT_MSG_GETTABLE, what: 'table', table, set: TABLE, filter: {} }
    return await this.#steadily(async () => {
      let found: TableHead | undefined
      await this.#dump(dump, (view, message) => {
        const head = decodeTable(view, message)
        if (head.name === table.name) found = head
      })
      return found
    })
  }

  async #table({ family, name }: TableName, head: TableHead): Promise<Table> {
    const table = { family, name }
    const chains = await this.#chains(table)
    const sets = await this.#sets(table)
    const elements: [string, ElementGroup][] = []
    for (const set of sets.values()) {
      if (this.#interrupted) break
      elements.push([set.name, await this.#elements(table, set)])
    }
    return { family, ...head, chains, sets, elements: PersistentMap.from(elements) }
  }

  async #chains(table: TableName): Promise<ReadonlyMap<string, Chain>> {
    const chainDump = { type: nft.NFT_MSG_GETCHAIN, what: 'chains of table', table, set: CHAIN, filter: {} }
    const chains = await this.#steadily(async () => {
      const found = new Map<string, Chain & { readonly rules: Rule[] }>()
      await this.#dump(chainDump, (view, message) => {
        const chain = decodeChain(view, message)
        if (chain.table === table.name) found.set(chain.value.name, { ...chain.value, rules: [] })
      })
      return found
    })
    const filter = { table: table.name }
    await this.#dump(
      { type: nft.NFT_MSG_GETRULE, what: 'rules of table', table, set: RULE, filter },
      (view, message) => {
        const rule = decodeRule(view, message, this.#ipsets.nameOf)
        if (rule.table === table.name) chains.get(rule.chain)?.rules.push(rule.value)
      },
    )
    return chains
  }

  async #sets(table: TableName): Promise<ReadonlyMap<string, NftSet>> {
    const sets = new Map<string, NftSet>()
    const filter = { table: table.name }
    await this.#dump(
      { type: nft.NFT_MSG_GETSET, what: 'sets of table', table, set: SET, filter },
      (view, message) => {
        const set = decodeSet(view, message)
        if (set.table === table.name) sets.set(set.value.name, set.value)
      },
    )
    return sets
  }

  async #elements(table: TableName, set: NftSet): Promise<ElementGroup> {
    const found: Element[] = []
    const filter = { table: table.name, set: set.name }
    const what = `elements of ${set.name} in table`
    const expirations = (set.flags & nft.NFT_SET_EVAL) !== 0
    const dump = { type: nft.NFT_MSG_GETSETELEM, what, table, set: SET_ELEMENTS, filter }
    await this.#dump(dump, (view, message) => {
      for (const element of decodeElements(view, message, { expirations }).value) found.push(element)
    })
    return found
  }

  /** Reads a dump across all tables; an unsettled listing repeats it until it is consistent. */
  async #steadily<T>(read: () => Promise<T>): Promise<T> {
    for (let attempt = 1; ; attempt++) {
      this.#torn = false
      const value = await read()
      if (!this.#torn || !this.#unsettled) return value
      if (attempt === SHORT_DUMP_ATTEMPTS) this.#interrupted = true
      if (this.#interrupted) return value
    }
  }

  async #dump<F extends Fields>(
    dump: Dump<F>,
    onMessage: (view: ByteView, message: Message) => void,
  ): Promise<void> {
    const { type, what, table, set, filter } = dump
    const family = familyNumber(table.family)
    try {
      const consistent = await this.#connection.dump({
        operation: 'list',
        object: `${what} ${table.family} ${table.name}`,
        build: sequence =>
          getRequest({ type, flags: NLM_F_DUMP, family, sequence }, out => writeAttributes(out, set, filter)),
        onMessage(view, message) {
          if (familyOf(view, message) === table.family) onMessage(view, message)
        },
      })
      this.#torn ||= !consistent
      if (!consistent && !this.#unsettled) this.#interrupted = true
    } catch (error) {
      // The listed object has been removed since.
      if (!(error instanceof NetlinkError) || error.code !== 'ENOENT') throw error
      this.#interrupted = true
    }
  }
}
