import { PersistentMap } from '../../../base/collections.ts'
import { formatIpPort, type Ip } from '../../../base/ip.ts'
import type { Backend, PortFrontends } from '../../../model/frontend.ts'
import type { ServiceKey } from '../../../model/service.ts'
import type { PlanLine } from '../../../reconcile/dataplane.ts'

export type ListName = 'cluster' | 'local'

type Balance = Pick<PortFrontends, 'affinityTimeoutS' | 'cluster' | 'local'>

interface Client {
  /** endpointText */
  readonly endpoint: string
  readonly untilMs: number
}

interface Turn {
  backends: readonly Backend[]
  /** Endpoints by endpointText; used only with affinity. */
  byText: ReadonlyMap<string, Backend>
  next: number
}

/** The maximum number of expired clients that each remembered client evicts: the table is never walked as a whole. */
const FORGET_AT_ONCE = 2

/**
 * Chooses endpoints for the connections of one Service port: round robin over each of its two lists. A client
 * with affinity gets the same endpoint from either list. The number of remembered clients is bounded; the one
 * silent for the longest time is forgotten first.
 */
export class Balancer {
  readonly #clientsMax: number
  /** Clients by address, the most recently remembered last. */
  readonly #clients = new Map<string, Client>()
  readonly #turns: Readonly<Record<ListName, Turn>> = { cluster: noTurn(), local: noTurn() }
  #timeoutMs = 0

  constructor(balance: Balance, clientsMax: number) {
    this.#clientsMax = clientsMax
    this.update(balance)
  }

  /** Updates the lists. Clients of removed endpoints get another one with their next connection. */
  update({ affinityTimeoutS, cluster, local }: Balance): void {
    this.#timeoutMs = affinityTimeoutS * 1000
    if (this.#timeoutMs === 0) this.#clients.clear()
    this.#set('cluster', cluster)
    this.#set('local', local)
  }

  get clients(): number {
    return this.#clients.size
  }

  has(list: ListName, endpoint: string): boolean {
    return this.#turns[list].byText.has(endpoint)
  }

  /** Gives the next endpoint for a client among those that `usable` accepts; undefined when there is none. */
  pick(
    list: ListName,
    client: { readonly address: string; readonly nowMs: number },
    usable: (backend: Backend) => boolean,
  ): Backend | undefined {
    const known = this.#known(list, client)
    const chosen = known !== undefined && usable(known) ? known : this.#roundRobin(list, usable)
    if (chosen !== undefined && this.#timeoutMs > 0) this.#remember(client, endpointText(chosen))
    return chosen
  }

  /** Forgets the endpoint of a client, because it did not answer. The client may then get another one. */
  forget(address: string, endpoint: string): void {
    if (this.#clients.get(address)?.endpoint === endpoint) this.#clients.delete(address)
  }

  #set(list: ListName, backends: readonly Backend[]): void {
    const turn = this.#turns[list]
    if (turn.backends === backends) return
    turn.backends = backends
    turn.byText = new Map(backends.map(backend => [endpointText(backend), backend]))
    if (turn.next >= backends.length) turn.next = 0
  }

  #known(list: ListName, { address, nowMs }: { address: string; nowMs: number }): Backend | undefined {
    if (this.#timeoutMs === 0) return undefined
    const client = this.#clients.get(address)
    if (client === undefined || client.untilMs <= nowMs) return undefined
    return this.#turns[list].byText.get(client.endpoint)
  }

  #roundRobin(list: ListName, usable: (backend: Backend) => boolean): Backend | undefined {
    const turn = this.#turns[list]
    const { length } = turn.backends
    for (let tries = 0; tries < length; tries++) {
      const backend = turn.backends[turn.next]
      turn.next = (turn.next + 1) % length
      if (backend !== undefined && usable(backend)) return backend
    }
    return undefined
  }

  #remember({ address, nowMs }: { address: string; nowMs: number }, endpoint: string): void {
    this.#clients.delete(address)
    let forgotten = 0
    for (const [oldest, { untilMs }] of this.#clients) {
      const isFull = this.#clients.size >= this.#clientsMax
      if (!isFull && (untilMs > nowMs || forgotten === FORGET_AT_ONCE)) break
      this.#clients.delete(oldest)
      forgotten++
    }
    this.#clients.set(address, { endpoint, untilMs: nowMs + this.#timeoutMs })
  }
}

