import { atOnce, type Clock } from '../../base/clock.ts'
import type { PersistentMap } from '../../base/collections.ts'
import { Mutex } from '../../base/queues.ts'
import type { ServerKey } from '../../kernel/ipvs/state.ts'
import type { Touched } from '../../kernel/nft/monitor.ts'
import type { RuleCodec } from '../../kernel/xt/compile.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import type {
  CommitOptions,
  Dataplane,
  Generation,
  GenerationWatch,
  Observation,
  ObserveOptions,
  Receipt,
  RenderOptions,
} from '../../reconcile/dataplane.ts'
import { commitError, inTables, type WatchedSocket, type Watches, watchesOf } from '../common/writers.ts'
import type { ModeContext } from '../mode.ts'
import { isIpvsChain, OtherChains, touchesScope } from '../xt-common/layout.ts'
import { codecOf } from './chains.ts'
import { type Committed, Committer } from './commit.ts'
import { diffStates } from './diff.ts'
import { type IpvsKernel, observeKernel, type Seen } from './observe.ts'
import type { Occupied } from './places.ts'
import type { IpvsPlan } from './plan.ts'
import { renderIpvsState } from './render.ts'
import type { IpvsOptions } from './settings.ts'
import { EMPTY_STATE, type IpvsState, type PlacedEntry, type PlacedServer } from './state.ts'
import { Drains, Upkeep, type UpkeepOptions } from './upkeep.ts'

interface IpvsPlaneOptions extends IpvsKernel {
  readonly clock: Clock
  readonly options: IpvsOptions
  /** See watchesOf. */
  readonly writers?: WatchedSocket
  /** As in AddressReader. Without it, addresses are read once a period. */
  readonly watchAddresses?: UpkeepOptions['watchAddresses']
  readonly report?: ModeContext['tell']
}

/** The maximum number of reads and removals: other programs may add to our sets in between. */
const CLEANUP_TRIES = 8

/** The data plane with the effect of kube-proxy's IPVS mode: see README.md. */
export class IpvsPlane implements Dataplane<IpvsState, IpvsPlan> {
  readonly name = 'ipvs'
  readonly empty = EMPTY_STATE
  readonly watchWriters: Watches['watchWriters']
  readonly #given: IpvsPlaneOptions
  readonly #watches: Watches
  readonly #codec: RuleCodec
  readonly #others = new OtherChains()
  readonly #mutex = new Mutex()
  readonly #drains: Drains
  readonly #upkeep: Upkeep
  readonly #missingSchedulers = new Set<string>()
  #staleCommits = 0
  /** The occupied places at the last read. */
  #occupied: Occupied = { servers: new Set(), version: 0 }
  /** The applied state; undefined while the kernel may hold another one. */
  #held: IpvsState | undefined
  /** The entries that this process put into our sets. */
  #entries: PersistentMap<PlacedEntry> = EMPTY_STATE.entries
  /** The virtual servers that were ours at the last read or commit; undefined before the first read. */
  #servers: PersistentMap<PlacedServer> | undefined
  /** Counts differences in subsystems that have no generation. */
  #epoch = 0
  /** Called when the epoch changed. */
  #changed: (() => void) | undefined
  /** The epoch of the last generation that was reported. */
  #reportedEpoch = 0

