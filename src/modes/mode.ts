import type { Clock } from '../base/clock.ts'
import type { Config } from '../config/config.ts'
import type { ModeRow } from '../config/modes/mode-row.ts'
import type { NftFamily, Table } from '../kernel/nft/state.ts'
import type { Transaction } from '../kernel/nft/transaction.ts'
import type { SysctlWrite, TuneOptions, TuneReport } from '../kernel/sysctl/sysctls.ts'
import type { Refusal } from '../model/fields.ts'
import type { FrontendTable } from '../model/frontend.ts'
import type { ResolveOptions } from '../model/node-context.ts'
import type { Promises } from '../model/promises.ts'
import type { ApiEndpoint } from '../model/reserved.ts'
import type { CostRates } from '../model/service.ts'
import type { Transport } from '../netlink/transport.ts'
import type { Dataplane, Plan } from '../reconcile/dataplane.ts'
import type { TrafficCount } from '../telemetry/connection-metrics.ts'
import type { ReadRows } from '../telemetry/metric-set.ts'
import type { ServiceNames } from './common/service-names.ts'
import type { ReadRules, ServiceRow } from './common/show.ts'
import type { TracedRules } from './common/traced-rules.ts'
import type { ReadChain } from './xt-common/read-chains.ts'

/** The limits of this process on its machine; a limit is undefined where it is unknown. */
export interface ProcessRoom {
  readonly descriptors: number | undefined
  /** The memory that it may use: the limit of its control groups, or the memory of the machine. */
  readonly memoryBytes: number | undefined
  /** The part of that memory for the JavaScript heap. */
  readonly heapBytes?: number
}

/** The size of a mode's state, in units of the mode: only states of one mode are comparable. */
export interface Extent {
  readonly frontends: number
  readonly endpoints: number
}

/** Opens a socket to one part of the kernel, or to a kernel in memory. Throws SystemError. */
export type OpenSocket = () => Transport

export interface KernelSockets {
  /** NETLINK_NETFILTER: nf_tables and ipsets. */
  readonly netfilter: OpenSocket
  /** NETLINK_GENERIC: IPVS. */
  readonly generic: OpenSocket
  /** NETLINK_ROUTE: devices and their addresses. */
  readonly route: OpenSocket
  /** A number below /proc/sys, at once; undefined where there is none. Without it, there is none at all. */
  readonly setting?: (path: string) => number | undefined
  /** Gives the limits of this process; without it, there are none. */
  readonly room?: () => ProcessRoom
}

/** Gives what `open` makes of sockets that it opens. When it throws, those that are open are closed. */
export function openAll<T>(
  { netfilter, generic, route }: KernelSockets,
  open: (sockets: KernelSockets) => T,
): T {
  const opened: Transport[] = []
  const noted = (openSocket: OpenSocket) => () => {
    const transport = openSocket()
    opened.push(transport)
    return transport
  }
  try {
    return open({ netfilter: noted(netfilter), generic: noted(generic), route: noted(route) })
  } catch (error) {
    for (const transport of opened) void transport.close()
    throw error
  }
}

export interface KernelAccess {
  readonly clock: Clock
  readonly sockets: KernelSockets
}

export interface ModeContext extends KernelAccess {
  readonly config: Config
  /** Receives events between commits. */
  readonly tell?: ((event: ModeEvent) => void) | undefined
}

/** An action or a finding of a mode between commits. */
export type ModeEvent =
  /** An unwanted endpoint is gone: after its last connection, or, when its time was up, with the remaining ones. */
  | {
      readonly kind: 'drained' | 'expired'
      readonly server: string
      readonly endpoint: string
      readonly connections: number
    }
  /** The kernel state drifted; it is repaired at once. */
  | { readonly kind: 'drift'; readonly difference: string }
  /** The kernel cannot be read or written; retried. */
  | { readonly kind: 'failed'; readonly error: Error }
  /** A message for operators: the mode writes the text, and values from outside are in the facts. */
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
  readonly demand?: () => void
  /** Begins what the mode does between commits, until close(). */
  readonly start: () => void
  /** The parts of a state that the mode skips or changes, because the kernel or the mode does not support them. */
  readonly unsupported: (state: State) => readonly Refusal[]
  /** The tables of our own that a state holds whole; absent in modes that write to tables of others. */
  readonly tables?: (state: State) => readonly Table[]
  readonly extent: (state: State) => Extent
  /** Gives the kernel's counts at each endpoint, as far as configured. Absent in modes without counts. */
  readonly traffic?: (state: State) => Promise<readonly TrafficCount[]>
  /** The metrics of this mode alone; `state` is undefined until something was rendered. */
  readonly metrics?: (state: State | undefined) => Promise<ReadRows>
  readonly close: () => Promise<void>
}

export type PlaneUse<R> = <State, P extends Plan<State>>(opened: OpenPlane<State, P>) => R

