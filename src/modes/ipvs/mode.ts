import type { Clock } from '../../base/clock.ts'
import { errorOf } from '../../base/errors.ts'
import { formatIpPort } from '../../base/ip.ts'
import type { Config } from '../../config/config.ts'
import { IPVS } from '../../config/modes/ipvs.ts'
import { IpvsClient } from '../../kernel/ipvs/client.ts'
import { destinationKey, type IpvsTimeouts, serverKey } from '../../kernel/ipvs/state.ts'
import { createAddressReader } from '../../kernel/link/links.ts'
import { missingFails, tuneIpvs } from '../../kernel/sysctl/sysctls.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import type { TrafficCount } from '../../telemetry/connection-metrics.ts'
import { DUMMY_DEVICE } from '../common/kube-proxy.ts'
import type { Extent, KernelSockets, Mode, ModeContext, OpenPlane } from '../mode.ts'
import { SAME_CHAINS } from '../xt-common/layout.ts'
import { cleanIpvs, cleanKubeProxyIpvs, freeFromIpvs, retireIpvs } from './cleanup.ts'
import { ipvsFindings } from './doctor.ts'
import { IPVS_DUMPS } from './dumps.ts'
import { hasIpvsTable, type IpvsKernel, openIpvsKernel } from './observe.ts'
import type { IpvsPlan } from './plan.ts'
import { IpvsPlane } from './plane.ts'
import { ipvsOptions } from './settings.ts'
import { ipvsHeld } from './show.ts'
import type { IpvsState } from './state.ts'
import { ipvsProving, tracedIpvsConfig } from './trace.ts'

export const ipvs: Mode = {
  ...IPVS,
  kernelPart: 'IPVS',
  open: (context, use) => use(openIpvs(context)),
  retire: retireIpvs,
  traced: tracedIpvsConfig,
  held: ipvsHeld,
  dumps: IPVS_DUMPS,
  examine: ipvsFindings,
  free: freeFromIpvs,
  // IPVS itself balances connections and remembers clients.
  needsFeature: kind => kind !== 'numgen' && kind !== 'jhash' && kind !== 'dynamic' && kind !== 'log',
  cleanup: cleanIpvs,
  cleanupKubeProxy: cleanKubeProxyIpvs,
  ownsElsewhere: hasIpvsTable,
  tune: async ({ ipvs }, options) => missingFails(await tuneIpvs(ipvs, options)),
  // A virtual server has one address, and no address stands for all addresses.
  resolving: () => ({ listNodePortAddresses: true, bindsExternalIps: true }),
  // Estimated: docs/decisions/0022-shares.md.
  costs: { frontend: 1_536, sliceEndpoint: 0, endpoint: 800, perFrontend: true },
  // IPVS needs a virtual server for each address.
  needsAddresses: true,
  device: DUMMY_DEVICE,
  proving: ipvsProving,
  exclusive: ({ ipvs }) => (ipvs.rules === 'iptables' ? SAME_CHAINS : undefined),
}

/** Opens IPVS mode. Throws when netlink cannot be reached; `demand` checks whether the kernel has IPVS. */
function openIpvs({ config, clock, sockets, tell }: ModeContext): OpenPlane<IpvsState, IpvsPlan> {
  const { kernel, ownPortId, close } = openIpvsKernel(sockets, clock)
  const options = ipvsOptions(config)
  const addresses = createAddressReader({ openTransport: sockets.route, clock })
  const plane = new IpvsPlane({
    ...kernel,
    clock,
    options,
    writers: { openTransport: sockets.netfilter, own: ownPortId },
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
    traffic: async state =>
      config.connectionMetricsMax === 0 ? [] : await readTraffic(traffic.client(), state),
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

const DOCTOR = '`kprobe doctor --proxy-mode=ipvs` lists the other requirements'

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

/** Sets the timeouts of IPVS, and only reports a failure: Services are served anyway. */
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
  let client: IpvsClient | undefined
  return {
    client() {
      client ??= new IpvsClient({ transport: generic(), clock })
      return client
    },
    close: async () => await client?.close(),
  }
}

/** Sets the wanted timeouts of IPVS that differ from the present ones; 0 keeps a timeout. Throws NetlinkError. */
export function applyTimeouts(
  client: Pick<IpvsClient, 'timeouts' | 'setTimeouts'>,
  wanted: IpvsTimeouts,
): void {
  const present = client.timeouts()
  const change = (name: keyof IpvsTimeouts): number => (wanted[name] === present[name] ? 0 : wanted[name])
  const changes = { tcpS: change('tcpS'), tcpFinS: change('tcpFinS'), udpS: change('udpS') }
  if (Object.values(changes).some(seconds => seconds > 0)) client.setTimeouts(changes)
}

/** Reads the statistics of all real servers of the rendered `state` that still exist. */
export async function readTraffic(
  client: Pick<IpvsClient, 'destinations'>,
  state: IpvsState,
): Promise<readonly TrafficCount[]> {
  const servers = [...state.servers.values()].filter(({ port }) => port !== '')
  const lists = await client.destinations(servers.map(({ server }) => server))
  return servers.flatMap(({ server, port }, at) =>
    (lists[at] ?? []).map(({ destination, stats }): TrafficCount => {
      const { connections, ...volume } = stats
      return {
        element: `${serverKey(server)} ${destinationKey(destination)}`,
        port,
        endpoint: formatIpPort(destination.ip, destination.port),
        connections,
        volume,
      }
    }),
  )
}
