import type { Clock } from '../../../base/clock.ts'
import type { Backend } from '../../../model/frontend.ts'
import type { Balancer, ListName } from './balancer.ts'
import type { RelayLimits } from './limits.ts'
import type { OwnSockets } from './own-sockets.ts'
import type { Exhaustion, Holder, Usage } from './usage.ts'

/** A failure of a relay that an operator may want to know. */
export type RelayEvent =
  | (Exhaustion & { readonly kind: 'exhausted' })
  /** An endpoint did not accept a connection; reported once a minute. */
  | { readonly kind: 'unreachable'; readonly port: string; readonly endpoint: string; readonly error: Error }
  /** No descriptor, port or memory is left for a connection to an endpoint; reported once a minute. */
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
  /** The port that the kernel chose. */
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
