import type { Clock } from './clock.ts'
import { cidrOf, familyOf, formatCidr, isLoopback, parseIp } from './ip.ts'

/** A party that holds items, as part of the party before it in a path: a prefix, then an address in it. */
export interface Owner {
  readonly name: string
  /** Items that it may hold; no limit of its own unless given. */
  readonly limit?: number
  /** Items of it that others cannot take; none unless given. */
  readonly reserved?: number
}

type Admission<Item> =
  | { readonly kind: 'accepted' }
  /** The item is in, and `victim` is out; `owner` is the party that was at its limit, and `victimOf` the path of the victim. */
  | {
      readonly kind: 'evicted'
      readonly owner: string
      readonly victim: Item
      readonly victimOf: readonly string[]
    }
  /** Every item that could go is busy, and its owner holds no more than that of the new one. */
  | { readonly kind: 'refused'; readonly owner: string }

interface Holder {
  readonly key: string
  readonly name: string
  readonly limit: number
  readonly reserved: number
  held: number
}

interface Entry<Item> {
  readonly item: Item
  /** The path begins with the whole. */
  readonly path: readonly Holder[]
  isBusy: boolean
}

/**
 * Divides a bounded number of items between their owners. When an owner, or the whole, is at its limit, the largest party
 * in it loses an item: an idle one before a busy one, and the longest idle first. A new item is idle. An
 * admission without a victim costs the length of its path, one with a victim a pass over all items.
 */
export class Shares<Item> {
  readonly #whole: Holder
  readonly #holders = new Map<string, Holder>()
  /** Longest idle first. */
  readonly #entries = new Map<Item, Entry<Item>>()

  constructor(limit: number) {
    this.#whole = { key: '', name: 'all', limit: Math.max(1, limit), reserved: 0, held: 0 }
  }

  get held(): number {
    return this.#whole.held
  }

  /** `owners` from the largest party to the smallest; equally many at each admission. */
  admit(item: Item, owners: readonly Owner[]): Admission<Item> {
    const path = this.#pathOf(owners)
    const full = path.findLast(({ held, limit }) => held >= limit)
    if (full === undefined) {
      this.#enter(item, path)
      return { kind: 'accepted' }
    }
    const victim = this.#victimIn(path.indexOf(full), path)
    if (victim === undefined) return { kind: 'refused', owner: full.name }
    this.leave(victim.item)
    this.#enter(item, path)
    const victimOf = victim.path.slice(1).map(({ name }) => name)
    return { kind: 'evicted', owner: full.name, victim: victim.item, victimOf }
  }

  /** Marks an item as busy until it is marked again, or as idle from now on. */
  mark(item: Item, state: 'busy' | 'idle'): void {
    const entry = this.#entries.get(item)
    if (entry === undefined) return
    entry.isBusy = state === 'busy'
    this.#entries.delete(item)
    this.#entries.set(item, entry)
  }

  /** Idempotent. */
  leave(item: Item): void {
    const entry = this.#entries.get(item)
    if (entry === undefined) return
    this.#entries.delete(item)
    for (const holder of entry.path) if (--holder.held === 0) this.#holders.delete(holder.key)
  }

  #pathOf(owners: readonly Owner[]): readonly Holder[] {
    let key = ''
    const path = [this.#whole]
    for (const { name, limit = Infinity, reserved = 0 } of owners) {
      key += `${name}\0`
      const known = this.#holders.get(key)
      path.push(known ?? { key, name, limit: Math.max(1, limit), reserved, held: 0 })
    }
    return path
  }

  #enter(item: Item, path: readonly Holder[]): void {
    const isBusy = false
    this.#entries.set(item, { item, path, isBusy })
    for (const holder of path) {
      holder.held++
      if (holder !== this.#whole) this.#holders.set(holder.key, holder)
    }
  }

