import { type Clock, type Steps, slicingOf, systemClock } from '../../base/clock.ts'
import type { NftClient } from '../../kernel/nft/client.ts'
import type { NftFamily, Observed } from '../../kernel/nft/state.ts'
import { compileRule, type RuleCodec } from '../../kernel/xt/compile.ts'
import { chainKey, type IsOurs, type ScopeOperation, type ScopeOperations } from '../../kernel/xt/scope.ts'
import { commitScope, type ScopeCommit, type ScopeFailure } from '../../kernel/xt/scope-commit.ts'
import { removalOf, ScopeDiff } from '../../kernel/xt/scope-diff.ts'
import { HandleCache } from '../../kernel/xt/scope-handles.ts'
import { type Asked, Committed, type Held, heldInKernel, rewritesCommon } from '../../kernel/xt/scope-held.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import type { ServiceKey } from '../../model/service.ts'
import type {
  CommitOptions,
  Dataplane,
  Generation,
  KernelRefusal,
  Observation,
  ObserveOptions,
  Plan,
  Receipt,
  RenderOptions,
} from '../../reconcile/dataplane.ts'
import { NFT_FAMILIES, refusalTo, staysAsIs } from '../common/tables.ts'
import { commitError, givenUp, type WatchedSocket, type Watches, watchesOf } from '../common/writers.ts'
import { countScopeChanges, describeScope } from '../xt-common/describe-scope.ts'
import { isOurChain, isServiceChain, touchesUs } from '../xt-common/layout.ts'
import { placesOf } from '../xt-common/read-chains.ts'
import { jumpsTo } from './chains.ts'
import { RuleCounts } from './metrics.ts'
import { renderIptablesState, rulesIn, servicesBetween } from './render.ts'
import type { IptablesOptions } from './settings.ts'
import { EMPTY_STATE, type IptablesState, type ObservedState, type RenderedState } from './state.ts'

interface IptablesPlaneOptions {
  readonly client: NftClient
  readonly options: IptablesOptions
  /** See watchesOf. */
  readonly writers?: WatchedSocket
  readonly clock?: Clock
  readonly beforeObserve?: () => void
  readonly lacking?: () => Lacking
}

/** The families in which the kernel lacks what every Service needs, and what it lacks. */
type Lacking = ReadonlyMap<NftFamily, string>

const PLACES = placesOf(NFT_FAMILIES)
/**
 * The maximum number of tries. A cleanup names the generation that it read, and reads again when another program
 * commits in between, or when the outcome of its commit is unknown.
 */
const CLEANUP_TRIES = 16
const CODEC: RuleCodec = { compile: (rule, family) => compileRule(rule, family) }

/** The data plane with the effect and the chains of kube-proxy's iptables mode, over netlink: see README.md. */
export class IptablesPlane implements Dataplane<IptablesState, IptablesPlan> {
  readonly name = 'iptables'
  readonly empty: IptablesState = EMPTY_STATE
  readonly counts: RuleCounts
  readonly watchGeneration: Watches['watchGeneration']
  readonly watchWriters: Watches['watchWriters']
  readonly #watches: Watches
  readonly #given: IptablesPlaneOptions
  readonly #handleCache = new HandleCache()
  /**
   * The number of commits that only reordered entries. It is subtracted from the generation, so that these commits do
   * not look like those of other programs.
   */
  #reordered = 0

  constructor(given: IptablesPlaneOptions) {
    this.#given = given
    const { names } = given.options
    this.counts = new RuleCounts(names)
    this.#watches = watchesOf(
      given.writers,
      touched => touchesUs(touched, this.#handleCache, names),
      () => -this.#reordered,
    )
    this.watchGeneration = this.#watches.watchGeneration
    this.watchWriters = this.#watches.watchWriters
  }

