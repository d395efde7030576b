import { finish, finishInSlices, Slice, type Slicing, stepsOver } from '../../base/clock.ts'
import type { Octets } from '../../base/octets.ts'
import { NetlinkError, OutcomeUnknownError } from '../../netlink/errors.ts'
import type { CommitResult, NftClient } from '../nft/client.ts'
import type { OperationFailure } from '../nft/failures.ts'
import type { CompiledRule } from '../nft/state.ts'
import type { Operation } from '../nft/transaction.ts'
import type { RuleCodec } from './compile.ts'
import { printRule } from './print.ts'
import type { XtRule } from './rule.ts'
import { chainKey, type ScopeOperation, type ScopeOperations } from './scope.ts'

interface ScopeCommitOptions {
  readonly client: Pick<NftClient, 'commit' | 'rule'>
  readonly codec: RuleCodec
  readonly slicing: Slicing
  /**
   * The commit is `stale` if the kernel has left this generation, at which the rules to delete were read. Without it,
   * the commit reads those rules again, and retries.
   */
  readonly generation: number | undefined
}

export interface ScopeCommit
  extends Pick<CommitResult, 'outcome' | 'generation' | 'foreign' | 'bytes' | 'messages'> {
  readonly failures: readonly ScopeFailure[]
  /** Set when only the rest is not committed, but the part that was sent ahead. */
  readonly partial?: true
}

export interface ScopeFailure extends Pick<OperationFailure, 'code' | 'error'> {
  /** Undefined when the kernel rejected the whole. */
  readonly operation: ScopeOperation | undefined
}

/** Maximum attempts to send a batch that names a generation, while other programs commit in between. */
const TRIES = 6
const SLICED_FROM = 500

/**
 * Sends operations as one batch that names the generation at which the rules to delete were there. Very many
 * chains that nothing refers to yet go in commits ahead of it. Chains that the kernel does not delete, because rules
 * of other programs lead to them, are emptied and stay. Throws only for bugs of ours.
 */
export async function commitScope(
  operations: ScopeOperations,
  options: ScopeCommitOptions,
): Promise<ScopeCommit> {
  const { client, generation: asked } = options
  const start = await client.commit([])
  // Without a generation, the caller competes with programs that commit all the time: several commits would collide
  // with them more often than one.
  const count = asked === undefined ? 0 : countAhead(operations)
  if (count === 0) return commitWhole(operations, options, start)
  if (asked !== start.generation) return ended('stale', start)
  const ahead = await commitAhead(operations.slice(0, count), options, start)
  if (ahead.outcome !== 'committed') return ahead
  if (ahead.foreign) return { ...ahead, outcome: 'stale', partial: true }
  const rest = operations.slice(count)
  const { generation } = ahead
  const end = await commitWhole(rest, { ...options, generation }, { generation, foreign: ahead.foreign })
  const bytes = ahead.bytes + end.bytes
  const messages = ahead.messages + end.messages
  return { ...end, bytes, messages, ...(end.outcome === 'committed' ? {} : { partial: true }) }
}

async function commitWhole(
  operations: ScopeOperations,
  options: ScopeCommitOptions,
  start: Start,
): Promise<ScopeCommit> {
  const { client, generation: asked } = options
  const deletions = operations.filter(operation => operation.verb === 'delete-rule')
  let { generation, foreign } = start
  const kept = new Set<ScopeOperation>()
  for (let tries = 1; ; tries++) {
    if (asked !== undefined && asked !== generation) return ended('stale', { generation, foreign })
    if (asked === undefined && !areThere(client, deletions)) return ended('stale', { generation, foreign })
    const batch = await translated(options, operations, kept)
    const isLast = tries === TRIES
    // Only rules that are deleted by their handles have to be those of this generation.
    const guard = isLast && asked === undefined && deletions.length === 0 ? {} : { generation }
    let result: CommitResult
    try {
      result = await client.commit(batch.transaction, guard)
    } catch (error) {
      const failures = await unwritableIn(operations, options, error)
      return { ...ended('refused', { generation, foreign }), failures }
    }
    generation = result.generation
    foreign ||= result.foreign
    const busy = result.outcome === 'refused' ? busyChains(result, batch) : []
    for (const operation of busy) kept.add(operation)
    const again = busy.length > 0 || (result.outcome === 'stale' && asked === undefined)
    if (again && !isLast) continue
    return { ...result, foreign, failures: failuresOf(result, batch) }
  }
}

type Start = Pick<ScopeCommit, 'generation' | 'foreign'>

function ended(outcome: ScopeCommit['outcome'], { generation, foreign }: Start): ScopeCommit {
  return { outcome, generation, foreign, failures: [], bytes: 0, messages: 0 }
}

