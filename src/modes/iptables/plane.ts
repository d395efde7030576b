import { type Clock, slicingOf, systemClock } from '../../base/clock.ts'
import type { NftClient } from '../../kernel/nft/client.ts'
import type { NftFamily } from '../../kernel/nft/state.ts'
import { compileRule, type RuleCodec } from '../../kernel/xt/compile.ts'
import type { IsOurs, ScopeOperations } from '../../kernel/xt/scope.ts'
import { commitScope, type ScopeCommit, type ScopeFailure } from '../../kernel/xt/scope-commit.ts'
import { removalOf } from '../../kernel/xt/scope-diff.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import type {
  CommitOptions,
  Dataplane,
  Generation,
  KernelRefusal,
  Observation,
  ObserveOptions,
  Receipt,
  RenderOptions,
} from '../../reconcile/dataplane.ts'
import { NFT_FAMILIES } from '../common/tables.ts'
import { refusalTo } from '../common/transaction-plan.ts'
import { commitError, givenUp, type WatchedSocket, type Watches, watchesOf } from '../common/writers.ts'
import { isOurChain, OtherChains, touchesUs } from '../xt-common/layout.ts'
import { placesOf } from '../xt-common/read-chains.ts'
import { jumpsTo } from './chains.ts'
import { diffStates, type IptablesPlan } from './diff.ts'
import { RuleCounts } from './metrics.ts'
import { renderIptablesState } from './render.ts'
import type { IptablesOptions } from './settings.ts'
import { EMPTY_STATE, type IptablesState, type ObservedState } from './state.ts'

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
  readonly #isOurs: IsOurs
  readonly #others = new OtherChains()
  /**
   * The number of commits that only reordered entries. It is subtracted from the generation, so that these commits do
   * not look like those of other programs.
   */
  #reordered = 0

  constructor(given: IptablesPlaneOptions) {
    this.#given = given
    const { names } = given.options
    this.#isOurs = (table, name) => isOurChain(names, table, name)
    this.counts = new RuleCounts(names)
    this.#watches = watchesOf(
      given.writers,
      touched => touchesUs(touched, this.#others, names),
      () => -this.#reordered,
    )
    this.watchGeneration = this.#watches.watchGeneration
    this.watchWriters = this.#watches.watchWriters
  }

  render(frontends: FrontendTable, options: RenderOptions<IptablesState>) {
    return renderIptablesState(frontends, options, this.#given.options)
  }

  diff(from: IptablesState, to: IptablesState) {
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
    if (!aside) {
      this.counts.observed(observed)
      this.#others.read(unsettled ? undefined : observed, this.#isOurs)
    }
    const state: ObservedState = { kind: 'observed', observed, refusals: new Map() }
    return { state, generation: this.#watches.shifted(generation), unsettled }
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
    const owned = { isOurs: this.#isOurs, jumps: jumpsTo(this.#given.options.names) }
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
    this.#others.wrote(operations)
    return commitScope(operations, { client, codec: CODEC, slicing: slicingOf(clock), generation })
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
