import type { ResolveOptions } from '../model/here.ts'
import type { Config } from './config.ts'
import { answersAtLoopback } from './loopback.ts'

/** What of the configuration decides which Services mean what here. */
export function resolveOptions(config: Config): ResolveOptions {
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
  }
}
