import { append } from '../../base/lists.ts'
import type { Octets } from '../../base/octets.ts'
import type { NftClient } from '../nft/client.ts'
import type { NftFamily } from '../nft/state.ts'
import { bytesOf, type Language } from './language.ts'
import { printRule } from './print.ts'
import { readRule } from './read.ts'
import type { HandleBook } from './scope-handles.ts'
import { chainKey, type DeleteRule, isObservedRule, type ScopeOperations } from './scope-operation.ts'

/** The sources of rules and handles. */
interface RuleReader {
  readonly client: Pick<NftClient, 'rule' | 'ruleCounters'>
  readonly book: HandleBook
  readonly language: Language
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
  const { book } = reader
  const isKnown = book.isFresh(chain.key)
  const isWorthAsking = isKnown || (book.has(chain.key) && chain.deletions.length <= ASKED_SINGLY_MAX)
  if (!isWorthAsking) await listAgain(reader, chain)
  const found = lookUp(reader, chain)
  const isTrue = found !== undefined && (book.isFresh(chain.key) || areThere(reader, found))
  // An unknown rule may have been written by another program in other bytes, or since the last listing.
  if (!isTrue && !isWorthAsking) return false
  if (!isTrue) await listAgain(reader, chain)
  const final = isTrue ? found : lookUp(reader, chain)
  for (const [deletion, rule] of final ?? []) resolved.set(deletion, rule)
  return final !== undefined
}

async function listAgain({ client, book }: RuleReader, { key, deletions }: ChainDeletions): Promise<void> {
  const [first] = deletions
  if (first === undefined) return
  const { family, table, chain } = first
  book.learn(key, await client.ruleCounters({ family, table, chain }))
}

function areThere({ client }: RuleReader, found: ReadonlyMap<DeleteRule, Resolved>): boolean {
  for (const [{ family, table, chain }, { handle, compiled }] of found)
    if (client.rule({ family, table, chain, handle }) !== compiled) return false
  return true
}

/** Returns the cached rules; undefined when one of them is unknown. */
function lookUp(
  { book, language }: RuleReader,
  { key, deletions }: ChainDeletions,
): ReadonlyMap<DeleteRule, Resolved> | undefined {
  const found = new Map<DeleteRule, Resolved>()
  const taken = new Set<bigint>()
  let words: ReadonlyMap<string, readonly Resolved[]> | undefined
  const byWords = (family: NftFamily): ReadonlyMap<string, readonly Resolved[]> => {
    words ??= wordsOf(book.rulesOf(key), family, language)
    return words
  }
  for (const deletion of deletions) {
    const isFree = ({ handle }: Resolved): boolean => !taken.has(handle)
    const rule = candidates({ book, language, byWords }, key, deletion).find(isFree)
    if (rule === undefined) return undefined
    taken.add(rule.handle)
    found.set(deletion, rule)
  }
  return found
}

interface Known extends Pick<RuleReader, 'book' | 'language'> {
  /** All rules of the chain, by their iptables-save text. */
  readonly byWords: (family: NftFamily) => ReadonlyMap<string, readonly Resolved[]>
}

/**
 * Returns the candidates, the best first. Equal rules are interchangeable, but a rule that was read is preferred by
 * its handle.
 */
function candidates(
  { book, language, byWords }: Known,
  key: string,
  { rule, family }: DeleteRule,
): readonly Resolved[] {
  if (isObservedRule(rule)) {
    const { compiled } = rule
    const handles = book.handlesOf(key, compiled)
    const best = handles.filter(handle => handle === rule.handle)
    return [...best, ...handles].map(handle => ({ handle, compiled }))
  }
  const compiled = bytesOf(language, rule, family)
  const handles = compiled === undefined ? [] : book.handlesOf(key, compiled)
  if (compiled !== undefined && handles.length > 0) return handles.map(handle => ({ handle, compiled }))
  return byWords(family).get(printRule(rule, family)) ?? []
}

function wordsOf(
  rules: Iterable<Resolved>,
  family: NftFamily,
  { nameOfIpset }: Language,
): ReadonlyMap<string, readonly Resolved[]> {
  const words = new Map<string, Resolved[]>()
  for (const rule of rules)
    append(words, printRule(readRule(rule.compiled, family, nameOfIpset), family), rule)
  return words
}
