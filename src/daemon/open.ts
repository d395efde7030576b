import { type Clock, slicingOf, systemClock } from '../base/clock.ts'
import type { Family } from '../base/ip.ts'
import type { Log } from '../base/log.ts'
import type { Config } from '../config/config.ts'
import { createAddressReader } from '../kernel/link/links.ts'
import { settingNow } from '../kernel/sysctl/sysctls.ts'
import type { FrontendTable } from '../model/frontend.ts'
import { type ParseOptions, parseObject } from '../model/parse.ts'
import { ValuePool } from '../model/snapshot.ts'
import type { KernelSockets, ModeContext, OpenPlane, PlaneUse } from '../modes/mode.ts'
import { findMode, MODE_DEVICE } from '../modes/registry.ts'
import { Connection } from '../netlink/connection.ts'
import { NETLINK_GENERIC, NETLINK_NETFILTER, NETLINK_ROUTE, NETLINK_SOCK_DIAG } from '../netlink/constants.ts'
import { openNetlink } from '../netlink/native.ts'
import type { Transport } from '../netlink/transport.ts'
import { type Difference, differenceOf, type Plan } from '../reconcile/dataplane.ts'
import { FileSource } from '../source/file/file-source.ts'
import type { ApiClient } from '../source/kube/api-client.ts'
import type { DialWatch } from '../source/kube/client/connections.ts'
import { type AddressHandlers, type LocalAddresses, watchLocalAddresses } from '../source/local-addresses.ts'
import type { Source } from '../source/source.ts'
import type { ConnectionMetricsOptions } from '../telemetry/connection-metrics.ts'
import type { ActiveMode } from './active-mode.ts'
import type { Intake } from './intake.ts'
import type { DaemonIo } from './io.ts'
import type {
  DaemonApi,
  DaemonApiOptions,
  DaemonProver,
  DaemonUnanswered,
  MakeApi,
  OptionalParts,
  ProverOptions,
  UnansweredOptions,
} from './optional-parts.ts'
import { type DescriptorBudget, forwarderRoom, partsMax, processRoom } from './process-room.ts'

/** Opens the data plane while `use` runs. Throws if the kernel lacks a feature that the mode needs. */
export async function withPlane<R>(context: ModeContext, use: PlaneUse<Promise<R>>): Promise<R> {
  return await findMode(context.config.proxyMode).open<Promise<R>>(context, opened => untilDone(opened, use))
}

async function untilDone<State, P extends Plan<State>, R>(
  opened: OpenPlane<State, P>,
  use: PlaneUse<Promise<R>>,
): Promise<R> {
  try {
    opened.demand?.()
    return await use(opened)
  } finally {
    await opened.close()
  }
}

/**
 * Computes what `run` would change in this machine's kernel, in the configured mode. Throws if the mode cannot run
 * here. Objects of `family` count as they are.
 */
export async function kernelDifference(
  config: Config,
  table: FrontendTable,
  family?: Family,
): Promise<Difference> {
  return await withPlane<Difference>({ config, ...HERE }, ({ plane }) =>
    differenceOf(plane, table, { ...slicingOf(systemClock), family }),
  )
}

/** Opens a socket to nf_tables. Throws if the addon is missing or the kernel denies the socket. */
export function openNetfilter(): Transport {
  return openNetlink({ protocol: NETLINK_NETFILTER })
}

/** Lends a connection to nf_tables and conntrack, which ends with `use`. */
export async function withNetfilter<T>(use: (connection: Connection) => Promise<T>): Promise<T> {
  const connection = new Connection({ transport: openNetfilter(), clock: systemClock })
  try {
    return await use(connection)
  } finally {
    await connection.close()
  }
}

export function openRoute(): Transport {
  return openNetlink({ protocol: NETLINK_ROUTE })
}

export function openSockDiag(): Transport {
  return openNetlink({ protocol: NETLINK_SOCK_DIAG })
}

function openGeneric(): Transport {
  return openNetlink({ protocol: NETLINK_GENERIC })
}

export const KERNEL: KernelSockets = {
  netfilter: openNetfilter,
  generic: openGeneric,
  route: openRoute,
  setting: path => settingNow(`/${path}`),
  room: processRoom,
}

export const HERE = { sockets: KERNEL, clock: systemClock } as const

/** Gives the sockets of a daemon; the relay may use its share of the descriptors. */
export function socketsOf(io: DaemonIo, descriptors: DescriptorBudget): KernelSockets {
  return {
    netfilter: io.openTransport,
    generic: io.openGeneric ?? openGeneric,
    route: io.openRoute ?? openRoute,
    ...(io.readSetting === undefined ? {} : { setting: io.readSetting }),
    room: () => forwarderRoom(io.room?.(), descriptors),
  }
}

/** Opens the configured files as a source. Of Nodes, it delivers only this one. `read` is called for each object. */
export function openFileSource(
  config: Pick<Config, 'source' | 'nodeName' | 'serviceProxyName'>,
  clock: Clock,
  { read, ...reading }: Pick<ParseOptions, 'details'> & { readonly read?: () => void } = {},
): Source {
  const { source, nodeName, serviceProxyName } = config
  if (source.kind !== 'file') throw new Error(`${source.kind} is not a file source`)
  const pool = new ValuePool()
  const parsing = { ...reading, headlessSlices: serviceProxyName !== undefined }
  return new FileSource({
    path: source.path,
    clock,
    partsMax: partsMax(processRoom()),
    parseObject: object => {
      read?.()
      const result = parseObject(object, pool, parsing)
      if (result === undefined || !('kind' in result) || result.kind !== 'Node') return result
      return result.key === nodeName ? result : { ...result, value: undefined }
    },
  })
}

