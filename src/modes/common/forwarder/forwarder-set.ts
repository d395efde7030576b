import type { Clock } from '../../../base/clock.ts'
import type { PersistentMap } from '../../../base/collections.ts'
import { errorOf } from '../../../base/errors.ts'
import { formatIp, formatIpPort } from '../../../base/ip.ts'
import { count } from '../../../base/text.ts'
import type { ServiceKey } from '../../../model/service.ts'
import { type ReadRows, readCounter, readGauge } from '../../../telemetry/metric-set.ts'
import {
  beyondShares,
  type ForwarderContext,
  type ForwarderPort,
  type Listener,
  ReportLimit,
} from './context.ts'
import {
  Balancer,
  type Forwarder,
  type ForwarderChanges,
  type ForwarderKey,
  type ListName,
} from './forwarder.ts'
import { openTcpListener } from './tcp.ts'
import { openUdpListener } from './udp.ts'

export interface OpenFailure {
  readonly service: ServiceKey
  /** Undefined when the Service as a whole gives way to others. */
  readonly forwarder: ForwarderKey | undefined
  readonly error: Error
}

type Changes = Pick<ForwarderChanges, 'put' | 'remove'>

interface OpenForwarder {
  readonly service: ServiceKey
  readonly port: ForwarderPort
  readonly listeners: Map<ListName, Listener>
}

/** The number of listeners that are opened at a time. */
const OPENED_AT_ONCE = 64

/** The forwarders of one process, each on a port of its own or on ports that the kernel chose. */
export class ForwarderSet {
  readonly #context: ForwarderContext
  readonly #forwarders = new Map<ForwarderKey, OpenForwarder>()
  /** Listeners opened since the last successful commit, each with its forwarder. */
  readonly #fresh = new Map<Listener, ForwarderKey>()
  /** Closed listeners whose connections continue until they or the process end. */
  readonly #leaving = new Set<Listener>()

  constructor(context: ForwarderContext) {
    this.#context = context
  }

