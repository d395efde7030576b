import { formatCidr, formatIp } from '../base/ip.ts'
import { type Config, GATE_LOCALHOST, type NodePortSelection } from './config.ts'
import { rowOf } from './modes.ts'

export type FlagTexts = Readonly<Record<string, string>>

/**
 * Gives the flags with which another command computes the kernel state of a daemon with this configuration, whether
 * that came from flags or from a file. An empty text stands for an unset flag.
 */
export function modelFlags(config: Config): FlagTexts {
  const { nodeName, serviceProxyName, bindAddress, nodePortAddresses, proxyMode } = config
  return {
    'hostname-override': nodeName,
    'service-proxy-name': serviceProxyName ?? '',
    'bind-address': bindAddress === undefined ? '0.0.0.0' : formatIp(bindAddress),
    'feature-gates': gatesText(config),
    'proxy-mode': proxyMode,
    ...detectorFlags(config),
    'masquerade-all': `${config.masqueradeAll}`,
    'masquerade-bit': `${config.masqueradeBit}`,
    'nodeport-addresses': nodePortText(nodePortAddresses),
    'allowed-external-cidrs': config.allowedExternalCidrs.map(formatCidr).join(),
    'allowed-load-balancer-cidrs': config.allowedLoadBalancerCidrs.map(formatCidr).join(),
    'connection-metrics-max': `${config.connectionMetricsMax}`,
    ...rowOf(proxyMode).settings.flagTexts?.(config),
  }
}

function gatesText({ allowServiceExternalIps, featureGates }: Config): string {
  const localhost = featureGates[GATE_LOCALHOST]
  return [
    `AllowServiceExternalIPs=${allowServiceExternalIps}`,
    ...(localhost === undefined ? [] : [`${GATE_LOCALHOST}=${localhost}`]),
  ].join()
}

function nodePortText({ primary, cidrs }: NodePortSelection): string {
  return [...(primary ? ['primary'] : []), ...cidrs.map(formatCidr)].join()
}

function detectorFlags({ detectLocal }: Config): FlagTexts {
  const { kind } = detectLocal
  return {
    'detect-local-mode': kind,
    'cluster-cidr': kind === 'ClusterCIDR' ? detectLocal.cidrs.map(formatCidr).join() : '',
    'pod-bridge-interface': kind === 'BridgeInterface' ? detectLocal.name : '',
    'pod-interface-name-prefix': kind === 'InterfaceNamePrefix' ? detectLocal.prefix : '',
  }
}