/** Returns whether the handles still belong to the rules that were read. */
function areThere(client: Pick<NftClient, 'rule'>, deletions: ScopeOperations): boolean {
  return deletions.every(operation => {
    if (operation.verb !== 'delete-rule') return true
    const { family, table, chain, rule } = operation
    return client.rule({ family, table, chain, handle: rule.handle }) === rule.compiled
  })
}

function translated(
  { codec, slicing }: Pick<ScopeCommitOptions, 'codec' | 'slicing'>,
  operations: ScopeOperations,
  kept: ReadonlySet<ScopeOperation>,
): Promise<Batch> | Batch {
  const steps = translate(operations, kept, codec)
  return operations.length < SLICED_FROM ? finish(steps) : finishInSlices(steps, slicing)
}

/** Returns the chains that cannot be deleted, if the kernel rejected nothing else. */
function busyChains({ failures }: CommitResult, batch: Batch): readonly ScopeOperation[] {
  const isBusy = ({ operation, code }: OperationFailure): boolean =>
    operation.verb === 'delete-chain' && code === 'EBUSY'
  if (!failures.every(isBusy)) return []
  const origins = originsOf(failures, batch)
  return failures.flatMap(({ operation }) => origins.get(operation) ?? [])
}

/** The kernel takes some 70 ms for this many, and each additional commit costs 4 ms. */
const OPERATIONS_PER_PART = 8192

/**
 * Returns how many operations from the first on affect no packet: new chains and their contents. Returns 0 when that
 * is not worth separate commits. A full load consists mostly of chains that nothing refers to before the last rules.
 * The kernel can process the first of them while the others are encoded.
 */
export function countAhead(operations: ScopeOperations): number {
  if (operations.length < OPERATIONS_PER_PART) return 0
  const fresh = new Set<string>()
  const end = operations.findIndex((operation, i) => !isUnmet(operation, operations[i - 1], fresh))
  const count = end < 0 ? operations.length : end
  return count < OPERATIONS_PER_PART ? 0 : count
}

function isUnmet(
  operation: ScopeOperation,
  previous: ScopeOperation | undefined,
  fresh: Set<string>,
): boolean {
  switch (operation.verb) {
    case 'add-table':
      return true
    case 'add-chain':
      if (operation.hook === undefined) fresh.add(chainKey(operation, operation.chain))
      return true
    case 'add-rule':
      return isOfSameChain(operation, previous) || fresh.has(chainKey(operation, operation.chain))
    default:
      return false
  }
}

/** Rules of a chain are consecutive. */
function isOfSameChain(operation: ScopeOperation, previous: ScopeOperation | undefined): boolean {
  return (
    operation.verb === 'add-rule' &&
    previous?.verb === 'add-rule' &&
    previous.chain === operation.chain &&
    previous.table === operation.table &&
    previous.family === operation.family
  )
}

interface UnderWay {
  readonly batch: Batch
  readonly result: Promise<CommitResult>
}

/**
 * Sends the operations in parts, and encodes each part while the kernel processes the one before. Stops at a part
 * that fails: the parts before it are committed, and nothing refers to them.
 */
async function commitAhead(
  operations: ScopeOperations,
  options: ScopeCommitOptions,
  start: Pick<ScopeCommit, 'generation' | 'foreign'>,
): Promise<ScopeCommit> {
  const { client } = options
  let sum: ScopeCommit = { ...start, outcome: 'committed', failures: [], bytes: 0, messages: 0 }
  const settled: Promise<unknown>[] = []
  let underWay: UnderWay | undefined
  try {
    for (let from = 0; from < operations.length; from += OPERATIONS_PER_PART) {
      const part = operations.slice(from, from + OPERATIONS_PER_PART)
      const batch = await translated(options, part, NOTHING_KEPT)
      const before = underWay
      const follows = before === undefined ? { generation: start.generation } : { follows: before.result }
      const result = client.commit(batch.transaction, follows)
      settled.push(Promise.allSettled([result]))
      underWay = { batch, result }
      if (before === undefined) continue
      sum = added(sum, before.batch, await before.result)
      if (sum.outcome !== 'committed') return sum
    }
    if (underWay !== undefined) sum = added(sum, underWay.batch, await underWay.result)
  } catch (error) {
    const failures = await unwritableIn(operations, options, error)
    return { ...sum, outcome: 'refused', failures, ...partialAfter(sum) }
  } finally {
    await Promise.all(settled)
  }
  return sum
}

function partialAfter({ messages }: Pick<ScopeCommit, 'messages'>): Pick<ScopeCommit, 'partial'> {
  return messages > 0 ? { partial: true } : {}
}

const NOTHING_KEPT: ReadonlySet<ScopeOperation> = new Set()