  get size(): number {
    let size = 0
    for (const { listeners } of this.#forwarders.values()) size += listeners.size
    return size
  }

  get counts(): ForwarderCounts {
    const { connections, sessions, own } = this.#context
    return {
      listeners: this.size,
      tcp: { held: connections.held, refused: connections.refused },
      udp: { held: sessions.held, refused: sessions.refused },
      loops: own.loops,
    }
  }

  has(key: ForwarderKey): boolean {
    return this.#forwarders.has(key)
  }

  portOf(key: ForwarderKey, list: ListName): number | undefined {
    return this.#forwarders.get(key)?.listeners.get(list)?.port
  }

  /**
   * Opens the missing listeners of `put`, closed to clients. Gives the Services whose listeners cannot be
   * opened, or that give way to others. Opens nothing when a Service gives way. The forwarders of `remove` count
   * as closed, but stay open until their rules are gone; until then, the number of listeners may exceed the
   * limit.
   */
  async open(changes: Changes): Promise<readonly OpenFailure[]> {
    const { put } = changes
    const beyond = this.beyond(changes)
    if (beyond.length > 0) return beyond.map(service => this.tooMany(service))
    const failures: OpenFailure[] = []
    for (let at = 0; at < put.length; at += OPENED_AT_ONCE) {
      const some = put.slice(at, at + OPENED_AT_ONCE)
      await Promise.all(some.map(forwarder => this.#openOne(forwarder, failures)))
    }
    return failures
  }

  /** Gives the Services that would have to give way to others, open ones among them. */
  beyond({ put, remove }: Changes): readonly ServiceKey[] {
    const forwarders = new Map<ForwarderKey, readonly [service: ServiceKey, listeners: number]>()
    for (const [key, { service, listeners }] of this.#forwarders)
      forwarders.set(key, [service, listeners.size])
    for (const { key } of remove) forwarders.delete(key)
    for (const { key, service, lists } of put) forwarders.set(key, [service, lists.length])
    const wanted = new Map<ServiceKey, number>()
    for (const [service, listeners] of forwarders.values())
      wanted.set(service, (wanted.get(service) ?? 0) + listeners)
    return beyondShares(wanted, this.#context.limits.listeners)
  }

  tooMany(service: ServiceKey): OpenFailure {
    return { service, forwarder: undefined, error: noRoom(this.#context.limits.listeners) }
  }

  async #openOne(forwarder: Forwarder, failures: OpenFailure[]): Promise<void> {
    const { key, address, protocol, lists, service, balance, port: listenPort = 0 } = forwarder
    const known = this.#forwarders.get(key)
    const opened: OpenForwarder = known ?? { service, port: this.#portOf(forwarder), listeners: new Map() }
    const open = protocol === 'TCP' ? openTcpListener : openUdpListener
    try {
      for (const list of lists) {
        if (opened.listeners.has(list)) continue
        const listener = await open(address, { context: this.#context, port: opened.port, list, listenPort })
        opened.listeners.set(list, listener)
        this.#fresh.set(listener, key)
        known?.port.balancer.update(balance)
      }
    } catch (thrown) {
      failures.push({ service, forwarder: key, error: cannotListen(forwarder, errorOf(thrown)) })
    }
    if (opened.listeners.size > 0) this.#forwarders.set(key, opened)
  }

  #portOf({ key, balance }: Forwarder): ForwarderPort {
    const { clock, limits } = this.#context
    const balancer = new Balancer(balance, limits.affinityClients)
    return { key, balancer, holder: { name: key, held: 0 }, reports: new ReportLimit(clock) }
  }

  /** Opens the new listeners to clients, because the rules that restrict clients are about to be committed. */
  admitClients(): void {
    for (const listener of this.#fresh.keys()) listener.setOpen(true)
  }

  /** Keeps the new listeners, because the rules are in the kernel, or may be. */
  settle(): void {
    this.#fresh.clear()
  }

  /** Closes the new listeners, because the rules were not committed. */
  discard(): void {
    for (const [listener, key] of this.#fresh) {
      listener.destroy()
      const forwarder = this.#forwarders.get(key)
      forwarder?.listeners.delete(listener.list)
      if (forwarder?.listeners.size === 0) this.#forwarders.delete(key)
    }
    this.#fresh.clear()
  }

  /** Sets the endpoints of new connections, and closes lists to which no rule redirects any more. */
  update({ key, balance, lists }: Forwarder): void {
    const forwarder = this.#forwarders.get(key)
    if (forwarder === undefined) return
    forwarder.port.balancer.update(balance)
    for (const [list, listener] of forwarder.listeners) {
      if (lists.includes(list)) listener.changed()
      else {
        forwarder.listeners.delete(list)
        this.#close(listener)
      }
    }
  }

  /** Closes a forwarder. Its connections continue until they end by themselves. */
  remove(key: ForwarderKey): void {
    const forwarder = this.#forwarders.get(key)
    if (forwarder === undefined) return
    this.#forwarders.delete(key)
    for (const listener of forwarder.listeners.values()) this.#close(listener)
  }

  #close(listener: Listener): void {
    this.#fresh.delete(listener)
    listener.close()
    if (listener.isBusy()) this.#leaving.add(listener)
    for (const other of this.#leaving) if (!other.isBusy()) this.#leaving.delete(other)
  }

  /** Closes all listeners but those of `wanted`, also such as an earlier commit left. */
  retain(wanted: PersistentMap<Forwarder>): void {
    for (const key of this.#forwarders.keys()) {
      const forwarder = wanted.get(key)
      if (forwarder === undefined) this.remove(key)
      else this.update(forwarder)
    }
  }

  /** Releases the process: listeners accept for a while, connections continue until they or the process end. */
  release(clock: Clock): void {
    const listeners = this.#all()
    for (const listener of listeners) listener.unref()
    // By then the next process has redirected all clients.
    clock.after(5_000, () => {
      for (const listener of listeners) listener.close()
    })
  }

  /** Closes every listener at once, so that another process can have its port. Connections continue. */
  close(): void {
    for (const listener of this.#all()) {
      listener.unref()
      listener.close()
      if (listener.isBusy()) this.#leaving.add(listener)
    }
    this.#forwarders.clear()
    this.#fresh.clear()
  }

  destroy(): void {
    for (const listener of this.#all()) listener.destroy()
    this.#forwarders.clear()
    this.#fresh.clear()
    this.#leaving.clear()
  }

  #all(): readonly Listener[] {
    return [
      ...[...this.#forwarders.values()].flatMap(({ listeners }) => [...listeners.values()]),
      ...this.#leaving,
    ]
  }
}

function noRoom(listeners: number): Error {
  return new Error(
    `no free listener: the relay has ${count(listeners, 'listener')} for all Services; raise the limit of open files (RLIMIT_NOFILE)`,
  )
}

function cannotListen(
  { address, port }: Pick<Forwarder, 'address' | 'port'>,
  cause: NodeJS.ErrnoException,
): Error {
  const where = port === undefined ? formatIp(address) : formatIpPort(address, port)
  return new Error(`cannot listen on ${where}: ${cause.code ?? cause.message}`, { cause })
}

/** The traffic of this process since the mode began. */
export interface ForwarderCounts {
  readonly listeners: number
  readonly tcp: FlowCounts
  readonly udp: FlowCounts
  /** Connections and UDP clients of this process that came back to it, and were closed. */
  readonly loops: number
}

interface FlowCounts {
  /** The current number of connections, or of UDP clients. */
  readonly held: number
  /** Refused connections and lost datagrams, because of the limits. */
  readonly refused: number
}

export function forwarderMetrics({ listeners, tcp, udp, loops }: ForwarderCounts): ReadRows {
  const byProtocol = (count: keyof FlowCounts): [labels: { protocol: string }, value: number][] => [
    [{ protocol: 'TCP' }, tcp[count]],
    [{ protocol: 'UDP' }, udp[count]],
  ]
  return {
    kprobe_relay_listeners: readGauge('Sockets that receive connections to Services.', () => listeners),
    kprobe_relay_connections: readGauge(
      'Connections (TCP) and clients (UDP) that are relayed now.',
      () => byProtocol('held'),
      'protocol',
    ),
    kprobe_relay_refused_total: readCounter(
      'Connections rejected and datagrams dropped because of the relay limits.',
      () => byProtocol('refused'),
      'protocol',
    ),
    kprobe_relay_loops_total: readCounter(
      'Connections of the relay that reached the relay again and were closed.',
      () => loops,
    ),
  }
}
