import type { Clock } from '../../src/base/clock.ts'
import { SYNC_SHARE } from '../../src/base/clock.ts'
import { Intake } from '../../src/daemon/intake.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import { resolve } from '../../src/model/resolve.ts'
import type { SourceEvent } from '../../src/model/snapshot.ts'
import { createNftablesPlane } from '../../src/modes/nftables/plane.ts'
import type { NftablesPlan, NftablesState } from '../../src/modes/nftables/state.ts'
import type { ReconcilerEvent } from '../../src/reconcile/pass.ts'
import { Reconciler } from '../../src/reconcile/reconciler.ts'
import { KubeSource } from '../../src/source/kube/kube-source.ts'
import type { Source, SourceHandlers, SourceProblem } from '../../src/source/source.ts'
import type { Backend } from '../support/apiserver/exchange.ts'
import { MemoryClient } from '../support/apiserver/memory-client.ts'
import type { MemoryNetwork } from '../support/apiserver/memory-network.ts'
import type { Random } from '../support/apiserver/random.ts'
import type { FakeKernel } from '../support/fake-kernel/kernel.ts'
import { NODE_NAME, nftablesOptionsOf, resolveOptionsOf } from '../support/pipeline.ts'

export interface NodeProcessOptions {
  readonly backend: Backend
  readonly network: MemoryNetwork
  readonly kernel: FakeKernel
  readonly clock: Clock
  readonly random: Random
  readonly accept: string
  readonly checkPeriodMs: number
  readonly tell: (text: string) => void
  /** An invariant does not hold. */
  readonly complain: (text: string) => void
  readonly requested: () => void
}

const MIN_INTERVAL_MS = 20
const RESYNC_PERIOD_MS = 120_000
const DRIFT_POLL_MS = 2_000
/** A store that answers consistent lists from an older state for so long was restored from a backup. */
const RESTORED_AFTER_MS = 10_000
const PLURALS = { Service: 'services', EndpointSlice: 'endpointslices' } as const

/** One life of the daemon on the node: the real source, model, reconciler and plane, put together as it puts them. */
export class NodeProcess {
  readonly source: KubeSource
  readonly reconciler: Reconciler<NftablesState, NftablesPlan>
  readonly #options: NodeProcessOptions
  readonly #api: MemoryClient
  readonly #nft: NftClient
  readonly #intake: Intake
  /** By plural and key: the newest state that was told of. */
  readonly #newest = new Map<string, number>()
  /** By plural: since when consistent lists have been older than what the source knows. */
  readonly #olderSinceMs = new Map<string, number>()
  /** The server has turned events round: whoever believes it goes back. */
  excused = false
  commits = 0

  constructor(options: NodeProcessOptions) {
    const { backend, network, clock, random, accept, checkPeriodMs, requested, tell } = options
    this.#options = options
    const sent = ({ path }: { readonly path: string }) => {
      requested()
      tell(`GET ${path.replace(/\?labelSelector=[^&]*|\?fieldSelector=[^&]*|&fieldSelector=[^&]*/g, '')}`)
    }
    this.#api = new MemoryClient({ backend, network, clock, sent })
    this.source = new KubeSource({
      client: this.#api,
      clock,
      random,
      nodeName: NODE_NAME,
      serviceProxyName: undefined,
      accept,
      checkPeriodMs,
    })
    const opened = this.#openPlane()
    this.#nft = opened.client
    this.reconciler = opened.reconciler
    this.#intake = new Intake({
      handlers: {
        refusals: list => tell(`refusals ${list.length}`),
        problem: problem => this.#problem(problem),
        observed: observation => tell(JSON.stringify(observation)),
      },
    })
    this.#intake.deliverTo(this.reconciler)
  }

  start(): Promise<void> {
    return this.#intake.follow(this.#listening(this.source))
  }

  get complete(): boolean {
    return this.#intake.complete
  }

  /** The kernel holds everything that the source has told of. */
  get settled(): boolean {
    const { syncedNumber, error } = this.reconciler.status
    return this.complete && error === undefined && syncedNumber === this.#intake.snapshot.number
  }

  /** In good order, or in the middle of everything. */
  async stop(): Promise<void> {
    await this.#api.close()
    await this.#intake.stop()
    await this.reconciler.stop()
    await this.#nft.close()
  }

  /** Requests that the process still holds. */
  get openRequests(): number {
    return this.#api.openCount
  }

  #openPlane() {
    const { kernel, clock, random } = this.#options
    const transport = kernel.open()
    const client = createNftClient({ transport, clock })
    const nftables = nftablesOptionsOf({})
    const plane = createNftablesPlane({
      client,
      options: nftables,
      writers: { openTransport: () => kernel.open(), own: transport.portId },
    })
    const resolving = resolveOptionsOf({})
    const reconciler = new Reconciler({
      plane,
      resolve: (previous, snapshot) => resolve(resolving, previous, snapshot),
      clock,
      random,
      minIntervalMs: MIN_INTERVAL_MS,
      share: SYNC_SHARE,
      resyncPeriodMs: RESYNC_PERIOD_MS,
      driftPollMs: DRIFT_POLL_MS,
      report: event => this.#report(event),
    })
    return { client, reconciler }
  }

  #report(event: ReconcilerEvent): void {
    const { tell, complain } = this.#options
    tell(`reconciler: ${event.kind}${'error' in event ? ` ${event.error.message}` : ''}`)
    if (event.kind !== 'committed') return
    this.commits++
    if (!this.complete) complain('INV-5: a commit before everything was listed')
  }

  /** The source, with an ear at what it tells. */
  #listening(source: KubeSource): Source {
    return {
      start: (handlers: SourceHandlers) =>
        source.start({
          ...handlers,
          events: batch => {
            for (const event of batch) this.#hear(event)
            return handlers.events(batch)
          },
        }),
      stop: () => source.stop(),
      get status() {
        return source.status
      },
    }
  }

  #problem({ kind, location, text }: SourceProblem): void {
    const { tell, clock } = this.#options
    tell(`${kind} ${location}: ${text}`)
    if (
      kind === 'failed' &&
      text.startsWith("the server's state is older") &&
      !this.#olderSinceMs.has(location)
    )
      this.#olderSinceMs.set(location, clock.nowMs())
    if (kind !== 'recovered') return
    if (this.#wasRestored(location))
      for (const name of this.#newest.keys()) if (name.startsWith(`${location} `)) this.#newest.delete(name)
    this.#olderSinceMs.delete(location)
  }

  #wasRestored(plural: string): boolean {
    const sinceMs = this.#olderSinceMs.get(plural) ?? Number.POSITIVE_INFINITY
    return this.#options.clock.nowMs() - sinceMs >= RESTORED_AFTER_MS
  }

  #hear(event: SourceEvent): void {
    if (event.kind !== 'Service' && event.kind !== 'EndpointSlice') return
    const { kind, key, value } = event
    this.#options.tell(`${kind} ${key} ${value === undefined ? 'gone' : ''}`)
    if (value === undefined) return
    const version = 'triggerTimeMs' in value ? value.triggerTimeMs / 1_000 : (value.ports[0]?.port ?? 0)
    const name = `${PLURALS[kind]} ${key}`
    const newest = this.#newest.get(name) ?? 0
    if (version < newest && !this.excused && !this.#wasRestored(PLURALS[kind]))
      this.#options.complain(`A28: ${name} went back from state ${newest} to ${version}`)
    this.#newest.set(name, Math.max(newest, version))
  }
}