/**
 * Watches the addresses of this machine; undefined if the configuration does not depend on them. Ranges in
 * --nodeport-addresses do, and some modes.
 */
export function watchLocalIps(
  config: Config,
  clock: Clock,
  { openTransport = openRoute, ...handlers }: AddressHandlers & { readonly openTransport?: () => Transport },
): LocalAddresses | undefined {
  const { nodePortAddresses, proxyMode } = config
  if (nodePortAddresses.cidrs.length === 0 && findMode(proxyMode).needsAddresses !== true) return undefined
  const reader = createAddressReader({ openTransport, clock, except: MODE_DEVICE })
  return watchLocalAddresses({ clock, reader, ...handlers })
}

interface IntakeIps {
  readonly intake: Intake
  /** The addresses cannot be read; the reason is in the log. */
  readonly failed: () => void
}

/** Follows this machine's addresses for the intake, if the configuration depends on them. */
export function followLocalIps(
  config: Config,
  { clock, log, openRoute: openTransport }: Pick<DaemonIo, 'clock' | 'log' | 'openRoute'>,
  { intake, failed }: IntakeIps,
): LocalAddresses | undefined {
  const watch = watchLocalIps(config, clock, {
    ...(openTransport === undefined ? {} : { openTransport }),
    changed: value => intake.takeIps(value),
    failed: err => {
      const isKnown = intake.snapshot.localIps.length > 0
      const rest = isKnown ? 'the last ones stay in use' : 'nothing is programmed until they are known'
      log.warn({ err }, `cannot read the addresses of this machine; ${rest}; retrying`)
      failed()
    },
    recovered: () => log.info('the addresses of this machine can be read again'),
  })
  if (watch === undefined) intake.ignoreIps()
  else intake.awaitIps()
  return watch
}

export async function openProver(
  { prove, once, backend, nodeName }: Config,
  { parts, ...options }: Omit<ProverOptions, 'nodeName'> & Pick<DaemonIo, 'parts'>,
): Promise<DaemonProver | undefined> {
  if (prove === 'off' || once || backend !== 'netlink') return undefined
  return await parts.prover({ ...options, nodeName })
}

/** Opens the reader of unanswered connections; undefined without a socket to conntrack. */
export async function openUnanswered(
  nodeName: string,
  {
    parts,
    clock,
    log,
    openConntrack: openTransport,
  }: Pick<DaemonIo, 'parts' | 'clock' | 'log' | 'openConntrack'>,
  from: Pick<UnansweredOptions, 'held' | 'tell'>,
): Promise<DaemonUnanswered | undefined> {
  if (openTransport === undefined) return undefined
  return await parts.unanswered({ clock, log, nodeName, openTransport, ...from })
}

export function apiOf(
  { api: config, nodeName }: Config,
  {
    clock,
    log,
    descriptors,
    makeApi,
  }: Pick<DaemonIo, 'clock' | 'log'> & {
    readonly descriptors: DescriptorBudget
    readonly makeApi: MakeApi | undefined
  },
  source: DaemonApiOptions['source'],
): DaemonApi | undefined {
  if (config === undefined) return undefined
  return makeApi?.({ config, nodeName, clock, log, connectionsMax: descriptors.api, source })
}

interface OpenClientOptions {
  readonly clock: Clock
  readonly env: Readonly<Record<string, string | undefined>>
  readonly warn: (text: string) => void
  readonly dials?: DialWatch | undefined
  readonly parts?: Pick<OptionalParts, 'relayClient'>
}

/** Connects to the configured API server, or to relays of it. The modules for it are loaded only here. */
export async function openClient(
  config: Pick<Config, 'client'> & Partial<Pick<Config, 'source' | 'nodeName' | 'serviceProxyName'>>,
  options: OpenClientOptions,
): Promise<ApiClient> {
  const { openApiClient } = await import('../source/kube/client/http-client.ts')
  const { kubeconfig, master, qps, burst } = config.client
  const { dials, parts, ...rest } = options
  const watched = dials === undefined ? rest : { ...rest, dials }
  const kube = await openApiClient({ ...watched, kubeconfig, master, qps, burst })
  const { source, nodeName = '', serviceProxyName } = config
  if (source?.kind !== 'kube' || source.relay === undefined) return kube
  if (parts === undefined) throw new Error('no client of relays in this build')
  const { clock, warn } = options
  return await parts.relayClient({
    ...source.relay,
    nodeName,
    proxyName: serviceProxyName ?? '',
    kube,
    clock,
    say: warn,
  })
}

/** Gives how new connections are counted for the metrics; undefined where they are not. */
export function connectionsOf(
  { connectionMetricsMax }: Config,
  { clock, log }: { readonly clock: Clock; readonly log: Log },
  activeMode: () => ActiveMode | undefined,
): ConnectionMetricsOptions | undefined {
  if (connectionMetricsMax === 0) return undefined
  return {
    seriesMax: connectionMetricsMax,
    read: async () => (await activeMode()?.traffic()) ?? [],
    nowMs: () => clock.nowMs(),
    failed: err => log.warn({ err }, 'cannot read connection counters'),
  }
}