/** Formats an endpoint: `10.0.0.1:80`. The text identifies endpoints. */
export function endpointText({ ip, port }: Backend): string {
  return formatIpPort(ip, port)
}

function noTurn(): Turn {
  return { backends: [], byText: new Map(), next: 0 }
}

/** PortFrontends.key, a space, and the listener's address, with its port if the forwarder chooses it. */
export type ForwarderKey = string

/** The forwarder of one Service port: the lists that have a listener, and the endpoints of each. */
export interface Forwarder {
  readonly key: ForwarderKey
  /** PortFrontends.displayName */
  readonly displayName: string
  readonly service: ServiceKey
  readonly protocol: 'TCP' | 'UDP'
  /** One of this node's addresses. */
  readonly address: Ip
  /** The port of the only listener; absent where the kernel chooses a port for each. */
  readonly port?: number
  readonly lists: readonly ListName[]
  readonly balance: Balance
}

/** Gives the forwarder of its key that is there if it is the same, so that comparisons skip it. */
export function knownForwarder(known: PersistentMap<Forwarder>, forwarder: Forwarder): Forwarder {
  const before = known.get(forwarder.key)
  return before !== undefined && sameForwarder(before, forwarder) ? before : forwarder
}

/** Compares the endpoints and listeners of two forwarders. */
function sameForwarder(a: Forwarder, b: Forwarder): boolean {
  if (a === b) return true
  return (
    a.key === b.key &&
    a.balance.affinityTimeoutS === b.balance.affinityTimeoutS &&
    a.lists.length === b.lists.length &&
    a.lists.every((list, at) => list === b.lists[at]) &&
    sameBackends(a.balance.cluster, b.balance.cluster) &&
    sameBackends(a.balance.local, b.balance.local)
  )
}

function sameBackends(a: readonly Backend[], b: readonly Backend[]): boolean {
  if (a === b) return true
  return a.length === b.length && a.every((one, at) => one.ip === b[at]?.ip && one.port === b[at]?.port)
}

/** The changes that a commit makes to the forwarders of this process. */
export interface ForwarderChanges {
  /** Forwarders to open, or to give other endpoints. */
  readonly put: readonly Forwarder[]
  readonly remove: readonly Forwarder[]
  readonly lines: readonly PlanLine[]
}

export function diffForwarders(
  from: PersistentMap<Forwarder>,
  to: PersistentMap<Forwarder>,
): ForwarderChanges {
  const put: Forwarder[] = []
  const remove: Forwarder[] = []
  const lines: PlanLine[] = []
  for (const [, before, forwarder] of PersistentMap.differences(from, to)) {
    if (before !== undefined && forwarder !== undefined && sameForwarder(before, forwarder)) continue
    if (forwarder !== undefined) put.push(forwarder)
    else if (before !== undefined) remove.push(before)
    const one = forwarder ?? before
    const verb = forwarder === undefined ? 'remove' : before === undefined ? 'add' : 'change'
    if (one !== undefined) lines.push({ verb, object: forwarderText(one), service: one.service })
  }
  return { put, remove, lines }
}

/** Describes a forwarder: `relay TCP ns/web:http at 192.168.0.2 (cluster) to 3 endpoints`, with the port if it is chosen. */
function forwarderText({ key, protocol, lists, balance, port }: Forwarder): string {
  const place = key.slice(key.lastIndexOf(' ') + 1)
  const name = key.slice(0, key.lastIndexOf(`/${protocol}/`))
  const count = new Set([
    ...(lists.includes('cluster') ? balance.cluster : []),
    ...(lists.includes('local') ? balance.local : []),
  ]).size
  const which = port === undefined ? ` (${lists.join(', ')})` : ''
  return `relay ${protocol} ${name} at ${place}${which} to ${count} endpoints`
}
