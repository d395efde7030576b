import { onTestFinished } from 'vitest'
import { type Call, type CallHandler, MessageReader, RpcError, UNAVAILABLE } from '../../src/api/grpc/rpc.ts'
import type { ApiAddress } from '../../src/base/api-address.ts'
import { parseIp } from '../../src/base/ip.ts'
import { RelayClient } from '../../src/relay/client.ts'
import type { RelayCall, RelayCallHandlers, RelayLink } from '../../src/relay/connection.ts'
import { DiscoveryServer } from '../../src/relay/discovery-server.ts'
import type { RelayNames } from '../../src/relay/names.ts'
import { ReportForwarder } from '../../src/relay/node-report.ts'
import { relayMethods } from '../../src/relay/server.ts'
import { RelayState } from '../../src/relay/state.ts'
import { Upstream } from '../../src/relay/upstream.ts'
import type { ApiClient } from '../../src/source/kube/api-client.ts'
import { KubeSource, type KubeSourceOptions } from '../../src/source/kube/kube-source.ts'
import type { ApiObject } from '../../src/source/kube/wire/tables.ts'
import { FaultScript } from './apiserver/faults.ts'
import { nodeOf, serviceCidrOf, serviceOf, sliceOf } from './apiserver/generator.ts'
import { MemoryClient } from './apiserver/memory-client.ts'
import { MemoryNetwork } from './apiserver/memory-network.ts'
import { createRandom, type Random } from './apiserver/random.ts'
import { Semantics } from './apiserver/semantics.ts'
import { Store } from './apiserver/store.ts'
import { FakeClock } from './fake-clock.ts'
import { Follower } from './follower.ts'
import { MachineClock } from './machine-clock.ts'

export const PROTOBUF = 'application/vnd.kubernetes.protobuf'
const NAMESPACE = 'namespace-0'
const PULSE_MS = 30_000

/** A relay without sockets. It can be killed, stopped, restarted, and cut off from its source. */
export class MemoryRelay {
  readonly #world: RelayWorld
  readonly network: MemoryNetwork
  readonly clock: MachineClock
  readonly problems: string[] = []
  state: RelayState
  upstream: Upstream
  discovery: DiscoveryServer
  calls: Set<MemoryCall> = new Set()
  isUp = false
  /** Nothing is heard of it, and it hears nothing: SIGSTOP. */
  #isStopped = false
  #client: ApiClient | undefined
  /** Relays that it reads from; none for the API server. */
  readonly #sources: readonly MemoryRelay[]

  constructor(world: RelayWorld, sources: readonly MemoryRelay[] = []) {
    this.#world = world
    this.#sources = sources
    this.network = new MemoryNetwork({ clock: world.clock, random: world.random.fork() })
    this.clock = new MachineClock(world.clock)
    ;({ state: this.state, upstream: this.upstream, discovery: this.discovery } = this.#made())
  }

  /** Begins with nothing, at the API server of this world or of another one. It ends with the test. */
  start({ backend }: Pick<RelayWorld, 'backend'> = this.#world): void {
    ;({ state: this.state, upstream: this.upstream, discovery: this.discovery } = this.#made(backend))
    this.isUp = true
    onTestFinished(async () => {
      if (this.isUp) await this.kill()
    })
    this.#isStopped = false
    this.upstream.start()
  }

  async kill(): Promise<void> {
    this.isUp = false
    this.cut()
    await this.#client?.close()
    await this.upstream.stop()
    this.discovery.close()
  }

  get isStopped(): boolean {
    return this.#isStopped
  }

  stop(): void {
    this.#isStopped = true
    for (const call of this.calls) this.unanswered(call)
  }

  continue(): void {
    this.#isStopped = false
    for (const call of [...this.calls]) call.thaw()
  }

  /** A PING gets no answer. */
  unanswered(call: MemoryCall): void {
    this.#world.clock.after(PULSE_MS, () => {
      if (this.#isStopped) call.lose()
    })
  }

  /** Every connection of nodes is reset. */
  cut(): void {
    for (const call of [...this.calls]) call.lose()
  }

  handlerOf(method: string, call: Call): CallHandler {
    const { methods } = relayMethods(this.discovery, this.state, this.clock)
    const handle = methods.get(method)
    if (handle === undefined) throw new Error(`no method ${method}`)
    return handle(call)
  }

  #made(backend = this.#world.backend) {
    const { clock } = this
    const { random, historyBytesMax, asked } = this.#world
    const state = new RelayState({
      clock,
      proxyName: '',
      wallMs: this.#world.wallMs,
      ...(historyBytesMax === undefined ? {} : { historyBytesMax }),
    })
    const above = this.#sources.length > 0 ? this.#world.client('relay', this.#sources) : undefined
    const client =
      above ??
      new MemoryClient({
        backend,
        network: this.network,
        clock,
        qps: 0,
        sent: ({ path }) => asked.push(path),
      })
    this.#client = client
    if (above !== undefined)
      new ReportForwarder({ clock, reports: state.reports, call: () => above.reporting })
    const upstream = new Upstream({
      client,
      isRelay: above !== undefined,
      clock,
      random: random.fork(),
      state,
      problem: ({ text }) => void this.problems.push(text),
      checkPeriodMs: 1e12,
    })
    return { state, upstream, discovery: new DiscoveryServer({ state, clock }) }
  }
}