export type Retired =
  | 'nothing'
  | 'removed'
  /** Objects stay, because they may be another program's: why, and how to remove them. */
  | { readonly kept: string }

/** The objects that `free` removed, for the log. */
export interface Freed {
  readonly facts: Readonly<Record<string, readonly string[]>>
  readonly text: string
}

/** The options by which a mode changes how Services are resolved. */
type ModeResolving = Pick<
  ResolveOptions,
  'listNodePortAddresses' | 'bindsExternalIps' | 'loopbackNodePorts' | 'forwardsLocalhost'
>

/** The filter of the lists that `kprobe dump` prints. */
export interface DumpFilter {
  readonly families: readonly NftFamily[]
  /** Empty for all. */
  readonly service: string
  readonly names: ServiceNames
  /** The name of the proxy; undefined for the unnamed one. */
  readonly proxy?: string | undefined
  /** All chains of the tables of iptables, if they are read already. */
  readonly chains?: readonly ReadChain[]
}

export interface ModeDump {
  /** The word on the command line. */
  readonly what: string
  /** The format that the other tool saves them in. */
  readonly saveFormat: string
  /** The objects carry the names of their Services. Otherwise only the daemon knows the names. */
  readonly isNamed?: true
  /** Saves whole tables instead of the objects of the filter, a text for each family. `note` is for several families. */
  readonly saveTables?: {
    readonly note: string
    print(kernel: KernelAccess, families: readonly NftFamily[]): Promise<readonly string[]>
  }
  read(kernel: KernelAccess, filter: DumpFilter): Promise<DumpedObjects>
}

interface DumpedObjects {
  readonly heading: readonly string[]
  readonly rows: readonly (readonly string[])[]
  /** The value for json and yaml. */
  readonly value: unknown
  readonly save: Iterable<string>
  readonly isEmpty: boolean
  readonly hasUnnamed: boolean
}

/** Our objects in the kernel, read once for all modes. */
export interface KernelRead extends KernelAccess {
  readonly families: readonly NftFamily[]
  readonly proxy: string | undefined
  /** Our own tables of all modes. */
  readonly tables: readonly Table[]
  /** All chains of the tables of iptables. */
  readonly chains: readonly ReadChain[]
  /** Names that a daemon gives to objects without one; undefined without a daemon. Throws where `isNeeded` and there is none. */
  readonly names: (isNeeded: boolean) => ServiceNames | undefined
}

export interface HeldMode {
  readonly mode: string
  readonly rows: readonly ServiceRow[]
  readonly rules: ReadRules
  /** Gives the rules for a client that session affinity does not remember; absent where `rules` are the same. */
  readonly rulesForNewClients?: () => ReadRules
  /** Shared rules that are missing. */
  readonly damage: readonly string[]
  readonly tables: readonly Table[]
  /** The parts of the tables that serve this Service alone. */
  readonly tablesOf: (service: string) => readonly Table[]
  /** Names for objects of the kernel that have none. */
  readonly names?: ServiceNames
}

export interface NftFeature {
  readonly kind:
    | 'nat'
    | 'fib'
    | 'numgen'
    | 'jhash'
    | 'dnat'
    | 'reject'
    | 'masquerade'
    | 'status'
    | 'concatenations'
    | 'verdicts'
    | 'dynamic'
    | 'log'
  readonly name: string
  /** The consequence of its absence, and where the feature comes from. */
  readonly meaning: string
  readonly transaction: Transaction
}

/** The parts of the machine that doctor reads. */
export interface Look extends KernelAccess {
  readonly read: ReadText
}

export interface Cleaned {
  /** The removed objects, one item a line. */
  readonly removed: readonly string[]
  /** Objects with our names that belong to another program. */
  readonly foreign: readonly string[]
}

export interface CleanupContext extends KernelAccess {
  readonly proxy: string | undefined
}

/** The other objects that are in the kernel when cleanup ends. */
export interface CleanupRest {
  /** A kube-proxy that runs may have taken over the chains, and needs the settings of its iptables mode. */
  readonly kubeProxyRuns: boolean
  /** Chains with kube-proxy's names, in tables of iptables-nft. */
  readonly hasChains: boolean
  /** Chains with kube-proxy's names in legacy iptables, or tables there that cannot be read. */
  readonly hasLegacyChains: boolean
}

/**
 * The interface of a mode, beside its row, to the rest of the program. src/modes/<mode>/mode.ts implements it, and
 * modes/registry.ts lists it.
 */
