import type { ObservedRule } from '../nft/state.ts'
import { targetChain, type XtRule } from './rule.ts'
import {
  builtinHook,
  chainKey,
  type ScopeOperation,
  type ScopeOperations,
  tableKey,
  type XtChain,
  type XtJump,
  type XtPlace,
} from './scope.ts'

export interface OwnedEntry {
  readonly rule: XtRule
  readonly owner: string
  /** See XtEntry. */
  readonly sequence?: string | undefined
}

export interface ChainContent {
  readonly chain: XtChain
  readonly owner: string | undefined
  readonly entries: readonly OwnedEntry[]
}

/** Content that differs from what the chain holds. */
interface ChangedContent extends ChainContent {
  /** Number of rules to flush first; undefined for a chain that does not exist. */
  readonly replaces: number | undefined
}

interface ChainPlace extends XtPlace {
  readonly chain: string
}

interface ChainGoing extends ChainPlace {
  readonly owner: string | undefined
  readonly rules: number
  /** The chain is only emptied. */
  readonly stays?: boolean
}

/**
 * Collects changes and orders them so that every prefix of the order is harmless: chains are filled before anything
 * refers to them, and removed after nothing refers to them. A socket with a small limit may split them into several
 * commits. Only a rewritten chain that the split divides can be half full for packets between two of these commits.
 * A chain is only ever written as a whole.
 */
export class ScopeDraft {
  readonly #tables = new Map<string, XtPlace>()
  /** Base chains, and chains of other programs that our jumps need. */
  readonly #foundations = new Map<string, ScopeOperation>()
  readonly #contents = new Map<string, Map<string, ChangedContent>>()
  readonly #jumps: ScopeOperation[] = []
  readonly #jumpsGone: ScopeOperation[] = []
  readonly #chainsInTheWay: ChainGoing[] = []
  /** By chainKey: several owners may give up one chain. */
  readonly #chainsGone = new Map<string, ChainGoing>()

  addTable({ family, table }: XtPlace): void {
    this.#tables.set(tableKey({ family, table }), { family, table })
  }

  /** Adds a chain that is not ours, as iptables-nft would create it. */
  addFoundation({ family, table }: XtPlace, chain: string): void {
    const hook = builtinHook(table, chain)
    this.#foundations.set(chainKey({ family, table }, chain), {
      verb: 'add-chain',
      family,
      table,
      chain,
      hook,
      owner: undefined,
    })
  }

  /** Writes a chain. Of several owners that want it with the same rules, the first is to blame for them. */
  write(content: ChangedContent): void {
    const table = tableKey(content.chain)
    const { name } = content.chain
    const contents = this.#contents.get(table)
    if (contents === undefined) this.#contents.set(table, new Map([[name, content]]))
    else if (!contents.has(name)) contents.set(name, content)
  }

  insertJump(jump: XtJump): void {
    this.#jumps.push({ verb: 'insert-rule', ...placed(jump), rule: jump.rule, owner: undefined })
  }

  removeJump(place: ChainPlace, rule: ObservedRule): void {
    this.#jumpsGone.push({ verb: 'delete-rule', ...placed(place), rule, owner: undefined })
  }

  /** Removes a chain before a new one of its name is created. */
  clearTheWay(chain: ChainGoing): void {
    this.#chainsInTheWay.push(chain)
  }

  removeChain(chain: ChainGoing): void {
    this.#chainsGone.set(chainKey(chain, chain.chain), chain)
  }

  finish(): ScopeOperations {
    const operations: ScopeOperation[] = []
    dropChains(operations, this.#chainsInTheWay)
    for (const place of this.#tables.values())
      operations.push({ verb: 'add-table', ...place, owner: undefined })
    operations.push(...this.#foundations.values())
    const tables = [...this.#contents.values()]
    for (const contents of tables)
      for (const content of contents.values())
        if (content.replaces === undefined) operations.push(newChain(content))
    for (const contents of tables)
      for (const content of leavesFirst(contents)) writeContent(operations, content)
    operations.push(...inwards(this.#jumps), ...this.#jumpsGone)
    dropChains(operations, [...this.#chainsGone.values()])
    return operations
  }
}

function newChain({ chain: { family, table, name }, owner }: ChainContent): ScopeOperation {
  return { verb: 'add-chain', family, table, chain: name, owner, hook: undefined }
}

/** Empties all chains before it deletes the first one, because they may refer to each other. */
function dropChains(operations: ScopeOperation[], chains: readonly ChainGoing[]): void {
  for (const going of chains) if (going.rules > 0) operations.push(flush(going))
  for (const going of chains)
    if (going.stays !== true) operations.push({ verb: 'delete-chain', ...placed(going), owner: going.owner })
}

function placed({ family, table, chain }: ChainPlace): ChainPlace {
  return { family, table, chain }
}

function flush({ rules, owner, ...place }: Omit<ChainGoing, 'stays'>): ScopeOperation {
  return { verb: 'flush-chain', ...placed(place), owner, rules }
}

function writeContent(operations: ScopeOperation[], content: ChangedContent): void {
  const { owner, replaces, entries } = content
  const { family, table, name: chain, rules, last } = content.chain
  if (replaces !== undefined && replaces > 0)
    operations.push(flush({ family, table, chain, owner, rules: replaces }))
  for (const rule of rules) operations.push({ verb: 'add-rule', family, table, chain, rule, owner })
  for (const entry of entries)
    operations.push({ verb: 'add-rule', family, table, chain, rule: entry.rule, owner: entry.owner })
  for (const rule of last) operations.push({ verb: 'add-rule', family, table, chain, rule, owner })
}

/** Sorts jumps of chains that other programs attach to base chains before jumps of the base chains. */
function inwards(jumps: readonly ScopeOperation[]): readonly ScopeOperation[] {
  const isBase = (jump: ScopeOperation): boolean =>
    'chain' in jump && builtinHook(jump.table, jump.chain) !== undefined
  return [...jumps.filter(jump => !isBase(jump)), ...jumps.filter(isBase)]
}

/** Yields each chain after the chains that its rules lead to. */
function* leavesFirst(contents: ReadonlyMap<string, ChangedContent>): Iterable<ChangedContent> {
  const opened = new Set<ChangedContent>()
  const closed = new Set<ChangedContent>()
  const stack: ChangedContent[] = []
  const open = (rule: XtRule): void => {
    const next = contents.get(targetChain(rule) ?? '')
    if (next !== undefined && !opened.has(next)) stack.push(next)
  }
  for (const start of contents.values()) {
    if (closed.has(start)) continue
    stack.push(start)
    for (let content = stack.at(-1); content !== undefined; content = stack.at(-1)) {
      if (!opened.has(content)) {
        opened.add(content)
        content.chain.rules.forEach(open)
        for (const { rule } of content.entries) open(rule)
        content.chain.last.forEach(open)
        continue
      }
      stack.pop()
      if (closed.has(content)) continue
      closed.add(content)
      yield content
    }
  }
}
