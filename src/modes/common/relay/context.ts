import type { Clock } from '../../../base/clock.ts'
import type { Backend } from '../../../model/frontend.ts'
import type { RelayEvent } from './limits.ts'
import { type Holder, type RelayLimits, Usage } from './limits.ts'
import type { Balancer, ListName } from './relay.ts'

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

type ContextOptions = Pick<RelayContext, 'clock' | 'limits' | 'isCaptured' | 'report'>

/** Makes the state of a process that relays nothing yet. */
export function relayContext(options: ContextOptions): RelayContext {
  const { limits, report } = options
  const usage = (resource: 'connections' | 'sessions') =>
    new Usage(resource, limits[resource], exhaustion => report({ kind: 'exhausted', ...exhaustion }))
  return {
    ...options,
    connections: usage('connections'),
    sessions: usage('sessions'),
    own: new OwnSockets(),
  }
}

/** The state that the two listeners of one Service port share. */
export interface RelayPort {
  /** PortFrontends.key */
  readonly key: string
  readonly balancer: Balancer
  readonly holder: Holder
  readonly reports: ReportLimit
}

/** Errors of this process, which another endpoint would not avoid. */
export const OWN_ERRORS: ReadonlySet<string> = new Set([
  'EMFILE',
  'ENFILE',
  'ENOBUFS',
  'ENOMEM',
  'EADDRNOTAVAIL',
])

/** Reports that an endpoint could not be reached, and whether the endpoint or this process failed. */
export function reportUnreached(
  { report }: Pick<RelayContext, 'report'>,
  { key: port, reports }: RelayPort,
  { endpoint, error }: { readonly endpoint: string; readonly error: NodeJS.ErrnoException },
): void {
  const isOurs = OWN_ERRORS.has(error.code ?? '')
  if (!reports.isDue(isOurs ? '' : endpoint)) return
  report(isOurs ? { kind: 'starved', port, error } : { kind: 'unreachable', port, endpoint, error })
}

/** Counts and reports a connection of this process that came back to it. */
export function reportLoop({ own, report }: RelayContext, { key: port, reports }: RelayPort): void {
  own.countLoop()
  if (reports.isDue('loop')) report({ kind: 'loop', port })
}

/** A socket that clients are redirected to. */
export interface Listener {
  readonly list: ListName
  /** The port that it listens on. */
  readonly port: number
  /** Opens or closes the listener. While closed, it refuses every connection: the rules are not in place yet. */
  setOpen(open: boolean): void
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

/** Reports once a minute what would recur with every connection. */
export class ReportLimit {
  readonly #clock: Clock
  /** The time of the last report of each message, oldest first. */
  readonly #reportedAtMs = new Map<string, number>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** Whether a message is due; if so, it counts as reported. */
  isDue(message: string): boolean {
    const nowMs = this.#clock.nowMs()
    for (const [each, reportedAtMs] of this.#reportedAtMs) {
      if (nowMs - reportedAtMs < SILENCE_MS) break
      this.#reportedAtMs.delete(each)
    }
    if (this.#reportedAtMs.has(message)) return false
    this.#reportedAtMs.set(message, nowMs)
    return true
  }
}

/** Closes a connection of ours, and calls back once it is closed. */
export type Abort = (closed: () => void) => void

/**
 * The addresses of this process's own sockets towards endpoints. A client with one of these addresses may be
 * this process, redirected back to itself; relaying such a connection would never end. For UDP it is, because
 * no two sockets share an address. For TCP it may be another process of this node, to which the kernel gave
 * the same port for another destination. Closing our own connection then shows whether the client's
 * connection ends with it.
 */
class OwnSockets {
  readonly #sockets = new Map<string, Set<Abort>>()
  #loops = 0

  /** The number of connections that came back. */
  get loops(): number {
    return this.#loops
  }

  get size(): number {
    return this.#sockets.size
  }

  /** Adds a socket, until the returned function is called. */
  add(protocol: 'TCP' | 'UDP', place: Place, abort: Abort): () => void {
    const key = keyOf(protocol, place)
    const sockets = this.#sockets.get(key) ?? new Set()
    this.#sockets.set(key, sockets.add(abort))
    return () => {
      sockets.delete(abort)
      if (sockets.size === 0 && this.#sockets.get(key) === sockets) this.#sockets.delete(key)
    }
  }

  /** Gives the sockets that a client with this address may belong to. */
  at(protocol: 'TCP' | 'UDP', place: Place): readonly Abort[] {
    return [...(this.#sockets.get(keyOf(protocol, place)) ?? [])]
  }

  /** Counts a connection that came back. */
  countLoop(): void {
    this.#loops++
  }
}

interface Place {
  readonly address: string
  readonly port: number
}

function keyOf(protocol: 'TCP' | 'UDP', { address, port }: Place): string {
  return `${protocol} ${address} ${port}`
}
