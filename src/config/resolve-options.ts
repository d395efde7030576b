import type { CostRates } from '../model/cost.ts'
import type { ResolveOptions, ServiceMemory } from '../model/here.ts'
import type { Config, ProxyMode } from './config.ts'
import { answersAtLoopback } from './loopback.ts'

/** Measured at 100 to 1,000 ports of one Service; IPVS and userspace mode estimated: docs/decisions/0022-shares.md. */
const RATES: Readonly<Record<ProxyMode, CostRates>> = {
  nftables: { frontend: 1_280, endpoint: 320, perFrontend: false },
  iptables: { frontend: 1_536, endpoint: 2_200, perFrontend: false },
  ipvs: { frontend: 1_536, endpoint: 800, perFrontend: true },
  userspace: { frontend: 4_096, endpoint: 320, perFrontend: false },
}

/** What of the configuration, and of the memory for Services, decides which Services mean what here. */
export function resolveOptions(
  config: Config,
  memoryBytes?: number,
  refused?: ServiceMemory['refused'],
): ResolveOptions {
  return {
    nodeName: config.nodeName,
    serviceProxyName: config.serviceProxyName,
    nodePortSelection: config.nodePortAddresses,
    allowedExternalCidrs: config.allowedExternalCidrs,
    allowedLoadBalancerCidrs: config.allowedLoadBalancerCidrs,
    allowServiceExternalIps: config.allowServiceExternalIps,
    bindAddress: config.bindAddress,
    // A virtual server has one address: there is none that stands for every address.
    listNodePortAddresses: config.proxyMode === 'ipvs',
    bindsExternalIps: config.proxyMode === 'ipvs',
    loopbackNodePorts: config.proxyMode === 'iptables' && answersAtLoopback(config),
    memory:
      memoryBytes === undefined ? undefined : { bytes: memoryBytes, rates: RATES[config.proxyMode], refused },
  }
}
