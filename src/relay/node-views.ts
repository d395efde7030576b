import { ApiFeed } from '../api/feed.ts'
import { type Call, type CallHandler, RESOURCE_EXHAUSTED, RpcError } from '../api/grpc/rpc.ts'
import { Sets } from '../api/grpc/server.ts'
import { NodeState, SharedState, type SharedStep } from '../api/node-state.ts'
import { Entanglement, nodeIn } from '../api/shared-view.ts'
import { type Cancel, type Clock, Slice, type Slicing, slicingOf } from '../base/clock.ts'
import { errorOf } from '../base/errors.ts'
import { Newest } from '../base/queues.ts'
import { Intake } from '../daemon/intake.ts'
import type { ResolveOptions } from '../model/node-context.ts'
import type { Resolved } from '../model/resolve.ts'
import type { NodeInfo, Snapshot } from '../model/snapshot.ts'
import type { StateSource } from './state-source.ts'

interface NodeViewsOptions {
  readonly clock: Clock
  /** The point of view of every node, but for its name. */
  readonly resolving: Omit<ResolveOptions, 'nodeName'>
  /** Opens the objects; called when the first node is asked for. */
  readonly openSource: (nodesChanged: () => void) => StateSource
  /** An internal error; what was published stays. */
  readonly failed: (error: Error) => void
}

/** Nodes that are asked for at a time. */
const NODES_MAX = 1_024
/** States that nodes share: one for each zone, and one for each node whose own addresses matter to Services. */
const SHARED_MAX = 32
/** A node without clients is kept for so long: a client that reconnects finds it. */
const IDLE_MS = 60_000

interface Pass {
  readonly snapshot: Snapshot
  readonly slicing: Slicing
}

interface Run {
  readonly source: StateSource
  readonly intake: Intake
}

/**
 * Computes the states that nodes publish for back ends, for the nodes that clients request. Nodes of one zone share one
 * state, and each has the difference to it. Holds nothing without clients.
 */
export class NodeViews {
  readonly #options: NodeViewsOptions
  readonly #views = new Map<string, NodeView>()
  readonly #shared = new Map<string, SharedState>()
  #run: Run | undefined
  #snapshot: Snapshot | undefined
  readonly #newest = new Newest<true>(() => this.#work())
  #isClosed = false

  constructor(options: NodeViewsOptions) {
    this.#options = options
  }