  constructor(given: IpvsPlaneOptions) {
    this.#given = given
    this.#codec = codecOf(given.ipset)
    const { clock, options, writers, watchAddresses, report = () => undefined } = given
    const isOfTable = inTables(options.tableName)
    const isOfChains = (touched: Touched) =>
      options.rules === 'iptables' && touchesScope(touched, this.#others, isIpvsChain)
    // The generation of nf_tables plus the number of differences found in the other subsystems.
    this.#watches = watchesOf(
      writers,
      touched => isOfTable(touched) || isOfChains(touched),
      () => this.#epoch,
    )
    this.watchWriters = this.#watches.watchWriters
    this.#drains = new Drains(options.drainMs)
    this.#upkeep = new Upkeep({
      kernel: given,
      clock,
      options,
      mutex: this.#mutex,
      drains: this.#drains,
      held: () => this.#held,
      drifted: () => {
        this.#epoch++
        this.#held = undefined
        // Upkeep has its turn now: the reader of the generation gets the next one.
        if (this.#changed !== undefined) clock.after(0, this.#changed)
      },
      watchAddresses,
      report,
    })
  }

  render(frontends: FrontendTable, options: RenderOptions<IpvsState>) {
    const missingSchedulers = new Set(this.#missingSchedulers)
    const occupied = this.#occupied
    return renderIpvsState(frontends, options, { ...this.#given.options, missingSchedulers, occupied })
  }

  diff(from: IpvsState, to: IpvsState) {
    return atOnce(() => this.#diff(from, to))
  }

  #diff(from: IpvsState, to: IpvsState): IpvsPlan {
    return diffStates(from, to, { ...this.#given.options, codec: this.#codec })
  }

  generation(): Generation {
    this.#reportedEpoch = this.#epoch
    return this.#watches.shifted(this.#given.nft.generation())
  }

  watchGeneration(everyMs: number, changed: () => void): GenerationWatch | undefined {
    const watch = this.#watches.watchGeneration(everyMs, changed)
    if (watch === undefined) return undefined
    this.#changed = changed
    const stop = () => {
      this.#changed = undefined
      watch.stop()
    }
    return { expect: generation => watch.expect(generation), stop }
  }

  observe(options?: ObserveOptions): Promise<Observation<IpvsState>> {
    return this.#mutex.run(async () => {
      const { state, others, generation, unsettled } = await this.#read(options)
      this.#occupied = occupiedBy(others, this.#occupied)
      if (options?.aside !== true) this.#adopt(state)
      return { state, generation: this.#watches.shifted(generation), unsettled }
    })
  }

  #adopt(state: IpvsState): void {
    this.#held = state
    this.#servers = state.servers
    this.#drains.adopt(state, this.#given.clock.nowMs())
    this.#reportedEpoch = this.#epoch
  }

  commit(plan: IpvsPlan, options: CommitOptions): Promise<Receipt> {
    return this.#mutex.run(async () => {
      const { clock } = this.#given
      const startMs = clock.nowMs()
      const hasDrifted = this.#reportedEpoch !== this.#epoch
      const committed = await this.#run(plan, options)
      this.#settle(plan, committed)
      this.#reportedEpoch = this.#epoch
      const { schedulers: _, ...receipt } = committed
      return {
        ...receipt,
        generation: this.#watches.shifted(committed.generation),
        foreign: committed.foreign || hasDrifted,
        durationMs: clock.nowMs() - startMs,
      }
    })
  }

  /**
   * Removes all objects of ours, in the order in which a plan removes objects. Removes the device only if it has no
   * address of another program. Throws the kernel's error when an object cannot be removed.
   */
  cleanup(): Promise<void> {
    return this.#mutex.run(async () => {
      this.#held = undefined
      for (let tries = 1; tries <= CLEANUP_TRIES; tries++) {
        const plan = this.#diff((await this.#read()).state, EMPTY_STATE)
        if (plan.empty) return
        const { outcome, refusals: failures } = await this.#run(plan, {})
        if (outcome === 'refused') throw commitError('remove IPVS mode', { outcome, failures })
      }
      throw new Error(`remove IPVS mode: objects remained after each of ${CLEANUP_TRIES} tries`)
    })
  }

  /** Starts to check for drift and to end drained real servers, until close(). It writes to the kernel. */
  startUpkeep(): void {
    this.#upkeep.start()
  }

  /** Ends the upkeep and waits for work in flight. The caller closes the clients. */
  close(): Promise<void> {
    return this.#upkeep.close()
  }

  async #read({ aside = false }: ObserveOptions = {}): Promise<Seen> {
    const known = { remembered: this.#entries, servers: this.#servers, aside }
    const seen = await observeKernel(this.#given, { ...this.#given.options, ...known })
    const { state, unsettled } = seen
    if (!aside && state.chains.kind === 'observed')
      this.#others.read(unsettled ? undefined : state.chains.observed, isIpvsChain)
    return seen
  }

  #run({ phases }: IpvsPlan, { generation }: CommitOptions): Promise<Committed> {
    for (const phase of phases) if ('nameOfIpset' in phase) this.#others.wrote(phase.operations)
    const committer = new Committer({
      kernel: this.#given,
      clock: this.#given.clock,
      codec: this.#codec,
      generation: generation === undefined ? undefined : this.#watches.unshifted(generation),
      missingSchedulers: this.#missingSchedulers,
      // Where two new reads did not help, the kernel holds servers that it does not list.
      rereadsServers: this.#staleCommits < 2,
    })
    return committer.run(phases)
  }

  #settle(plan: IpvsPlan, { outcome, schedulers }: Committed): void {
    for (const scheduler of schedulers) this.#missingSchedulers.add(scheduler)
    if (outcome === 'stale') this.#staleCommits++
    if (outcome === 'committed') {
      this.#staleCommits = 0
      this.#held = plan.after
      this.#entries = plan.after.entries
      this.#servers = plan.after.servers
      this.#drains.take(plan, this.#given.clock.nowMs())
    } else this.#held = undefined
  }
}

function occupiedBy(servers: ReadonlySet<ServerKey>, before: Occupied): Occupied {
  const isSame = servers.size === before.servers.size && [...servers].every(key => before.servers.has(key))
  return isSame ? before : { servers, version: before.version + 1 }
}
