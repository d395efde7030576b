import type { Clock } from '../../../base/clock.ts'
import type { Backend } from '../../../model/frontend.ts'
import type { Balancer, ListName } from './balancer.ts'
import type { OwnSockets } from './own-sockets.ts'
import type { Exhaustion, Holder, Usage } from './usage.ts'

export interface RelayLimits {
  /** Sockets that listen, of all Services. */
  readonly listeners: number
  /** TCP connections at once, of all Services; each takes two sockets. */
  readonly connections: number
  /** UDP clients at once, of all Services; each takes a socket. */
  readonly sessions: number
  /** Clients that one Service port with affinity remembers. */
  readonly affinityClients: number
  /** How long each attempt to reach an endpoint for one connection may take, milliseconds. */
  readonly connectTimeoutsMs: readonly number[]
  /** How long a UDP client is remembered after its last datagram in either direction, milliseconds. */
  readonly udpIdleMs: number
  /** Datagrams of one client that wait for its socket; further ones are lost. */
  readonly datagramsWaiting: number
  /** Bytes that wait to be sent on one UDP socket; further datagrams are lost. */
  readonly datagramBytesQueued: number
}

export const DEFAULT_LIMITS: RelayLimits = {
  listeners: 8_192,
  connections: 4_096,
  sessions: 4_096,
  affinityClients: 10_000,
  connectTimeoutsMs: [250, 500, 1_000, 2_000],
  udpIdleMs: 30_000,
  datagramsWaiting: 16,
  datagramBytesQueued: 256 * 1024,
}

/** What a relay cannot do, and an operator may want to know. */
export type RelayEvent =
  | (Exhaustion & { readonly kind: 'exhausted' })
  /** An endpoint did not take a connection; told once a minute. */
  | { readonly kind: 'unreachable'; readonly port: string; readonly endpoint: string; readonly error: Error }
  /** This process has no descriptor, port or memory left for a connection to an endpoint; told once a minute. */
  | { readonly kind: 'starved'; readonly port: string; readonly error: Error }
  /** A connection of this process came back to it, and was refused; told once a minute. */
  | { readonly kind: 'loop'; readonly port: string }
  /** A listener that was open is not any more. */
  | { readonly kind: 'broken'; readonly port: string; readonly error: Error }

/** What all relays of one process share. */
export interface RelayContext {
  readonly clock: Clock
  readonly limits: RelayLimits
  readonly connections: Usage
  readonly sessions: Usage
  readonly own: OwnSockets
  /** Whether our own rules catch packets to this place: a connection there would be relayed a second time. */
  readonly isCaptured: (backend: Backend, protocol: 'TCP' | 'UDP') => boolean
  readonly report: (event: RelayEvent) => void
}

/** What the two listeners of one Service port share. */
export interface RelayPort {
  /** PortFrontends.key */
  readonly key: string
  readonly balancer: Balancer
  readonly holder: Holder
  readonly complaints: Complaints
}

/** Errors that are about this process, and that another endpoint would not mend. */
export const OUR_OWN: ReadonlySet<string> = new Set([
  'EMFILE',
  'ENFILE',
  'ENOBUFS',
  'ENOMEM',
  'EADDRNOTAVAIL',
])

/** Tells that an endpoint could not be reached, and through whose fault. */
export function reportUnreached(
  { report }: Pick<RelayContext, 'report'>,
  { key: port, complaints }: RelayPort,
  { endpoint, error }: { readonly endpoint: string; readonly error: NodeJS.ErrnoException },
): void {
  const isOurs = OUR_OWN.has(error.code ?? '')
  if (!complaints.isDue(isOurs ? '' : endpoint)) return
  report(isOurs ? { kind: 'starved', port, error } : { kind: 'unreachable', port, endpoint, error })
}

/** A socket that clients are redirected to. */
export interface Listener {
  readonly list: ListName
  /** Chosen by the kernel. */
  readonly port: number
  /** While it is closed, whoever connects is refused: rules that keep strangers away are not there yet. */
  setDoor(open: boolean): void
  /** Connections to endpoints that are not in the list any more: those that cannot go on end. */
  changed(): void
  /** Accepts nobody any more. What is under way goes on where its protocol has connections. */
  close(): void
  /** Connections are under way. */
  isBusy(): boolean
  /** Ends everything at once. */
  destroy(): void
  /** Neither the listener nor its connections keep the process alive. */
  unref(): void
}

const SILENCE_MS = 60_000

/** What was told lately: what recurs with every connection is told once a minute, whatever happens in between. */
export class Complaints {
  readonly #clock: Clock
  /** Oldest first. */
  readonly #toldAtMs = new Map<string, number>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** Whether it is to be told now; then it has been. */
  isDue(what: string): boolean {
    const nowMs = this.#clock.nowMs()
    for (const [each, toldAtMs] of this.#toldAtMs) {
      if (nowMs - toldAtMs < SILENCE_MS) break
      this.#toldAtMs.delete(each)
    }
    if (this.#toldAtMs.has(what)) return false
    this.#toldAtMs.set(what, nowMs)
    return true
  }
}
