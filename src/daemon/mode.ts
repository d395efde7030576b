import type { Clock } from '../base/clock.ts'
import type { Ip } from '../base/ip.ts'
import type { Config } from '../config/config.ts'
import type { Tracer } from '../kernel/nft/trace.ts'
import type { Refusal } from '../model/refusal.ts'
import type { ProcessRoom } from '../modes/userspace/relay/limits.ts'
import type { Transport } from '../netlink/transport.ts'
import type { Dataplane, Plan } from '../reconcile/dataplane.ts'
import type { TrafficCount } from '../telemetry/connection-totals.ts'
import type { IptablesNumbers } from '../telemetry/iptables-metrics.ts'
import type { RelayNumbers } from '../telemetry/relay-metrics.ts'
import type { Extent } from './extent.ts'

/** Opens a socket to one part of the kernel, or to a kernel in memory. Throws SystemError. */
export type OpenSocket = () => Transport

/** The parts of the kernel that modes speak with. */
export interface KernelSockets {
  /** NETLINK_NETFILTER: nf_tables and ipsets. */
  readonly netfilter: OpenSocket
  /** NETLINK_GENERIC: IPVS. */
  readonly generic: OpenSocket
  /** NETLINK_ROUTE: devices and their addresses. */
  readonly route: OpenSocket
  /** A number below /proc/sys, at once; undefined where there is none. Without it, there is none at all. */
  readonly setting?: (path: string) => number | undefined
  /** What this process may take of the machine; without it, as much as it likes. */
  readonly room?: () => ProcessRoom
}

export interface ModeContext {
  readonly config: Config
  readonly clock: Clock
  readonly sockets: KernelSockets
  /** Hears what happens between commits. */
  readonly tell?: ((event: ModeEvent) => void) | undefined
}

/** What a mode does, or finds, between commits. */
export type ModeEvent =
  /** An endpoint that was not wanted any more is gone, after its last connection, or with those when its time was up. */
  | {
      readonly kind: 'drained' | 'expired'
      readonly server: string
      readonly endpoint: string
      readonly connections: number
    }
  /** The kernel is not what was left there; it is brought back at once. */
  | { readonly kind: 'drift'; readonly difference: string }
  /** It cannot be read, or not be written to; tried again. */
  | { readonly kind: 'failed'; readonly error: Error }
  /** Something that an operator may want to know: the text is the mode's own, what comes from outside is in the facts. */
  | {
      readonly kind: 'notice'
      readonly level: 'info' | 'warn' | 'debug'
      readonly text: string
      readonly facts: Readonly<Record<string, string | number>>
    }

/** One mode at work on a kernel: its plane, and what else only the mode knows. */
export interface OpenPlane<State, P extends Plan<State>> {
  readonly plane: Dataplane<State, P>
  /** Throws, in words for an operator, where the kernel lacks what the mode cannot do without. */
  readonly demand: () => void
  /** Begins what the mode does between commits, until close(). */
  readonly start: () => void
  /** What a state leaves out, or does otherwise, because the kernel or the mode has no place for it. */
  readonly misfits: (state: State) => readonly Refusal[]
  /** How much a state serves. */
  readonly extent: (state: State) => Extent
  /** What the kernel has counted at each endpoint, as far as the configuration asks for it. */
  readonly traffic: (state: State) => Promise<readonly TrafficCount[]>
  /** What kube-proxy measures in its iptables mode; absent in others. */
  readonly numbers?: (state: State) => Promise<IptablesNumbers>
  /** What goes through this process; absent in modes whose packets stay in the kernel. */
  readonly relayed?: () => RelayNumbers
  readonly close: () => Promise<void>
}

/** Follows packets through what a mode would put into an empty kernel. */
export interface ModeTracer extends Tracer {
  /** Where the node's own packets to an address come from, if the mode makes that address one of the node. */
  readonly ownSource: (destination: Ip) => Ip | undefined
}

/** What is done with an open plane, whichever mode it is of. */
export type PlaneUse<R> = <State, P extends Plan<State>>(opened: OpenPlane<State, P>) => R
