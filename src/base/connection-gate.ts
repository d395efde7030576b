import { cidrOf, formatCidr } from './cidr.ts'
import type { Clock } from './clock.ts'
import { familyOf, isLoopback, parseIp } from './ip.ts'
import { type Owner, Shares } from './shares.ts'

export interface ConnectionLimits {
  /** Connections at a time. */
  readonly connections: number
  /** The same of one Service, where there are several. */
  readonly perService?: number
  /** The same of clients of one prefix, and of one address; no limit of their own unless given. */
  readonly perPrefix?: number
  readonly perAddress?: number
  /** Connections that loopback, and the node itself, each keep whatever others do; none unless given. */
  readonly reserved?: number
}

/** Connections that were over a share, since the start. */
export interface OverShare {
  readonly evicted: number
  readonly refused: number
}

export const NONE_OVER_SHARE: OverShare = { evicted: 0, refused: 0 }

/** The same since the last report. */
export interface Crowd extends OverShare {
  /** Whom the last connection that was closed came from: `198.51.100.0/24`, `loopback`, `this node`, `unix socket`. */
  readonly client: string
  /** What the client connected to, where there are several. */
  readonly service: string | undefined
  /** Whose share was used up: a Service, a prefix, an address, or all. */
  readonly full: string
}

export interface ConnectionGateOptions {
  readonly clock: Clock
  readonly limits: ConnectionLimits
  /** Called once a minute at most. */
  readonly crowded: (crowd: Crowd) => void
}

/** As far as a Socket matters here. */
interface Peer {
  readonly remoteAddress?: string | undefined
  readonly localAddress?: string | undefined
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

/** Accepts connections within shares of their clients: see Shares. What has to go is destroyed here. */
export class ConnectionGate<S extends Peer> {
  readonly #options: ConnectionGateOptions
  readonly #shares: Shares<S>
  #total = NONE_OVER_SHARE
  #reported = NONE_OVER_SHARE
  #reportedMs = Number.NEGATIVE_INFINITY

  constructor(options: ConnectionGateOptions) {
    this.#options = options
    this.#shares = new Shares(options.limits.connections)
  }

  get overShare(): OverShare {
    return this.#total
  }

  get held(): number {
    return this.#shares.held
  }

  /** False when the socket is refused; it is destroyed then. */
  admit(socket: S, service?: string): boolean {
    const owners = ownersOf(socket, this.#options.limits, service)
    const admission = this.#shares.admit(socket, owners)
    if (admission.kind === 'refused') {
      const { evicted, refused } = this.#total
      this.#total = { evicted, refused: refused + 1 }
      socket.destroy()
      this.#report(
        owners.map(({ name }) => name),
        admission.owner,
      )
      return false
    }
    socket.once('close', () => this.#shares.leave(socket))
    if (admission.kind === 'accepted') return true
    const { evicted, refused } = this.#total
    this.#total = { evicted: evicted + 1, refused }
    admission.victim.destroy()
    this.#report(admission.victimOf, admission.owner)
    return true
  }

  /** The client has asked for something, or has been answered. */
  mark(socket: S, state: 'busy' | 'idle'): void {
    this.#shares.mark(socket, state)
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

/** The Service if there are several, the prefix, and the address of a client. */
export function ownersOf(
  peer: Pick<Peer, 'remoteAddress' | 'localAddress'>,
  limits: Omit<ConnectionLimits, 'connections'> = {},
  service?: string,
): readonly Owner[] {
  const { perService = Infinity, perPrefix = Infinity, perAddress = Infinity, reserved = 0 } = limits
  const address = peer.remoteAddress ?? UNIX
  const prefix = prefixOf(address, peer.localAddress)
  const isOurs = prefix === LOOPBACK || prefix === THIS_NODE
  const clients = [
    { name: prefix, limit: perPrefix, reserved: isOurs ? reserved : 0 },
    { name: address, limit: perAddress },
  ]
  return service === undefined ? clients : [{ name: service, limit: perService }, ...clients]
}

const UNIX = 'unix socket'

/** A connection between equal addresses comes from the machine itself: kubelet's probes of the node do. */
function prefixOf(address: string, localAddress: string | undefined): string {
  // A link-local address has its interface behind a percent sign.
  const ip = parseIp(address.replace(/%.*$/, ''))
  if (ip === undefined) return address
  if (isLoopback(ip)) return LOOPBACK
  return address === localAddress ? THIS_NODE : formatCidr(cidrOf(ip, PREFIX_BITS[familyOf(ip)]))
}