  /** Picks the item that goes for one of `path`, among those of the holder at this depth of the path. */
  #victimIn(depth: number, path: readonly Holder[]): Entry<Item> | undefined {
    let worst: Entry<Item> | undefined
    for (const entry of this.#entries.values()) {
      if (entry.path[depth] !== path[depth] || isInReserve(entry, depth, path)) continue
      if (worst === undefined || comesBefore(entry, worst, depth)) worst = entry
    }
    return worst?.isBusy === true && !holdsMore(worst.path, path) ? undefined : worst
  }
}

function isInReserve<Item>(entry: Entry<Item>, depth: number, path: readonly Holder[]): boolean {
  const holder = entry.path[depth + 1]
  return holder !== undefined && holder !== path[depth + 1] && holder.held <= holder.reserved
}

/** Tests whether an item is evicted before another one that has been idle for longer. */
function comesBefore<Item>(entry: Entry<Item>, other: Entry<Item>, depth: number): boolean {
  for (let at = depth + 1; at < entry.path.length; at++) {
    const more = (entry.path[at]?.held ?? 0) - (other.path[at]?.held ?? 0)
    if (more !== 0) return more > 0
  }
  return other.isBusy && !entry.isBusy
}

/** Compares by two at least: otherwise two parties would displace each other in turn. */
function holdsMore(path: readonly Holder[], than: readonly Holder[]): boolean {
  const at = path.findIndex((holder, index) => holder !== than[index])
  return (path[at]?.held ?? 0) > (than[at]?.held ?? 0) + 1
}

export interface ConnectionLimits {
  readonly connections: number
  /**
   * Maximum number of connections of the clients of one prefix, and of one address; without them, only `connections`
   * limits a client.
   */
  readonly perPrefix?: number
  readonly perAddress?: number
  /** Connections that loopback, and the node itself, each keep whatever others do; none unless given. */
  readonly reserved?: number
  /** Limits of each Service, and of its clients there; those above are of a client at all Services. None unless given. */
  readonly perService?: Omit<ConnectionLimits, 'perService'>
}

export interface OverShare {
  readonly evicted: number
  readonly refused: number
}

export const NONE_OVER_SHARE: OverShare = { evicted: 0, refused: 0 }

/** Counts the connections over a share since the last report. */
export interface Crowd extends OverShare {
  /** Prefix of the client that lost a connection last: `198.51.100.0/24`, `loopback`, `this node`, `unix socket`. */
  readonly client: string
  /** The Service whose share was used up, or the client's share there; undefined where a share of all Services was. */
  readonly service: string | undefined
  /** The share that was used up: of a Service, a prefix, an address, or all. */
  readonly full: string
}

interface ConnectionGateOptions {
  readonly clock: Clock
  readonly limits: ConnectionLimits
  /** Reports what happened since the last report, once a minute at most. */
  readonly crowded: (crowd: Crowd) => void
}

export interface Origin {
  readonly remoteAddress?: string | undefined
  readonly localAddress?: string | undefined
}

interface Peer extends Origin {
  destroy(): unknown
  once(event: 'close', listener: () => void): unknown
}

const REPORT_MS = 60_000
const PREFIX_BITS = { IPv4: 24, IPv6: 64 } as const
const LOOPBACK = 'loopback'
const THIS_NODE = 'this node'

/** Shares of `connections` as an HTTP server divides them: an eighth an address, a quarter a prefix, an eighth in reserve. */
export function sharesOf(connections: number): ConnectionLimits {
  const part = (divisor: number) => Math.floor(connections / divisor)
  return { connections, perPrefix: part(4), perAddress: part(8), reserved: part(8) }
}

/**
 * Accepts connections within the shares of Services and of clients: see Shares. It destroys the connections that have to go, and
 * those that it refuses.
 */
export class ConnectionGate<S extends Peer> {
  readonly #options: ConnectionGateOptions
  readonly #clients: Shares<S>
  /** Bounds each Service; #clients bounds all of them together. */
  readonly #services = new Shares<S>(Infinity)
  #total = NONE_OVER_SHARE
  #reported = NONE_OVER_SHARE
  #reportedMs = Number.NEGATIVE_INFINITY