function added(sum: ScopeCommit, batch: Batch, result: CommitResult): ScopeCommit {
  const { outcome, generation } = result
  return {
    outcome,
    generation,
    foreign: sum.foreign || result.foreign,
    failures: failuresOf(result, batch),
    bytes: sum.bytes + result.bytes,
    messages: sum.messages + result.messages,
    ...(outcome === 'committed' ? {} : partialAfter(sum)),
  }
}

interface Batch {
  readonly transaction: Operation[]
  readonly origins: ScopeOperation[]
}

function translate(operations: ScopeOperations, kept: ReadonlySet<ScopeOperation>, codec: RuleCodec) {
  const batch: Batch = { transaction: [], origins: [] }
  const each = (operation: ScopeOperation): void => {
    if (kept.has(operation)) return
    batch.transaction.push(translateOne(operation, codec))
    batch.origins.push(operation)
  }
  return stepsOver(operations, { each, result: () => batch })
}

/**
 * A rule that is compiled each time its bytes are read: once, when it is encoded. The bytes of all rules of a load at a
 * time would outlive V8's space for new objects, and each collection would copy them.
 */
class LateRule implements CompiledRule {
  readonly #compile: () => CompiledRule
  readonly protocol: number
  readonly protocolInverted: boolean
  readonly userdata: Octets | undefined

  constructor({ protocol, userdata }: XtRule, compile: () => CompiledRule) {
    this.#compile = compile
    this.protocol = protocol?.number ?? 0
    this.protocolInverted = protocol?.inverted ?? false
    this.userdata = userdata
  }

  /** Throws as RuleCodec.compile does. */
  get compiled(): Octets {
    return this.#compile().compiled
  }
}

/** Returns the failures of operations that cannot be encoded. Throws `error` if it is about none of them. */
async function unwritableIn(
  operations: ScopeOperations,
  { codec, slicing }: ScopeCommitOptions,
  error: unknown,
): Promise<readonly ScopeFailure[]> {
  // A lost socket is about no rule.
  if (!(error instanceof NetlinkError) || error instanceof OutcomeUnknownError) throw error
  const failures: ScopeFailure[] = []
  const slice = new Slice(slicing)
  for (const operation of operations) {
    if (slice.isOver) await slice.next()
    if (operation.verb !== 'add-rule' && operation.verb !== 'insert-rule') continue
    try {
      codec.compile(operation.rule, operation.family)
    } catch (unwritable) {
      if (!(unwritable instanceof NetlinkError)) throw unwritable
      failures.push({ operation, code: unwritable.code, error: unwritable })
    }
  }
  if (failures.length === 0) throw error
  return failures
}

function translateOne(operation: ScopeOperation, { compile }: RuleCodec): Operation {
  const { family, table } = operation
  switch (operation.verb) {
    case 'add-table':
      return { verb: 'add-table', family, table, flags: 0, comment: undefined }
    case 'add-chain': {
      const { chain: name, hook } = operation
      return { verb: 'add-chain', family, table, chain: { name, hook, rules: [] } }
    }
    case 'flush-chain':
    case 'delete-chain':
      return { verb: operation.verb, family, table, chain: operation.chain }
    case 'add-rule':
    case 'insert-rule': {
      const { verb, chain, rule } = operation
      return { verb, family, table, chain, rule: new LateRule(rule, () => compile(rule, family)) }
    }
    case 'delete-rule': {
      const { verb, chain, rule } = operation
      return { verb, family, table, chain, handle: rule.handle }
    }
  }
}

/** Returns the failures. An error about the batch as a whole belongs to no operation. */
function failuresOf({ failures }: CommitResult, batch: Batch): readonly ScopeFailure[] {
  const origins = originsOf(failures, batch)
  return failures.map(({ operation: sent, code, error }) => {
    const isOfWhole = error instanceof NetlinkError && error.operation === 'commit'
    const operation = isOfWhole ? undefined : origins.get(sent)
    return { operation, code, error: aboutRule(operation, error) }
  })
}

/** Maps failed operations to their scope operations; there may be as many as there are operations. */
function originsOf(
  failures: readonly OperationFailure[],
  { transaction, origins }: Batch,
): ReadonlyMap<Operation, ScopeOperation> {
  if (failures.length === 0) return new Map()
  return new Map(
    origins.flatMap((origin, i) => {
      const operation = transaction[i]
      return operation === undefined ? [] : [[operation, origin] as const]
    }),
  )
}

/** Adds the rule to the error: the kernel names only the chain, and not the rule or the match that it lacks. */
function aboutRule(operation: ScopeOperation | undefined, error: Error): Error {
  if (operation?.verb !== 'add-rule' && operation?.verb !== 'insert-rule') return error
  return new Error(`${error.message}: ${printRule(operation.rule, operation.family)}`, { cause: error })
}
