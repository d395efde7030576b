import type { Config } from '../config/config.ts'
import type { ResolveOptions } from '../model/node-context.ts'
import { findMode } from './registry.ts'

/** Gives the options of resolve from the configuration and the memory for Services. */
export function resolveOptions(config: Config, memoryBytes?: number): ResolveOptions {
  const mode = findMode(config.proxyMode)
  return {
    nodeName: config.nodeName,
    serviceProxyName: config.serviceProxyName,
    nodePortSelection: config.nodePortAddresses,
    allowedExternalCidrs: config.allowedExternalCidrs,
    allowedLoadBalancerCidrs: config.allowedLoadBalancerCidrs,
    allowServiceExternalIps: config.allowServiceExternalIps,
    bindAddress: config.bindAddress,
    balancing: {
      ...(mode.settings.balances === true
        ? { policy: config.balance }
        : { policy: 'random', refusedBy: mode.title }),
      ...(mode.settings.failsOver === true ? {} : { failOverRefusedBy: mode.title }),
    },
    ...mode.resolving?.(config),
    memory: memoryBytes === undefined ? undefined : { bytes: memoryBytes, rates: mode.costs },
  }
}
