import type { Clock } from '../../../base/clock.ts'
import type { Backend } from '../../../model/frontend.ts'
import type { Balancer, ListName } from './balancer.ts'
import type { OwnSockets } from './own-sockets.ts'
import type { Exhaustion, Holder, Usage } from './usage.ts'

export interface RelayLimits {
  /** Listening sockets of all Services. */
  readonly listeners: number
  /** Concurrent TCP connections of all Services; each takes two sockets. */
  readonly connections: number
  /** Concurrent UDP clients of all Services; each takes a socket. */
  readonly sessions: number
  /** Clients that one Service port with affinity remembers. */
  readonly affinityClients: number
  /** The timeout of each attempt to reach an endpoint for one connection, milliseconds. */
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

/** A failure of a relay that an operator may want to know. */
export type RelayEvent =
  | (Exhaustion & { readonly kind: 'exhausted' })
  /** An endpoint did not accept a connection; reported once a minute. */
  | { readonly kind: 'unreachable'; readonly port: string; readonly endpoint: string; readonly error: Error }
  /**
   * This process has no descriptor, port or memory left for a connection to an endpoint; reported once a
   * minute.
   */
  | { readonly kind: 'starved'; readonly port: string; readonly error: Error }
  /** A connection of this process came back to it, and was refused; reported once a minute. */
  | { readonly kind: 'loop'; readonly port: string }
  /** An open listener failed. */
  | { readonly kind: 'broken'; readonly port: string; readonly error: Error }

/** The state that all relays of one process share. */
export interface RelayContext {
  readonly clock: Clock
  readonly limits: RelayLimits
  readonly connections: Usage
  readonly sessions: Usage
  readonly own: OwnSockets
  /** Whether our own rules catch packets to this place. A connection there would be relayed a second time. */
  readonly isCaptured: (backend: Backend, protocol: 'TCP' | 'UDP') => boolean
  readonly report: (event: RelayEvent) => void
}

/** The state that the two listeners of one Service port share. */
export interface RelayPort {
  /** PortFrontends.key */
  readonly key: string
  readonly balancer: Balancer
  readonly holder: Holder
  readonly complaints: Complaints
}

/** Errors of this process, which another endpoint would not avoid. */
export const OUR_OWN: ReadonlySet<string> = new Set([
  'EMFILE',
  'ENFILE',
  'ENOBUFS',
  'ENOMEM',
  'EADDRNOTAVAIL',
])

/** Reports that an endpoint could not be reached, and whether the endpoint or this process failed. */
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
  /** The port that the kernel chose. */
  readonly port: number
  /**
   * Opens or closes the door. While it is closed, the listener refuses every connection, because the rules
   * that restrict clients are not in place yet.
   */
  setDoor(open: boolean): void
  /** Handles removed endpoints: ends the connections that cannot continue. */
  changed(): void
  /** Stops accepting. Existing connections continue where the protocol has connections. */
  close(): void
  /** Whether there are connections. */
  isBusy(): boolean
  /** Ends everything at once. */
  destroy(): void
  /** Lets the process exit in spite of the listener and its connections. */
  unref(): void
}

const SILENCE_MS = 60_000

/**
 * Limits reports. A message that would recur with every connection is reported once a minute, whatever
 * happens in between.
 */
export class Complaints {
  readonly #clock: Clock
  /** The time of the last report of each message, oldest first. */
  readonly #toldAtMs = new Map<string, number>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** Whether a message is due; if so, it counts as reported. */
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
