import { type Clock, Pacer } from '../base/clock.ts'
import { PersistentMap } from '../base/collections.ts'
import { errorOf } from '../base/errors.ts'
import type { Ip } from '../base/ip.ts'
import type { Config } from '../config/config.ts'
import { findLink, type LinkAddress, listAddressesNow, ownAddresses } from '../kernel/link/links.ts'
import { type Listener, listListeners, ownSockets, reach } from '../kernel/socket/listeners.ts'
import { type ServiceListeners, type TakenPort, takenKey } from '../model/reserved.ts'
import type { Protocol, Service, ServiceKey } from '../model/service.ts'
import { applyEvents, type Snapshot, type SnapshotEvent } from '../model/snapshot.ts'
import type { OpenSocket } from '../modes/mode.ts'
import { MODE_DEVICE } from '../modes/registry.ts'
import { Connection } from '../netlink/connection.ts'
import type { Metrics } from '../telemetry/metrics.ts'
import type { Occasion } from './intake.ts'
import type { DaemonIo } from './io.ts'
import { openRoute } from './open.ts'

interface NodeListenersIo extends Pick<DaemonIo, 'clock' | 'log' | 'signal' | 'openSockDiag' | 'openRoute'> {
  readonly metrics: Pick<Metrics, 'kprobe_listener_lookups_failed_total'>
}

/**
 * Makes the NodeListeners of a daemon; undefined without a kernel, or without sockets for the lookup. `retry` is called
 * a second after a failure: the caller then calls `completed` again.
 */
export function nodeListenersOf(
  { backend }: Pick<Config, 'backend'>,
  { clock, log, signal, metrics, openSockDiag: diag, openRoute: route = openRoute }: NodeListenersIo,
  retry: () => void,
): NodeListeners | undefined {
  if (backend !== 'netlink' || diag === undefined) return undefined
  return new NodeListeners({
    clock,
    warn: (facts, text) => log.warn(facts, text),
    failed: () => metrics.kprobe_listener_lookups_failed_total.inc(),
    retry: () => {
      if (!signal.aborted) retry()
    },
    ownSockets,
    sockets: { diag, route },
  })
}

interface NodeListenersOptions {
  readonly clock: Clock
  /** Reports that lookups fail, once until one succeeds. */
  readonly warn: (facts: { readonly err: Error }, text: string) => void
  readonly failed?: () => void
  /** Called a second after a failed lookup. */
  readonly retry?: () => void
  readonly sockets: {
    readonly diag: OpenSocket
    readonly route: OpenSocket
  }
  /** Inodes of this process's own sockets, which do not conflict with Services. */
  readonly ownSockets: () => ReadonlySet<number>
}

type Completed = Pick<Snapshot, 'services' | 'listeners'>

/**
 * Finds the processes that listen at external IPs of Services, if these are addresses of this node. A Service keeps an
 * address and port that it has. The lookup covers only new ones, and at a full resync those that were refused. One
 * lookup lists all listeners of the node, which takes a millisecond.
 */
export class NodeListeners {
  readonly #options: NodeListenersOptions
  #before: Completed = { services: PersistentMap.empty(), listeners: PersistentMap.empty() }
  /** Services whose lookup failed, as they were at the last successful one: at most as many as there are Services. */
  readonly #unasked = new Map<ServiceKey, Service | undefined>()
  #failing = false
  readonly #retries: Pacer
  /** No lookup has succeeded since the start: the kernel may already serve the Services. */
  #starting = false

  constructor(options: NodeListenersOptions) {
    this.#options = options
    this.#retries = new Pacer({ clock: options.clock, run: () => void options.retry?.() })
  }