  /** Nodes that are computed now, and the states that they share. */
  get counts(): { readonly nodes: number; readonly shared: number } {
    return { nodes: this.#views.size, shared: this.#shared.size }
  }

  /** Begins a stream of `localv1.Sets/Watch`. Throws RpcError where there are too many nodes. */
  watch(name: string, call: Call): CallHandler {
    const view = this.#views.get(name) ?? this.#open(name)
    return view.watch(call)
  }

  /** Ends the streams of all nodes. */
  async close(): Promise<void> {
    this.#isClosed = true
    for (const view of [...this.#views.values()]) this.#drop(view)
    await this.#newest.settled()
  }

  #open(name: string): NodeView {
    const { clock, resolving } = this.#options
    if (this.#views.size >= NODES_MAX) {
      const idle = [...this.#views.values()].find(({ isIdle }) => isIdle)
      if (idle === undefined)
        throw new RpcError(
          RESOURCE_EXHAUSTED,
          `the relay serves the Sets of ${NODES_MAX} other nodes, its limit`,
        )
      this.#drop(idle)
    }
    const view = new NodeView({
      name,
      clock,
      resolving,
      source: () => this.#run?.intake.status,
      idle: () => this.#drop(view),
    })
    this.#views.set(name, view)
    this.#run ??= this.#start()
    this.#wake()
    return view
  }

  #start(): Run {
    const { openSource, failed } = this.#options
    const source = openSource(() => this.#wake())
    const handlers = { refusals: () => undefined, problem: () => undefined }
    const intake = new Intake({ handlers })
    intake.deliverTo({
      offer: snapshot => {
        this.#snapshot = snapshot
        this.#wake()
      },
      paced: () => this.#newest.settled(),
    })
    intake.follow(source).catch(error => failed(errorOf(error)))
    return { source, intake }
  }

  #drop(view: NodeView, why = 'the relay stops'): void {
    this.#views.delete(view.name)
    view.close(why)
    if (this.#views.size > 0) return
    const { intake } = this.#run ?? {}
    this.#run = undefined
    this.#snapshot = undefined
    this.#shared.clear()
    intake?.deliverTo(undefined)
    intake?.stop().catch(error => this.#options.failed(errorOf(error)))
  }

  #wake(): void {
    if (!this.#isClosed) this.#newest.offer(true)
  }

  async #work(): Promise<void> {
    // Changes and new nodes are handled together.
    await this.#options.clock.breathe()
    const [snapshot, run] = [this.#snapshot, this.#run]
    if (snapshot === undefined || run === undefined) return
    try {
      await this.#pass(snapshot, run)
    } catch (error) {
      this.#options.failed(errorOf(error))
    }
  }

  /** Every node gets each state of what it shares: differences are between neighbors. */
  async #pass(snapshot: Snapshot, run: Run): Promise<void> {
    const slicing = slicingOf(this.#options.clock)
    const slice = new Slice(slicing)
    // A node that has moved may need the place of the zone that it left.
    for (const view of [...this.#views.values()]) view.sees(run.source.nodeOf(view.name))
    if (this.#run === run) this.#forgetUnused()
    for (const view of [...this.#views.values()]) {
      if (slice.isOver) await slice.next()
      // The last client, or that of this node, may have gone and come back during the computation.
      const isServed = (): boolean => this.#run === run && this.#views.get(view.name) === view
      if (!isServed()) continue
      const step = await this.#stepOf(view, isServed, { snapshot, slicing })
      if (!isServed()) continue
      if (step === undefined)
        this.#drop(
          view,
          `the relay computes ${SHARED_MAX} other zones, and nodes that share with no other, its limit`,
        )
      else await view.follow(step, slicing)
    }
    if (this.#run === run) this.#forgetUnused()
  }

  /** Follows what the node shares. Undefined where there is no room for it, or the node is no longer served. */
  async #stepOf(view: NodeView, isServed: () => boolean, { snapshot, slicing }: Pass) {
    const follow = async (key: string, node: NodeInfo) => {
      const shared = this.#shared.get(key) ?? this.#make(key, node)
      if (shared === undefined) return undefined
      view.uses.push(key)
      await shared.next(snapshot, slicing)
      return shared.step
    }
    const { node, zone } = view
    view.uses = []
    const ofZone = await follow(`zone ${zone}`, nodeIn(zone))
    if (node === undefined || ofZone === undefined || !isServed()) return ofZone
    return view.isEntangledIn(ofZone.now.resolved) ? await follow(JSON.stringify(node), node) : ofZone
  }

  #forgetUnused(): void {
    const used = new Set([...this.#views.values()].flatMap(({ uses }) => uses))
    for (const key of this.#shared.keys()) if (!used.has(key)) this.#shared.delete(key)
  }

  /** Nodes without clients give way where there is no room. */
  #make(key: string, node: NodeInfo): SharedState | undefined {
    if (this.#shared.size >= SHARED_MAX) {
      for (const view of [...this.#views.values()]) if (view.isIdle) this.#drop(view)
      this.#forgetUnused()
    }
    if (this.#shared.size >= SHARED_MAX) return undefined
    const [lender] = this.#shared.values()
    const { resolving } = this.#options
    const shared = new SharedState({ ...resolving, nodeName: '' }, node, lender)
    this.#shared.set(key, shared)
    return shared
  }
}

interface NodeViewOptions extends Pick<NodeViewsOptions, 'clock' | 'resolving'> {
  readonly name: string
  readonly source: ConstructorParameters<typeof ApiFeed>[0]['source']
  /** No client has requested it for IDLE_MS. */
  readonly idle: () => void
}

/** One node, and the streams that request it. */
class NodeView {
  readonly name: string
  node: NodeInfo | undefined
  readonly #options: NodeViewOptions
  readonly #feed: ApiFeed
  readonly #sets: Sets
  readonly #calls = new Set<Call>()
  /** Keys of the states that it shares. */
  uses: string[] = []
  readonly #state: NodeState
  #entanglement: Entanglement | undefined
  #cancelIdle: Cancel = () => undefined
  #isClosed = false

  constructor(options: NodeViewOptions) {
    const { name, clock, resolving, source } = options
    this.#options = options
    this.name = name
    this.#state = new NodeState({ ...resolving, nodeName: name })
    this.#feed = new ApiFeed({ clock, source })
    this.#sets = new Sets({ feed: this.#feed, clock, nodeName: name })
  }

  get isIdle(): boolean {
    return this.#calls.size === 0
  }

  watch(call: Call): CallHandler {
    this.#cancelIdle()
    this.#calls.add(call)
    const handler = this.#sets.watch(call)
    return {
      message: bytes => handler.message(bytes),
      ended: () => handler.ended(),
      drained: () => handler.drained?.(),
      closed: () => {
        handler.closed?.()
        this.#calls.delete(call)
        if (this.isIdle && !this.#isClosed)
          this.#cancelIdle = this.#options.clock.after(IDLE_MS, this.#options.idle)
      },
    }
  }

  /** Takes the Node. The last state of one that is gone counts: a kubelet registers it again within seconds. */
  sees(now: NodeInfo | undefined): void {
    if (now === undefined || now === this.node) return
    this.node = now
    this.#entanglement = new Entanglement(now)
    this.uses = [`zone ${this.zone}`]
  }

  get zone(): string {
    return this.node?.zone ?? ''
  }

  /** Tests whether the node's own addresses change the owner of an external address of a Service. */
  isEntangledIn(resolved: Resolved): boolean {
    return this.#entanglement?.in(resolved) === true
  }

  async follow(step: SharedStep, slicing: Slicing): Promise<void> {
    await this.#state.next(step, this.node, slicing)
    if (this.#state.state !== undefined) this.#feed.offer(this.#state.state)
  }

  close(why: string): void {
    this.#isClosed = true
    this.#cancelIdle()
    for (const call of [...this.#calls]) call.end(RESOURCE_EXHAUSTED, why)
    this.#sets.close()
  }
}
