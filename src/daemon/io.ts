import type { BuildInfo } from '../base/build-info.ts'
import type { Clock } from '../base/clock.ts'
import type { Log } from '../base/log.ts'
import type { Config } from '../config/config.ts'
import type { FieldChange } from '../config/config-changes.ts'
import type { FrontendTable } from '../model/frontend.ts'
import type { ServiceKey } from '../model/service.ts'
import type { Snapshot } from '../model/snapshot.ts'
import type { KernelSockets } from '../modes/mode.ts'
import type { Transport } from '../netlink/transport.ts'
import type { Plan } from '../reconcile/dataplane.ts'
import type { PassReason, ReconcilerEvent } from '../reconcile/pass.ts'
import type { ApiClient } from '../source/kube/api-client.ts'
import type { DialWatch } from '../source/kube/client/connections.ts'
import type { Flags } from '../telemetry/metrics-server.ts'
import type { Engine } from './engine.ts'
import type { TakeLock } from './network-lock.ts'
import type { OptionalParts } from './optional-parts.ts'

export interface DaemonIo {
  readonly log: Log
  readonly clock: Clock
  /** Milliseconds since 1970, for output to people. */
  readonly wallMs: () => number
  readonly random: () => number
  /** Aborted when the process is to end, with the name of the signal as its reason. */
  readonly signal: AbortSignal
  readonly processId: number
  readonly build: BuildInfo
  readonly origins: Origins
  /** Opens a socket to nf_tables: openNetfilter, or one to a kernel in memory. */
  readonly openTransport: () => Transport
  readonly openRoute?: () => Transport
  readonly openSockDiag?: () => Transport
  readonly openGeneric?: () => Transport
  /** Opens a socket to conntrack; without it, no flows are removed. */
  readonly openConntrack?: () => Transport
  /** Reads a number below /proc/sys, synchronously; undefined if it does not exist. */
  readonly readSetting?: ((path: string) => number | undefined) | undefined
  readonly room?: KernelSockets['room'] | undefined
  readonly openClient?: (config: Config, dials?: DialWatch) => Promise<ApiClient>
  readonly takeLock: TakeLock
  /** Finds processes by name in this network namespace, as far as they are visible. */
  readonly processesNamed?: (name: string) => Promise<readonly number[]>
  /** Finds the name of the process that listens at a port, as far as it is visible. */
  readonly holderOf?: (port: number) => Promise<string | undefined>
  readonly listens: boolean
  /** Gives the configuration as kube-proxy's API type, for /configz. */
  readonly configz: () => unknown
  readonly flags?: Flags
  readonly parts: OptionalParts
  /** Follows changes of the configuration. The result ends this. */
  readonly followConfig?: (handlers: ConfigHandlers) => () => Promise<void>
  /** Logs the state whenever an operator requests it. The result ends this. */
  readonly asked?: (logState: () => void) => () => void
  /** Writes kernel settings: those of the mode and, without --once, those of conntrack. */
  readonly tune?: (config: Config) => Promise<void>
  /** The JavaScript engine, whose settings stay unchanged if this is absent. */
  readonly engine?: Engine
  readonly setOomScoreAdj?: (value: number) => Promise<void>
  readonly setLogging?: (config: Config) => void
  readonly repaired?: () => void
  readonly synced: (sync: Sync) => void
  readonly planned: (plan: Plan<unknown>) => void
}

/**
 * Origin of two values that are often wrong in a cluster: a flag, a field of the file with its position, or a default.
 */
export interface Origins {
  readonly mode: string
  readonly nodeName: string
}

interface ConfigHandlers {
  /** Applies a new configuration. Does not reject. */
  readonly changed: (config: Config, fields: readonly FieldChange[]) => Promise<void>
  /** A new configuration is invalid; the reasons are in the log. */
  readonly refused: () => void
}

export interface Sync {
  readonly reason: PassReason
  readonly snapshot: Snapshot
  readonly table: FrontendTable
  /** Services in the table that the kernel rejects; all others are programmed. */
  readonly quarantined: readonly ServiceKey[]
  readonly previous: FrontendTable | undefined
  /** Sum of the commits since the previous sync. */
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