class MemoryLink implements RelayLink {
  readonly #relay: () => MemoryRelay | undefined
  readonly #world: RelayWorld

  constructor(world: RelayWorld, relay: () => MemoryRelay | undefined) {
    this.#world = world
    this.#relay = relay
  }

  call(method: string, handlers: RelayCallHandlers): RelayCall {
    return new MemoryCall({ method, handlers, relay: this.#relay(), world: this.#world })
  }

  close(): void {
    // Calls end with their readers.
  }
}

interface MemoryCallOptions {
  readonly method: string
  readonly handlers: RelayCallHandlers
  readonly relay: MemoryRelay | undefined
  readonly world: RelayWorld
}

/** Both ends of a call; what is said arrives a little later, in its order. */
class MemoryCall implements RelayCall, Call {
  readonly organizations = []
  readonly #options: MemoryCallOptions
  #handler: CallHandler | undefined
  #isOver = false
  #arriveAtMs = 0
  #isPaused = false
  readonly #held: (() => void)[] = []
  /** What has arrived at a relay, or comes from one, that is stopped. */
  readonly #frozen: (() => void)[] = []
  readonly #reader = new MessageReader(1 << 28)
  readonly #requests = new MessageReader(1 << 28)

  constructor(options: MemoryCallOptions) {
    this.#options = options
    const { relay, method } = options
    relay?.calls.add(this)
    if (relay?.isStopped === true) relay.unanswered(this)
    this.#later(() => {
      if (relay?.isUp !== true) this.lose()
      else
        this.attempt(() => {
          this.#handler = relay.handlerOf(method, this)
        })
    })
  }

  send(frame: Buffer): void {
    this.#later(() => this.attempt(() => this.#requests.read(frame, bytes => this.#handler?.message(bytes))))
  }

  finish(): void {
    this.#later(() => this.attempt(() => this.#handler?.ended()))
  }

  pause(): void {
    this.#isPaused = true
  }

  resume(): void {
    this.#isPaused = false
    for (const run of this.#held.splice(0)) run()
  }

  cancel(): void {
    this.#close()
  }

  write(frames: Buffer): boolean {
    this.#later(() =>
      this.#heard(() => this.#reader.read(frames, bytes => this.#options.handlers.message(bytes))),
    )
    return true
  }

