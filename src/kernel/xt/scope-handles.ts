import { append } from '../../base/collections.ts'
import type { Octets } from '../../base/octets.ts'
import type { NftClient } from '../nft/client.ts'
import type { NftFamily, Observed, ObservedChain, ObservedRule } from '../nft/state.ts'
import { bytesOf, type RuleCodec } from './compile.ts'
import { printRule } from './print.ts'
import { readRule } from './read.ts'
import {
  chainKey,
  type DeleteRule,
  isObservedRule,
  placeOfTable,
  type ScopeOperations,
  type XtTableName,
} from './scope.ts'

/**
 * Caches the kernel's rule handles for chains from which single rules are deleted, from listings and from answers to
 * our own commits. A handle may belong to another rule after another program deletes the table and creates it again:
 * handles that were cached before a commit of another program must be verified before use.
 */
export class HandleCache {
  readonly #chains = new Map<string, KnownChain>()
  /** Last generation without unknown commits of other programs. */
  #generation: number | undefined
  /** Counts the noticed commits of other programs. */
  #epoch = 0

  /** Records the kernel's current generation; a change that is not ours means that another program committed. */
  reached(generation: number): void {
    if (this.#generation !== undefined && this.#generation !== generation) this.#epoch++
    this.#generation = generation
  }

  /** Records the generation after a commit of ours without another program's commit. */
  committed(generation: number): void {
    this.#generation = generation
  }

  /** Stores all rules of a chain at the generation that was reached last. */
  learn(key: string, rules: ObservedChain['rules']): void {
    this.#chains.set(key, { epoch: this.#epoch, rules, byBytes: undefined })
  }

  /**
   * Stores the wanted chains of a listing, and forgets all others. `generation` is undefined for an unsettled listing,
   * whose handles may be gone.
   */
  learnAll(
    observed: Observed,
    generation: number | undefined,
    isWanted: (table: XtTableName, chain: string) => boolean = () => true,
  ): void {
    this.forgetAll()
    if (generation === undefined) return
    this.reached(generation)
    for (const [key, { chains }] of observed) {
      const place = placeOfTable(key)
      if (place === undefined) continue
      for (const { name, rules } of chains.values())
        if (isWanted(place.table, name)) this.learn(chainKey(place, name), rules)
    }
  }

  forget(key: string): void {
    this.#chains.delete(key)
  }

  forgetAll(): void {
    this.#chains.clear()
  }

  get isEmpty(): boolean {
    return this.#chains.size === 0
  }

  has(key: string): boolean {
    return this.#chains.has(key)
  }

  /** Returns whether no other program committed since the chain was stored. */
  isFresh(key: string): boolean {
    return this.#chains.get(key)?.epoch === this.#epoch
  }

  /** Returns the handles of rules with these bytes, in the known order of the chain. */
  handlesOf(key: string, compiled: Octets): readonly bigint[] {
    const chain = this.#chains.get(key)
    return chain === undefined ? [] : (indexOf(chain).get(compiled) ?? [])
  }

  *rulesOf(key: string): Iterable<ObservedRule> {
    const chain = this.#chains.get(key)
    if (chain === undefined) return
    for (const [compiled, handles] of indexOf(chain)) for (const handle of handles) yield { handle, compiled }
  }

  add(key: string, { compiled, handle }: ObservedRule): void {
    const chain = this.#chains.get(key)
    if (chain === undefined) return
    const handles = indexOf(chain).get(compiled)
    if (handles === undefined) indexOf(chain).set(compiled, [handle])
    else handles.unshift(handle)
  }

  remove(key: string, { compiled, handle }: ObservedRule): void {
    const chain = this.#chains.get(key)
    if (chain === undefined) return
    const left = (indexOf(chain).get(compiled) ?? []).filter(each => each !== handle)
    if (left.length > 0) indexOf(chain).set(compiled, left)
    else indexOf(chain).delete(compiled)
  }
}

interface KnownChain {
  readonly epoch: number
  /** The listed rules, until the first lookup indexes them. */
  rules: readonly ObservedRule[]
  byBytes: Map<Octets, bigint[]> | undefined
}

function indexOf(chain: KnownChain): Map<Octets, bigint[]> {
  if (chain.byBytes !== undefined) return chain.byBytes
  const byBytes = new Map<Octets, bigint[]>()
  for (const { compiled, handle } of chain.rules) append(byBytes, compiled, handle)
  chain.byBytes = byBytes
  chain.rules = []
  return byBytes
}

/** The sources of rules and handles. */
interface RuleReader {
  readonly client: Pick<NftClient, 'rule' | 'ruleCounters'>
  readonly handleCache: HandleCache
  readonly codec: RuleCodec
}

export interface Resolved {
  readonly handle: bigint
  /** The bytes of the rule with that handle. */
  readonly compiled: Octets
}

/** Beyond this number of rules, the whole chain is listed. */
const ASKED_SINGLY_MAX = 32

/**
 * Finds the handles of the rules to delete. Verifies handles that were cached before a commit of another program.
 * Returns undefined when one of the rules is gone.
 */
export async function resolveDeletions(
  reader: RuleReader,
  operations: ScopeOperations,
): Promise<ReadonlyMap<DeleteRule, Resolved> | undefined> {
  const byChain = new Map<string, DeleteRule[]>()
  for (const operation of operations) {
    if (operation.verb !== 'delete-rule') continue
    append(byChain, chainKey(operation, operation.chain), operation)
  }
  const resolved = new Map<DeleteRule, Resolved>()
  for (const [key, deletions] of byChain)
    if (!(await resolveChain(reader, { key, deletions }, resolved))) return undefined
  return resolved
}

interface ChainDeletions {
  readonly key: string
  readonly deletions: readonly DeleteRule[]
}

async function resolveChain(
  reader: RuleReader,
  chain: ChainDeletions,
  resolved: Map<DeleteRule, Resolved>,
): Promise<boolean> {
  const { handleCache } = reader
  const isKnown = handleCache.isFresh(chain.key)
  const isWorthAsking = isKnown || (handleCache.has(chain.key) && chain.deletions.length <= ASKED_SINGLY_MAX)
  if (!isWorthAsking) await listAgain(reader, chain)
  const found = lookUp(reader, chain)
  const isTrue = found !== undefined && (handleCache.isFresh(chain.key) || areThere(reader, found))
  // An unknown rule may have been written by another program in other bytes, or since the last listing.
  if (!isTrue && !isWorthAsking) return false
  if (!isTrue) await listAgain(reader, chain)
  const final = isTrue ? found : lookUp(reader, chain)
  for (const [deletion, rule] of final ?? []) resolved.set(deletion, rule)
  return final !== undefined
}

async function listAgain(
  { client, handleCache }: RuleReader,
  { key, deletions }: ChainDeletions,
): Promise<void> {
  const [first] = deletions
  if (first === undefined) return
  const { family, table, chain } = first
  handleCache.learn(key, await client.ruleCounters({ family, table, chain }))
}

function areThere({ client }: RuleReader, found: ReadonlyMap<DeleteRule, Resolved>): boolean {
  for (const [{ family, table, chain }, { handle, compiled }] of found)
    if (client.rule({ family, table, chain, handle }) !== compiled) return false
  return true
}

/** Returns the cached rules; undefined when one of them is unknown. */
function lookUp(
  { handleCache, codec }: RuleReader,
  { key, deletions }: ChainDeletions,
): ReadonlyMap<DeleteRule, Resolved> | undefined {
  const found = new Map<DeleteRule, Resolved>()
  const taken = new Set<bigint>()
  let words: ReadonlyMap<string, readonly Resolved[]> | undefined
  const byWords = (family: NftFamily): ReadonlyMap<string, readonly Resolved[]> => {
    words ??= wordsOf(handleCache.rulesOf(key), family, codec)
    return words
  }
  for (const deletion of deletions) {
    const isFree = ({ handle }: Resolved): boolean => !taken.has(handle)
    const rule = candidates({ handleCache, codec, byWords }, key, deletion).find(isFree)
    if (rule === undefined) return undefined
    taken.add(rule.handle)
    found.set(deletion, rule)
  }
  return found
}

interface Known extends Pick<RuleReader, 'handleCache' | 'codec'> {
  /** All rules of the chain, by their iptables-save text. */
  readonly byWords: (family: NftFamily) => ReadonlyMap<string, readonly Resolved[]>
}

/**
 * Returns the candidates, the best first. Equal rules are interchangeable, but a rule that was read is preferred by
 * its handle.
 */
function candidates(
  { handleCache, codec, byWords }: Known,
  key: string,
  { rule, family }: DeleteRule,
): readonly Resolved[] {
  if (isObservedRule(rule)) {
    const { compiled } = rule
    const handles = handleCache.handlesOf(key, compiled)
    const best = handles.filter(handle => handle === rule.handle)
    return [...best, ...handles].map(handle => ({ handle, compiled }))
  }
  const compiled = bytesOf(codec, rule, family)
  const handles = compiled === undefined ? [] : handleCache.handlesOf(key, compiled)
  if (compiled !== undefined && handles.length > 0) return handles.map(handle => ({ handle, compiled }))
  return byWords(family).get(printRule(rule, family)) ?? []
}

function wordsOf(
  rules: Iterable<Resolved>,
  family: NftFamily,
  { nameOfIpset }: RuleCodec,
): ReadonlyMap<string, readonly Resolved[]> {
  const words = new Map<string, Resolved[]>()
  for (const rule of rules)
    append(words, printRule(readRule(rule.compiled, family, nameOfIpset), family), rule)
  return words
}