export interface Mode extends ModeRow {
  /** The part of the kernel that the mode needs, for people. */
  readonly kernelPart: string
  /** Opens the mode's plane. Throws when the kernel cannot be spoken to. Callers name R: TypeScript does not infer it. */
  open<R>(context: ModeContext, use: PlaneUse<R>): R
  /**
   * Removes what the mode left in the kernel while another mode serves, without a connection lost: docs/decisions/0015.
   * `isKnown`: this process programmed the kernel in this mode. When aborted before the removal has
   * begun, it removes nothing, and names what it found and may serve; later, it ends early. Throws when the kernel cannot
   * be spoken to.
   */
  retire(context: ModeContext, signal: AbortSignal, isKnown: boolean): Promise<Retired>
  /**
   * Removes what the mode, whether or not it serves now, holds at endpoints that this process must reach and
   * that no rule of nf_tables leads to; undefined when there was nothing. The promise rejects when the kernel
   * rejects a change.
   */
  free?(context: ModeContext, endpoints: readonly ApiEndpoint[]): Promise<Freed | undefined>
  /** Gives what the mode would put into an empty kernel, for tracers. Pure. */
  traced(config: Config, table: FrontendTable): TracedRules
  /** Sets the sysctls that the mode cannot do without. Does not reject. */
  tune?(config: Config, options: TuneOptions): Promise<TuneReport>
  /** Records in the kernel, for cleanup, that the mode runs here and its changes. Throws when the kernel rejects one. */
  record?(config: Config, written: readonly SysctlWrite[], kernel: KernelAccess): Promise<void>
  /** Gives what the kernel holds of the mode; undefined for nothing. */
  held(kernel: KernelRead): Promise<HeldMode | undefined>
  readonly dumps?: readonly ModeDump[]
  /** Checks what the mode needs of the kernel besides nf_tables, one finding for each requirement. Changes nothing. */
  examine?(config: Config, look: Look): Promise<readonly Finding[]>
  /** Features of nf_tables that this mode knows how to probe. */
  features?(config: Pick<Config, 'logRejects'>): readonly NftFeature[]
  needsFeature(kind: NftFeature['kind']): boolean
  /** Removes at once the objects that are provably ours. Throws when the kernel rejects a change. */
  cleanup(context: CleanupContext): Promise<Cleaned>
  /** Objects of the unnamed proxy may belong to another program: cleanup keeps them unless their removal is requested. */
  readonly cleanupOnRequest?: true
  /** Removes what kube-proxy's mode of this name left outside of nf_tables. */
  cleanupKubeProxy?(context: CleanupContext): Promise<readonly string[]>
  /** Tests whether objects outside of nf_tables that have kube-proxy's names are ours. */
  ownsElsewhere?(kernel: KernelAccess): Promise<boolean>
  /** Tests whether `record` names this mode and no other program has written its objects since. */
  isRecorded?(kernel: KernelAccess): Promise<boolean>
  /** Undoes what the record names and removes it, once nothing needs it. Gives a line for each thing done or left. */
  settleRecord?(kernel: KernelAccess, rest: CleanupRest): Promise<readonly string[]>
  /** Names the setting because of which node ports are not served at localhost. Absent in modes that never serve them there. */
  readonly whyNotAtLocalhost?: (config: Pick<Config, 'featureGates' | 'iptables'>) => string | undefined
  resolving?(config: Config): ModeResolving
  readonly costs: CostRates
  /** Addresses of this machine are among what the plane is rendered from. */
  readonly needsAddresses?: true
  /** The network device that addresses of Services are bound to. */
  readonly device?: string
  /** Compares the cost of this mode with so many Services with that of nftables mode; undefined where it is about the same. */
  readonly advice?: (config: Pick<Config, 'iptables'>, services: number) => string | undefined
  /** The mode's own metrics count commits that the kernel rejects. */
  readonly countsFailures?: true
  /** The rules of 10,000 Services leave 150 MiB of garbage, of which V8's late collections free a half. */
  readonly leavesGarbage?: true
  /** A lock beside that of the name, for names whose objects would have names in common. One mode has such a lock. */
  readonly lock?: {
    of(proxy: string): string
    /** The objects that a second kprobe has in common with the first. */
    readonly taken: string
  }
  /**
   * Describes for src/proof rules that are in tables of other programs, or mean something else than nftables mode's.
   * Absent where there are none, and where no tracer follows packets through the rules.
   */
  proving?(config: Config): Proving
  /** Says why no other plane that gives the same text can run beside this one. */
  exclusive?(config: Config): string | undefined
}

/** The facts that a proof of a mode's rules relies on. */
export interface Proving {
  readonly promises: Promises
  /** Tests whether a chain of a table that all programs share is ours. Absent where all rules are in our own tables. */
  readonly owns?: (table: string, chain: string) => boolean
  /** IPVS and ipsets decide about packets, too. */
  readonly usesIpvs?: true
  /** The assumptions of the proof, for people. */
  readonly assumes?: readonly string[]
}

export interface Finding {
  readonly kind: 'ok' | 'missing' | 'stopped' | 'damaged' | 'warning' | 'note'
  readonly subject: string
  readonly text: string
  /** Set if only one IP family is concerned. */
  readonly family?: NftFamily | undefined
}

/** Gives the text of a file of /proc or /sys; undefined when it does not exist or cannot be read. */
export type ReadText = (path: string) => Promise<string | undefined>
