import type { BuildInfo } from '../base/build-info.ts'
import type { Clock } from '../base/clock.ts'
import type { TakeLock } from '../base/instance-lock.ts'
import type { Log } from '../base/log.ts'
import type { Config } from '../config/config.ts'
import type { FieldChange } from '../config/config-changes.ts'
import type { FrontendTable } from '../model/frontend.ts'
import type { Snapshot } from '../model/snapshot.ts'
import type { KernelSockets } from '../modes/mode.ts'
import type { Transport } from '../netlink/transport.ts'
import type { Plan } from '../reconcile/dataplane.ts'
import type { PassReason, ReconcilerEvent } from '../reconcile/events.ts'
import type { ApiClient } from '../source/kube/api-client.ts'
import type { DialWatch } from '../source/kube/client/http-client.ts'
import type { Flags } from '../telemetry/debug-pages.ts'

/** What the daemon needs from whoever starts it, and tells them. */
export interface DaemonIo {
  readonly log: Log
  readonly clock: Clock
  /** Milliseconds since 1970, for what people read. */
  readonly wallMs: () => number
  /** Uniform in [0, 1). */
  readonly random: () => number
  /** Aborted when the process shall end, with the name of the signal as its reason. */
  readonly signal: AbortSignal
  readonly processId: number
  readonly build: BuildInfo
  readonly origins: Origins
  /** Opens a socket to nf_tables: openNetfilter, or one to a kernel in memory. */
  readonly openTransport: () => Transport
  /** The same for the addresses of interfaces. */
  readonly openRoute?: () => Transport
  /** The same for the sockets of other processes; without it, nothing is known of these. */
  readonly openSockDiag?: () => Transport
  /** The same for generic netlink. */
  readonly openGeneric?: () => Transport
  /** The same for connection tracking; without it, no flows are removed. */
  readonly openConntrack?: () => Transport
  /** A number below /proc/sys, at once; undefined where there is none. */
  readonly readSetting?: ((path: string) => number | undefined) | undefined
  readonly room?: KernelSockets['room'] | undefined
  /** Connects with the API server that the configuration names, for --source=kube. */
  readonly openClient?: (config: Config, dials?: DialWatch) => Promise<ApiClient>
  readonly takeLock: TakeLock
  /** Listen at the configured addresses. */
  readonly listens: boolean
  /** The configuration as kube-proxy's API type, for /configz. */
  readonly configz: () => unknown
  /** For /flagz. */
  readonly flags?: Flags
  /** Follows changes of the configuration, until the result is called. */
  readonly follow?: (handlers: ConfigHandlers) => () => Promise<void>
  /** Logs the state whenever an operator asks for it, until the result is called. */
  readonly asked?: (logState: () => void) => () => void
  /** Settings of the kernel: those that the mode needs and, but for --once, of connection tracking. */
  readonly tune?: (config: Config) => Promise<void>
  readonly setOomScoreAdj?: (value: number) => Promise<void>
  readonly setLogging?: (config: Config) => void
  /** The kernel differed from what was left there, and holds it again. */
  readonly healed?: () => void
  /** The kernel holds what the sources ask for. */
  readonly synced: (sync: Sync) => void
  /** A plan that --backend=dry-run does not commit. */
  readonly planned: (plan: Plan<unknown>) => void
}

/** What set two values that a cluster gets wrong: a flag, a field of the file with its place, or a default. */
export interface Origins {
  readonly mode: string
  readonly nodeName: string
}

interface ConfigHandlers {
  /** Does not reject. */
  readonly changed: (config: Config, fields: readonly FieldChange[]) => Promise<void>
  /** There is another configuration, which cannot be used; the reasons were logged. */
  readonly refused: () => void
}

export interface Sync {
  readonly reason: PassReason
  readonly snapshot: Snapshot
  readonly table: FrontendTable
  /** Of the sync before; undefined at the first. */
  readonly previous: FrontendTable | undefined
  /** Commits since the sync before, together. */
  readonly written: Written
}

export interface Written {
  readonly commits: number
  readonly changes: number
  readonly bytes: number
  readonly durationMs: number
}

export const NOTHING_WRITTEN: Written = { commits: 0, changes: 0, bytes: 0, durationMs: 0 }

export function addWritten(
  a: Written,
  { plan, receipt }: Extract<ReconcilerEvent, { readonly kind: 'committed' }>,
): Written {
  return {
    commits: a.commits + 1,
    changes: a.changes + plan.changes,
    bytes: a.bytes + receipt.bytes,
    durationMs: a.durationMs + receipt.durationMs,
  }
}