  constructor(options: ConnectionGateOptions) {
    this.#options = options
    this.#clients = new Shares(options.limits.connections)
  }

  get overShare(): OverShare {
    return this.#total
  }

  get held(): number {
    return this.#clients.held
  }

  /** False when the socket is refused; it is destroyed then. */
  admit(socket: S, service?: string): boolean {
    const { limits } = this.#options
    const { perService } = limits
    // The Service comes first: a connection that its share costs makes room in the whole as well.
    if (service !== undefined && perService !== undefined) {
      const owners = [{ name: service, limit: perService.connections }, ...ownersOf(socket, perService)]
      if (!this.#admitTo(this.#services, socket, owners)) return false
    }
    if (!this.#admitTo(this.#clients, socket, ownersOf(socket, limits))) return false
    socket.once('close', () => this.#leave(socket))
    return true
  }

  #admitTo(shares: Shares<S>, socket: S, owners: readonly Owner[]): boolean {
    const admission = shares.admit(socket, owners)
    if (admission.kind === 'accepted') return true
    const { evicted, refused } = this.#total
    const isRefused = admission.kind === 'refused'
    this.#total = isRefused ? { evicted, refused: refused + 1 } : { evicted: evicted + 1, refused }
    const loser = isRefused ? socket : admission.victim
    this.#leave(loser)
    loser.destroy()
    this.#report(isRefused ? owners.map(({ name }) => name) : admission.victimOf, admission.owner)
    return !isRefused
  }

  #leave(socket: S): void {
    this.#services.leave(socket)
    this.#clients.leave(socket)
  }

  /** Marks a connection at the start and the end of a request. */
  mark(socket: S, state: 'busy' | 'idle'): void {
    this.#services.mark(socket, state)
    this.#clients.mark(socket, state)
  }

  #report(owners: readonly string[], full: string): void {
    const { clock, crowded } = this.#options
    const nowMs = clock.nowMs()
    if (nowMs - this.#reportedMs < REPORT_MS) return
    this.#reportedMs = nowMs
    const evicted = this.#total.evicted - this.#reported.evicted
    const refused = this.#total.refused - this.#reported.refused
    this.#reported = this.#total
    const [client = '', service] = owners.toReversed().slice(1)
    crowded({ client, service, full, evicted, refused })
  }
}

/** The prefix and the address of a client, with their limits. */
export function ownersOf(peer: Origin, limits: Omit<ConnectionLimits, 'connections'> = {}): readonly Owner[] {
  const { perPrefix = Infinity, perAddress = Infinity, reserved = 0 } = limits
  const address = peer.remoteAddress ?? UNIX
  const prefix = prefixOf(address, peer.localAddress)
  const isOurs = prefix === LOOPBACK || prefix === THIS_NODE
  return [
    { name: prefix, limit: perPrefix, reserved: isOurs ? reserved : 0 },
    { name: address, limit: perAddress },
  ]
}

const UNIX = 'unix socket'

/** Names a client by its address; loopback, and a prefix of IPv6, have too many addresses and are one client each. */
export function clientName(address = UNIX): string {
  const ip = parseIp(address)
  return ip === undefined || (ip.length === 4 && !isLoopback(ip)) ? address : prefixOf(address, undefined)
}

/** Returns the prefix, or a name for this machine. A connection between equal addresses comes from it: kubelet's probes do. */
function prefixOf(address: string, localAddress: string | undefined): string {
  // A link-local address has its interface behind a percent sign.
  const ip = parseIp(address.replace(/%.*$/, ''))
  if (ip === undefined) return address
  if (isLoopback(ip)) return LOOPBACK
  return address === localAddress ? THIS_NODE : formatCidr(cidrOf(ip, PREFIX_BITS[familyOf(ip)]))
}
