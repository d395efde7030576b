import type { Clock } from '../../base/clock.ts'
import { errorOf } from '../../base/failure-text.ts'
import { FAMILIES, formatIp, type Ip } from '../../base/ip.ts'
import { finish, finishInSlices, slicingOf } from '../../base/steps.ts'
import type { Config } from '../../config/config.ts'
import { createIpsetClient } from '../../kernel/ipset/client.ts'
import { createIpvsClient } from '../../kernel/ipvs/client.ts'
import { destinationKey, serverKey } from '../../kernel/ipvs/key.ts'
import { createAddressReader } from '../../kernel/link/addresses.ts'
import { createDummyClient } from '../../kernel/link/dummy.ts'
import { createNftClient } from '../../kernel/nft/client.ts'
import type { Touched } from '../../kernel/nft/monitor.ts'
import type { ApiEndpoint } from '../../model/api-server.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { detectorOf } from '../common/detector.ts'
import { NFT_FAMILIES } from '../common/family.ts'
import { generationWatch, watchWritersOf } from '../common/writers.ts'
import type {
  Extent,
  Freed,
  KernelSockets,
  ModeContext,
  ModeEvent,
  ModeTracer,
  OpenPlane,
  Retired,
} from '../mode.ts'
import { freeEndpoints } from './free-endpoints.ts'
import type { IpvsKernel } from './observe.ts'
import { DEFAULT_IPVS_OPTIONS, type IpvsOptions } from './options.ts'
import type { IpvsPlan } from './plan.ts'
import { createIpvsPlane } from './plane.ts'
import { renderIpvsState } from './render.ts'
import { retireIpvsPlane } from './retire.ts'
import { EMPTY_STATE, type IpvsState } from './state.ts'
import { applyTimeouts } from './timeouts.ts'
import { createIpvsTracer } from './trace.ts'
import { readTraffic } from './traffic.ts'
import type { UpkeepEvent } from './upkeep.ts'

/** The device to which addresses of Services are bound. These are no addresses of this machine. */
export const IPVS_DEVICE = DEFAULT_IPVS_OPTIONS.deviceName

/**
 * Opens IPVS mode. Throws when netlink of the kernel cannot be reached. `demand` checks whether the kernel
 * has IPVS.
 */
export function openIpvs({ config, clock, sockets, tell }: ModeContext): OpenPlane<IpvsState, IpvsPlan> {
  const { kernel, ownPortId, close } = openIpvsKernel(sockets, clock)
  const options = ipvsOptions(config)
  const addresses = createAddressReader({ openTransport: sockets.route, clock })
  const watching = { openTransport: sockets.netfilter, own: ownPortId }
  const isTable = ({ table, family }: Touched) =>
    table === options.tableName && (family === 'ip' || family === 'ip6')
  const plane = createIpvsPlane({
    ...kernel,
    clock,
    options,
    watchGeneration: generationWatch(sockets.netfilter),
    watchWriters: (report, touches) =>
      watchWritersOf({ ...watching, touchesUs: its => isTable(its) || touches(its) }, report),
    watchAddresses: changed => addresses.watch(changed),
    report: event => tell?.(modeEvent(event)),
  })
  const traffic = trafficReader(sockets, clock)
  return {
    plane,
    demand: () => demandIpvs(kernel),
    start() {
      setTimeouts(kernel, config, tell)
      plane.startUpkeep()
    },
    extent: extentOf,
    misfits: ({ refusals }) => [...refusals.values()].flat(),
    traffic: async state =>
      config.connectionMetricsMax === 0
        ? []
        : await readTraffic(traffic.client(), state, {
            options,
            finishSteps: steps => finishInSlices(steps, slicingOf(clock)),
          }),
    async close() {
      await plane.close()
      await Promise.all([close(), traffic.close(), addresses.close()])
    },
  }
}

function extentOf({ servers }: IpvsState): Extent {
  const endpoints = servers.values().reduce((sum, { destinations }) => sum + destinations.size, 0)
  return { frontends: servers.size, endpoints }
}

interface OpenKernel {
  readonly kernel: IpvsKernel
  /** The port id of the socket that commits to nf_tables. */
  readonly ownPortId: number
  readonly close: () => Promise<void>
}

/** Makes clients for four subsystems of the kernel, each with a socket of its own. Throws SystemError. */
export function openIpvsKernel({ netfilter, generic, route }: KernelSockets, clock: Clock): OpenKernel {
  const transport = netfilter()
  const ipsets = createIpsetClient({ transport: netfilter(), clock })
  const kernel: IpvsKernel = {
    nft: createNftClient({ transport, clock, ipsets }),
    ipset: ipsets,
    ipvs: createIpvsClient({ transport: generic(), clock }),
    dummy: createDummyClient({ transport: route(), clock }),
  }
  const { nft, ipset, ipvs, dummy } = kernel
  return {
    kernel,
    ownPortId: transport.portId,
    close: async () => void (await Promise.all([nft.close(), ipset.close(), ipvs.close(), dummy.close()])),
  }
}

const DOCTOR = '`kprobe doctor --proxy-mode=ipvs` says what else is missing'

