import { type Clock, finishInSlices, slicingOf } from '../../base/clock.ts'
import { errorOf } from '../../base/errors.ts'
import type { Config } from '../../config/config.ts'
import { createIpvsClient, type IpvsClient } from '../../kernel/ipvs/client.ts'
import type { IpvsTimeouts } from '../../kernel/ipvs/state.ts'
import { createAddressReader } from '../../kernel/link/links.ts'
import type { Touched } from '../../kernel/nft/monitor.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { generationWatch, watchWritersOf } from '../common/writers.ts'
import type { Extent, KernelSockets, ModeContext, OpenPlane } from '../mode.ts'
import { type IpvsKernel, openIpvsKernel } from './kernel.ts'
import { readTraffic } from './metrics.ts'
import type { IpvsPlan } from './plan.ts'
import { createIpvsPlane } from './plane.ts'
import { advancedTables, outsideChange } from './proving.ts'
import { ipvsOptions } from './settings.ts'
import type { IpvsState } from './state.ts'

/** Opens IPVS mode. Throws when netlink cannot be reached; `demand` checks whether the kernel has IPVS. */
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
    report: tell,
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
    unsupported: ({ refusals }) => [...refusals.values()].flat(),
    advance: advancedTables,
    outside: outsideChange,
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

const DOCTOR = '`kprobe doctor --proxy-mode=ipvs` lists what else is missing'

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

/** Sets the timeouts of IPVS, and only reports a failure: Services are served all the same. */
function setTimeouts({ ipvs }: IpvsKernel, config: Config, tell: ModeContext['tell']): void {
  const { tcpTimeoutS: tcpS, tcpFinTimeoutS: tcpFinS, udpTimeoutS: udpS } = config.ipvs
  if (tcpS === 0 && tcpFinS === 0 && udpS === 0) return
  try {
    applyTimeouts(ipvs, { tcpS, tcpFinS, udpS })
  } catch (thrown) {
    tell?.({ kind: 'failed', error: errorOf(thrown) })
  }
}

/** Reads traffic on a socket of its own, because a dump of all real servers is slow and would delay commits. */
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

/** Gives the timeouts to set, 0 to keep one; undefined when the kernel has the wanted ones. */
export function timeoutsToSet(present: IpvsTimeouts, wanted: IpvsTimeouts): IpvsTimeouts | undefined {
  const change = (now: number, asked: number): number => (asked === now ? 0 : asked)
  const tcpS = change(present.tcpS, wanted.tcpS)
  const tcpFinS = change(present.tcpFinS, wanted.tcpFinS)
  const udpS = change(present.udpS, wanted.udpS)
  return tcpS === 0 && tcpFinS === 0 && udpS === 0 ? undefined : { tcpS, tcpFinS, udpS }
}

/** Sets the wanted timeouts of IPVS. Gives the previous ones, undefined without a change. Throws NetlinkError. */
export function applyTimeouts(
  client: Pick<IpvsClient, 'timeouts' | 'setTimeouts'>,
  wanted: IpvsTimeouts,
): IpvsTimeouts | undefined {
  const present = client.timeouts()
  const change = timeoutsToSet(present, wanted)
  if (change === undefined) return undefined
  client.setTimeouts(change)
  return present
}
