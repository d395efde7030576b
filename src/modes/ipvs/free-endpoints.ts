import { anyContains } from '../../base/cidr.ts'
import { formatIp, type Ip } from '../../base/ip.ts'
import { serverKey } from '../../kernel/ipvs/key.ts'
import type { VirtualServer } from '../../kernel/ipvs/state.ts'
import type { ApiEndpoint } from '../../model/api-server.ts'
import type { Freed, ModeContext } from '../mode.ts'
import { type IpvsKernel, withIpvsKernel } from './kernel.ts'
import { type ObserveOptions, observeKernel } from './observe.ts'
import { clusterIpsIn } from './ownership.ts'
import { IPVS_DEVICE, ipvsOptions } from './settings.ts'

/**
 * Removes the addresses of endpoints from the dummy device, and virtual servers at these endpoints, as far as
 * IPVS mode recorded them as its own. With these objects in place, packets of this node to the addresses do
 * not leave the node. A ClusterIP stays, because only IPVS leads to it. Sets and rules stay as the record for
 * the next pass. The promise rejects when the kernel rejects a change.
 */
export async function freeEndpoints(
  kernel: IpvsKernel,
  endpoints: readonly ApiEndpoint[],
  options: ObserveOptions,
): Promise<{ readonly addresses: readonly Ip[]; readonly servers: readonly VirtualServer[] }> {
  const { dummy, ipvs } = kernel
  // Without the device IPVS mode is not in use here. This check loads no kernel module.
  if ((await dummy.addresses(options.deviceName)) === undefined) return { addresses: [], servers: [] }
  const { state } = await observeKernel(kernel, options)
  const clusterIps = clusterIpsIn(state)
  const others = endpoints.filter(({ ip }) => !clusterIps.has(ip))
  const addresses = [...new Set(others.map(({ ip }) => ip))].filter(ip => state.addresses.has(ip))
  const servers = others.flatMap(({ ip, port }) => {
    const placed = state.servers.get(serverKey({ protocol: 'TCP', ip, port }))
    return placed === undefined || anyContains(options.excludeCidrs, ip) ? [] : [placed.server]
  })
  const unbound = await dummy.commit(options.deviceName, { add: [], remove: addresses })
  const deleted = await ipvs.commit(
    servers.map(server => ({ verb: 'delete-server', group: '', server }) as const),
  )
  for (const { failures, unknown } of [unbound, deleted]) {
    const error = failures[0]?.error ?? unknown
    if (error !== undefined) throw error
  }
  return { addresses, servers }
}

const FREED = `cannot connect to the API server: IPVS mode serves a Service at its address; removed the address from ${IPVS_DEVICE}, and its virtual servers; the first sync restores those that are wanted`

/** Removes the objects of IPVS mode at these endpoints: see freeEndpoints. */
export async function freeFromIpvs(
  context: ModeContext,
  endpoints: readonly ApiEndpoint[],
): Promise<Freed | undefined> {
  const options = ipvsOptions(context.config)
  const { addresses, servers } = await withIpvsKernel(context, kernel =>
    freeEndpoints(kernel, endpoints, options),
  )
  if (addresses.length + servers.length === 0) return undefined
  return {
    facts: { addresses: addresses.map(formatIp), virtualServers: servers.map(serverKey) },
    text: FREED,
  }
}