function demandIpvs({ ipvs, ipset }: IpvsKernel): void {
  try {
    ipvs.info()
  } catch (thrown) {
    if (!(thrown instanceof NetlinkError) || thrown.code !== 'ENOENT') throw thrown
    throw new Error(`this kernel has no IPVS: the module ip_vs is not loaded or not installed. ${DOCTOR}`)
  }
  if (ipset.revision('hash:ip,port', 'IPv4') !== undefined) return
  throw new Error(`this kernel has no ipsets: the module ip_set is not loaded or not installed. ${DOCTOR}`)
}

/**
 * Sets the timeouts of IPVS. A failure is only reported: Services are served all the same, and an operator
 * can set the timeouts from outside.
 */
function setTimeouts({ ipvs }: IpvsKernel, config: Config, tell: ModeContext['tell']): void {
  const { tcpTimeoutS: tcpS, tcpFinTimeoutS: tcpFinS, udpTimeoutS: udpS } = config.ipvs
  if (tcpS === 0 && tcpFinS === 0 && udpS === 0) return
  try {
    applyTimeouts(ipvs, { tcpS, tcpFinS, udpS })
  } catch (thrown) {
    tell?.({ kind: 'failed', error: errorOf(thrown) })
  }
}

/**
 * Reads the traffic on a socket of its own, because a dump of all real servers is slow and would delay
 * commits.
 */
function trafficReader({ generic }: KernelSockets, clock: Clock) {
  let client: ReturnType<typeof createIpvsClient> | undefined
  return {
    client() {
      client ??= createIpvsClient({ transport: generic(), clock })
      return client
    },
    close: async () => await client?.close(),
  }
}

function modeEvent(event: UpkeepEvent): ModeEvent {
  switch (event.kind) {
    case 'drained':
    case 'expired': {
      const { kind, server, destination, connections } = event
      return { kind, server: serverKey(server), endpoint: destinationKey(destination), connections }
    }
    case 'drift':
    case 'failed':
      return event
  }
}

/**
 * Lets the connections of IPVS end, for as long as the configuration allows, and then removes everything.
 * Does nothing without our own table, which distinguishes this program's objects from those of kube-proxy's
 * IPVS mode.
 */
export async function retireIpvs(
  { config, clock, sockets }: ModeContext,
  signal: AbortSignal,
): Promise<Retired> {
  const options = ipvsOptions(config)
  if (!(await hasIpvsTable({ clock, sockets }))) return 'nothing'
  const { kernel, close } = openIpvsKernel(sockets, clock)
  const plane = createIpvsPlane({ ...kernel, clock, options })
  try {
    await retireIpvsPlane({ kernel, plane, clock, options, signal })
  } finally {
    await plane.close()
    await close()
  }
  return 'removed'
}

const FREED = `cannot connect to the API server, at whose address IPVS mode has a Service; removed the address from ${IPVS_DEVICE} and the virtual servers there; the first sync restores what belongs there`

/** Removes the objects of IPVS mode at these endpoints: see freeEndpoints. */
export async function freeFromIpvs(
  { config, clock, sockets }: ModeContext,
  endpoints: readonly ApiEndpoint[],
): Promise<Freed | undefined> {
  const { kernel, close } = openIpvsKernel(sockets, clock)
  try {
    const { addresses, servers } = await freeEndpoints(kernel, endpoints, ipvsOptions(config))
    if (addresses.length + servers.length === 0) return undefined
    return {
      facts: { addresses: addresses.map(formatIp), virtualServers: servers.map(serverKey) },
      text: FREED,
    }
  } finally {
    await close()
  }
}

/**
 * Whether our own table of this mode exists, which no other program makes: the mode runs, or ran and has not
 * retired.
 */
export async function hasIpvsTable({ clock, sockets }: Omit<ModeContext, 'config'>): Promise<boolean> {
  const { tableName: name } = DEFAULT_IPVS_OPTIONS
  const nft = createNftClient({ transport: sockets.netfilter(), clock })
  try {
    const { ruleset } = await nft.list(NFT_FAMILIES.map(family => ({ family, name })))
    return ruleset.tables.length > 0
  } finally {
    await nft.close()
  }
}

export function ipvsTracer(config: Config, table: FrontendTable): ModeTracer {
  const options = { ...ipvsOptions(config), missingSchedulers: NONE_MISSING }
  const state = finish(renderIpvsState(table, { base: EMPTY_STATE, without: new Set() }, options))
  // For a destination bound to a device of this machine, the kernel uses the destination itself as the
  // source.
  const ownSource = (destination: Ip) => (state.addresses.has(destination) ? destination : undefined)
  return { ...createIpvsTracer(state), ownSource }
}

const NONE_MISSING: ReadonlySet<string> = new Set()

function ipvsOptions(config: Config): IpvsOptions {
  const { detectLocal, masqueradeAll, masqueradeBit, ipvs } = config
  const [IPv4, IPv6] = FAMILIES.map(family => detectorOf(detectLocal, family))
  return {
    ...DEFAULT_IPVS_OPTIONS,
    rules: ipvs.rules,
    scheduler: ipvs.scheduler,
    excludeCidrs: ipvs.excludeCidrs,
    masqueradeAll,
    masqueradeBit,
    detector: { IPv4, IPv6 },
    drainMs: ipvs.drainTimeoutMs,
    digestMs: ipvs.digestPeriodMs,
  }
}