  end(code: number, message = ''): void {
    if (this.#isOver) return
    this.#later(() =>
      this.#heard(() => {
        this.#close()
        this.#options.handlers.ended(code, message)
      }),
    )
  }

  attempt(step: () => void): void {
    if (this.#isOver) return
    try {
      step()
    } catch (error) {
      if (!(error instanceof RpcError)) throw error
      this.end(error.code, error.message)
    }
  }

  /** What was said meanwhile arrives. */
  thaw(): void {
    for (const run of this.#frozen.splice(0)) if (!this.#isOver) run()
  }

  /** The connection is reset. */
  lose(): void {
    if (this.#isOver) return
    this.#close()
    this.#options.handlers.ended(UNAVAILABLE, 'the connection was lost')
  }

  #heard(run: () => void): void {
    if (this.#isPaused) this.#held.push(run)
    else run()
  }

  #close(): void {
    if (this.#isOver) return
    this.#isOver = true
    this.#options.relay?.calls.delete(this)
    this.#handler?.closed?.()
  }

  #later(run: () => void): void {
    const { relay, world } = this.#options
    const { clock, random } = world
    const nowMs = clock.nowMs()
    this.#arriveAtMs = Math.max(this.#arriveAtMs, nowMs + random.int(1, 5))
    clock.after(this.#arriveAtMs - nowMs, () => {
      if (this.#isOver) return
      if (relay?.isStopped === true || this.#frozen.length > 0) this.#frozen.push(run)
      else run()
    })
  }
}

export interface RelayWorldOptions {
  readonly seed?: number
  readonly relays?: number
  readonly fallsBack?: boolean
  readonly historyBytesMax?: number
  readonly bookmarkEveryMs?: number
  readonly startVersion?: string
  readonly cluster?: string
}

/** An API server, relays and nodes in memory, by a clock that is moved by hand. */
export class RelayWorld {
  readonly clock = new FakeClock()
  readonly random: Random
  readonly historyBytesMax: number | undefined
  readonly semantics: Semantics
  readonly faults = new FaultScript()
  readonly relays: MemoryRelay[]
  readonly said: string[] = []
  /** What relays, and nodes without one, have asked the API server for. */
  readonly asked: string[] = []
  readonly kube: MemoryNetwork
  readonly #fallsBack: boolean
  #count = 0

  constructor({ seed = 1, relays = 1, fallsBack = false, ...options }: RelayWorldOptions = {}) {
    this.random = createRandom(seed)
    this.historyBytesMax = options.historyBytesMax
    this.#fallsBack = fallsBack
    const now = () => new Date(this.wallMs())
    this.semantics = new Semantics({
      store: new Store({ startVersion: options.startVersion ?? '100', now }),
      clock: this.clock,
      random: this.random.fork(),
      bookmarkEveryMs: options.bookmarkEveryMs ?? 60_000,
    })
    this.kube = new MemoryNetwork({ clock: this.clock, random: this.random.fork() })
    this.relays = Array.from({ length: relays }, () => new MemoryRelay(this))
    this.store.create('servicecidrs', serviceCidrOf(['10.96.0.0/12']))
    for (let index = 0; index < 3; index++) this.store.create('nodes', nodeOf(`node-${index}`, index))
    this.store.create('services', identityOf(options.cluster ?? 'cluster-a'))
    for (let index = 0; index < 6; index++) this.change()
  }

  readonly wallMs = (): number => Date.UTC(2026, 0, 1) + this.clock.nowMs()

  get store(): Store {
    return this.semantics.store
  }

  get backend() {
    return { semantics: this.semantics, faults: this.faults }
  }

  /** A change of some object into a state that it never had. */
  change(): void {
    const { random, store } = this
    const number = ++this.#count
    const index = random.int(0, 9)
    const [key, sliceKey] = [`${NAMESPACE}/service-${index}`, sliceKeyOf(index)]
    if (random.chance(0.2) && store.get('services', key) !== undefined) store.delete('services', key)
    else if (random.chance(0.2) && store.get('endpointslices', sliceKey) !== undefined)
      store.delete('endpointslices', sliceKey)
    else if (random.chance(0.5))
      store.put('services', serviceOf(index, { namespaces: 1 }, { port: 1 + (number % 60_000) }))
    else store.put('endpointslices', sliceOf(index, { namespaces: 1, number: 0, pods: [number] }))
  }

  /** A node that reads from the relays, until the test ends. */
  node(name = 'node-0', relays = this.relays): Follower & { readonly client: RelayClient } {
    const client = this.client(name, relays)
    return Object.assign(followerOf(this.source(client, name)), { client })
  }

  client(
    name: string,
    relays: readonly MemoryRelay[],
    names?: RelayNames,
    linked: (address: ApiAddress, dnsName: string | undefined) => void = () => undefined,
  ): RelayClient {
    const clock = this.clock
    return new RelayClient({
      relays: names === undefined ? relays.map((_, index) => ({ address: addressOf(index), zone: '' })) : [],
      names,
      nodeName: name,
      proxyName: '',
      kube: new MemoryClient({
        backend: this.backend,
        network: this.kube,
        clock,
        qps: 0,
        sent: ({ path }) => this.asked.push(path),
      }),
      fallsBack: this.#fallsBack,
      link: (address, dnsName) => {
        linked(address, dnsName)
        return new MemoryLink(this, () => relays[numberOf(address)])
      },
      clock,
      random: this.random.fork(),
      startedMs: this.wallMs(),
      say: text => void this.said.push(text),
    })
  }

  /** A node that watches the API server itself. */
  direct(name = 'node-0'): Follower {
    const network = new MemoryNetwork({ clock: this.clock, random: this.random.fork() })
    const client = new MemoryClient({ backend: this.backend, network, clock: this.clock, qps: 0 })
    return followerOf(this.source(client, name))
  }

  source(client: ApiClient, nodeName: string, more: Partial<KubeSourceOptions> = {}): KubeSource {
    return new KubeSource({
      ...more,
      client,
      clock: this.clock,
      random: this.random.fork(),
      nodeName,
      serviceProxyName: undefined,
      accept: PROTOBUF,
      checkPeriodMs: 1e12,
    })
  }
}

/** Follows a source until the test ends. */
function followerOf(source: KubeSource): Follower {
  onTestFinished(() => source.stop())
  return new Follower(source)
}

const numberOf = (its: ApiAddress) => (its.kind === 'tcp' ? its.port + its.ip.charCodeAt(3) - 1 : 0)

function addressOf(port: number): ApiAddress {
  return { kind: 'tcp', ip: parseIp('127.0.0.1') ?? raise('no address'), port }
}

function raise(text: string): never {
  throw new Error(text)
}

function sliceKeyOf(index: number): string {
  return `${NAMESPACE}/service-${index}-00000`
}

/** The object by which clusters are told apart. */
export function identityOf(uid: string): ApiObject {
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { namespace: 'default', name: 'kubernetes', uid },
    spec: {
      type: 'ClusterIP',
      clusterIP: '10.96.255.1',
      clusterIPs: ['10.96.255.1'],
      ports: [{ name: 'https', protocol: 'TCP', port: 443 }],
    },
  }
}