  render(frontends: FrontendTable, options: RenderOptions<IptablesState>): Steps<IptablesState> {
    return renderIptablesState(frontends, options, this.#given.options)
  }

  diff(from: IptablesState, to: IptablesState): Steps<IptablesPlan> {
    return diffStates(from, to, CODEC)
  }

  generation(): Generation {
    return this.#watches.shifted(this.#given.client.generation())
  }

  /** Notes that a commit of ours only reordered entries, so that it does not cause a resync. */
  reordered(): void {
    this.#reordered++
  }

  async observe({ aside = false }: ObserveOptions = {}): Promise<Observation<ObservedState>> {
    if (!aside) this.#given.beforeObserve?.()
    const { observed, generation, unsettled } = await this.#given.client.listChains(PLACES, { aside })
    if (!aside) this.#learn(observed, unsettled ? undefined : generation)
    const state: ObservedState = { kind: 'observed', observed, refusals: new Map() }
    return { state, generation: this.#watches.shifted(generation), unsettled }
  }

  #learn(observed: Observed, generation: number | undefined): void {
    this.counts.observed(observed)
    // Service chains are only written and flushed whole.
    const isWanted: IsOurs = (table, name) => !isServiceChain(this.#given.options.names, table, name)
    this.#handleCache.learnAll(observed, generation, isWanted)
  }

  async commit({ operations }: IptablesPlan, options: CommitOptions): Promise<Receipt> {
    const startMs = systemClock.nowMs()
    const { failures, ...result } = await this.#commit(operations, options)
    if (result.outcome === 'committed') this.counts.committed(operations)
    else if (result.outcome !== 'stale') this.counts.rejected()
    const lacking = failures.length === 0 ? undefined : this.#given.lacking?.()
    const refusals = failures.map(failure => refusalIn(failure, lacking))
    const reached = this.#watches.shifted(result.generation)
    return { ...result, generation: reached, refusals, durationMs: systemClock.nowMs() - startMs }
  }

  /** `mayRemove` answers for what was read: nothing is removed that is written later. */
  async cleanup(mayRemove?: () => Promise<boolean>): Promise<void> {
    const { names } = this.#given.options
    const isOurs: IsOurs = (table, name) => isOurChain(names, table, name)
    const owned = { isOurs, jumps: jumpsTo(names) }
    for (let tries = 1; tries <= CLEANUP_TRIES; tries++) {
      const { state, generation } = await this.observe()
      const operations = removalOf(state.observed, owned, CODEC)
      if (operations.length === 0 || (await mayRemove?.()) === false) return
      const result = await this.#commit(operations, { generation })
      if (result.outcome === 'committed') return
      if (result.outcome === 'refused') throw commitError('remove chains', result)
    }
    throw givenUp('remove chains', CLEANUP_TRIES)
  }

  #commit(operations: ScopeOperations, options: CommitOptions): Promise<ScopeCommit> {
    const { client, clock = systemClock } = this.#given
    const { generation: shifted } = options
    const generation = shifted === undefined ? undefined : this.#watches.unshifted(shifted)
    return commitScope(operations, {
      client,
      handleCache: this.#handleCache,
      codec: CODEC,
      slicing: slicingOf(clock),
      generation,
    })
  }
}

/** Blames the family for a Service whose rules need what the kernel lacks in this family. */
function refusalIn({ operation, ...words }: ScopeFailure, lacking: Lacking | undefined): KernelRefusal {
  const { owner, family } = operation ?? {}
  const lack = family && lacking?.get(family)
  if (owner === undefined || lack === undefined)
    return refusalTo(owner === undefined ? [] : [owner], words, family)
  return refusalTo([], { ...words, error: new Error(`${words.error.message}; ${lack}`) }, family)
}

/** The two sides of a diff: `held`, and the rules of these Services. */
interface Sides {
  readonly held: Held
  readonly services: Iterable<ServiceKey>
  readonly asked: (service: ServiceKey) => Asked
}

/**
 * Makes the operations that lead from one state to a rendered one. Between two rendered states it visits only
 * Services that changed, unless the inputs of all rules changed. Throws when `to` is a state that was read.
 */
export function* diffStates(from: IptablesState, to: IptablesState, codec: RuleCodec): Steps<IptablesPlan> {
  if (to.kind !== 'rendered') throw new Error('cannot write a state that was read from the kernel')
  const { held, services, asked } =
    from.kind === 'rendered' ? yield* sinceCommit(from, to) : sinceRead(from, to)
  const { names } = to.statics.options
  const isOurs: IsOurs = (table, name) => isOurChain(names, table, name)
  const diff = new ScopeDiff(held, to.common, { codec, isOurs })
  for (const service of services) {
    diff.owner(service, asked(service))
    yield
  }
  const operations = yield* diff.finish()
  const isKept = ({ family }: ScopeOperation): boolean => staysAsIs(family, to.without)
  return makePlan(to.without.size === 0 ? operations : operations.filter(each => !isKept(each)), to)
}

function sinceRead(from: ObservedState, to: RenderedState): Sides {
  const services = to.frontends.services.keys()
  return { held: heldInKernel(from.observed), services, asked: service => rulesIn(to, service) }
}

function* sinceCommit(from: RenderedState, to: RenderedState): Steps<Sides> {
  const isAll = from.statics.serviceKey !== to.statics.serviceKey || rewritesCommon(from.common, to.common)
  const services = new Set(
    isAll ? [...from.frontends.services.keys(), ...to.frontends.services.keys()] : servicesBetween(from, to),
  )
  const asked = (state: RenderedState, service: ServiceKey): Asked =>
    isAll ? rulesIn(state, service) : withoutKept(rulesIn(state, service), from, to)
  const held = new Committed(from.common, service => asked(from, service))
  if (from.sharedChains.size > 0) {
    for (const service of services) {
      held.addShared(service)
      yield
    }
  }
  return { held, services, asked: service => asked(to, service) }
}

/**
 * Omits chains that Services need in both states. Such a chain comes with the first Service and goes with the last.
 */
function withoutKept(rules: Asked, from: RenderedState, to: RenderedState): Asked {
  if (!rules.chains.some(({ shared }) => shared)) return rules
  const isKept = (key: string): boolean => from.sharedChains.has(key) && to.sharedChains.has(key)
  const chains = rules.chains.filter(chain => chain.shared !== true || !isKept(chainKey(chain, chain.name)))
  return { chains, entries: rules.entries }
}

/** One batch for the tables of both families. */
export interface IptablesPlan extends Plan<IptablesState> {
  readonly operations: ScopeOperations
}

function makePlan(operations: ScopeOperations, after: IptablesState): IptablesPlan {
  return {
    operations,
    empty: operations.length === 0,
    changes: countScopeChanges(operations),
    after,
    complete: true,
    // The kernel keeps lists of recent clients as long as any rule, old or new, names them.
    rebuilds: false,
    describe: () => describeScope(operations),
  }
}