  /** Gives the Snapshot with its listeners; the same object if they did not change. */
  completed(snapshot: Snapshot, occasion: Occasion): Snapshot {
    const { services, listeners, localIps } = snapshot
    this.#starting = occasion === 'start' || (this.#starting && this.#unasked.size > 0)
    const changed = PersistentMap.changes(this.#before.services, services)
    const again = occasion === 'resync' ? listeners.keys() : []
    const keys = [...new Set([...changed, ...this.#unasked.keys(), ...again])]
    const gone = keys.filter(key => !services.has(key))
    for (const key of gone) this.#unasked.delete(key)
    // If the addresses are known, most Services need no lookup: IPVS mode has thousands of addresses to list.
    const mayBeNear = (ip: Ip): boolean => localIps.length === 0 || localIps.includes(ip)
    const asking = keys.filter(
      key => services.get(key)?.externalIps.some(mayBeNear) === true || listeners.has(key),
    )
    const found = this.#found(asking, snapshot)
    const completed = found.length === 0 ? snapshot : applyEvents(snapshot, found)
    this.#before = { services, listeners: completed.listeners }
    return completed
  }

  #found(keys: readonly ServiceKey[], snapshot: Snapshot): readonly SnapshotEvent[] {
    if (keys.length === 0) return []
    try {
      const events = attempted(() => this.#ask(keys, snapshot))
      this.#failing = false
      this.#unasked.clear()
      return events
    } catch (thrown) {
      this.#options.failed?.()
      if (!this.#failing) this.#options.warn({ err: errorOf(thrown) }, FAILED)
      this.#failing = true
      // Again in a second: a list that changed during each attempt may be whole then.
      if (this.#options.retry !== undefined) this.#retries.wake(1_000)
      return this.#postponed(keys, snapshot.services)
    }
  }

  /** Postpones the lookup of these Services, and removes the listeners of deleted ones now. */
  #postponed(keys: readonly ServiceKey[], services: PersistentMap<Service>): readonly SnapshotEvent[] {
    const gone = keys.filter(key => !services.has(key))
    for (const key of keys)
      if (services.has(key) && !this.#unasked.has(key)) this.#unasked.set(key, this.#before.services.get(key))
    return gone.map(key => ({ kind: 'Listeners', key, value: undefined }))
  }

  #ask(keys: readonly ServiceKey[], { services, node }: Snapshot): readonly SnapshotEvent[] {
    const addresses = this.#addresses()
    const local = new Map(addresses.map(address => [address.ip, address]))
    const own = ownAddresses(addresses, node?.ips ?? [])
    const isNear = (ip: Ip): boolean => local.has(ip)
    const near = keys.map(key => ({ key, ips: services.get(key)?.externalIps.filter(isNear) ?? [] }))
    const listening = near.some(({ ips }) => ips.length > 0) ? this.#listeners() : NO_LISTENERS
    const isListenedAt = ({ ip, protocol, port }: TakenPort): boolean => {
      const address = local.get(ip)
      if (address === undefined) return false
      const found = listening.get(portKey(protocol, port)) ?? []
      return found.some(listener => isInTheWay(reach(listener, address), own.has(ip)))
    }
    return near.map(({ key, ips }) => {
      const service = ips.length === 0 ? undefined : services.get(key)
      const isHeld = this.#heldBefore(key)
      const isTaken = (port: TakenPort): boolean => !isHeld(port) && isListenedAt(port)
      return { kind: 'Listeners', key, value: service && listenersOf(service, ips, isTaken) }
    })
  }

  /** Tests whether the Service already had the port, without a refusal. */
  #heldBefore(key: ServiceKey): (port: TakenPort) => boolean {
    const { services, listeners } = this.#before
    const before = this.#unasked.has(key) ? this.#unasked.get(key) : services.get(key)
    if (before === undefined) return () => false
    const ips = new Set(before.externalIps)
    const ports = new Set(before.ports.map(({ protocol, port }) => portKey(protocol, port)))
    const taken = new Set(listeners.get(key)?.taken.map(takenKey))
    return its => ips.has(its.ip) && ports.has(portKey(its.protocol, its.port)) && !taken.has(takenKey(its))
  }

  /** Lists the addresses of this node, without those of Services that a mode bound to its device. */
  #addresses(): readonly LinkAddress[] {
    return this.#over(this.#options.sockets.route, route => {
      const bound = MODE_DEVICE === undefined ? undefined : findLink(route, MODE_DEVICE)?.index
      const all = listAddressesNow(route)
      if (all === undefined) throw new Error('the addresses of the interfaces changed while they were read')
      return all.filter(({ index }) => index !== bound)
    })
  }

  /**
   * Lists the listeners of other processes by protocol and port. At the start, it is unknown whether a Service or a
   * listener was first. Only listeners of root count then, so that an unprivileged process cannot take a Service's
   * port.
   */
  #listeners(): ReadonlyMap<string, readonly Listener[]> {
    const { sockets, ownSockets } = this.#options
    const all = this.#over(sockets.diag, connection => listListeners(connection))
    const own = ownSockets()
    const byPort = new Map<string, Listener[]>()
    for (const listener of all) {
      if (own.has(listener.inode) || (this.#starting && listener.uid !== ROOT)) continue
      const key = portKey(listener.protocol, listener.port)
      const list = byPort.get(key)
      if (list === undefined) byPort.set(key, [listener])
      else list.push(listener)
    }
    return byPort
  }

  #over<T>(open: OpenSocket, use: (connection: Connection) => T): T {
    const connection = new Connection({ transport: open(), clock: this.#options.clock })
    try {
      return use(connection)
    } finally {
      void connection.close()
    }
  }
}

const NO_LISTENERS: ReadonlyMap<string, readonly Listener[]> = new Map()

function portKey(protocol: Protocol, port: number): string {
  return `${protocol} ${port}`
}

/** A wildcard listener conflicts only at the node's own addresses; VIPs belong to Services. */
function isInTheWay(reached: ReturnType<typeof reach>, isOwn: boolean): boolean {
  return reached === 'address' || (reached === 'wildcard' && isOwn)
}

function attempted<T>(use: () => T): T {
  for (let attempt = 1; ; attempt++) {
    try {
      return use()
    } catch (error) {
      // A list that changes while it is read is whole the next time.
      if (attempt === 3) throw error
    }
  }
}

function listenersOf(
  { ports }: Service,
  ips: readonly Ip[],
  isTaken: (port: TakenPort) => boolean,
): ServiceListeners | undefined {
  const taken = ips
    .flatMap(ip => ports.map(({ protocol, port }): TakenPort => ({ ip, protocol, port })))
    .filter(isTaken)
  return taken.length === 0 ? undefined : { taken }
}

const ROOT = 0

const FAILED =
  'cannot list listening sockets; until it succeeds, external addresses of this node are not checked against listening processes'
