import { contains } from '../../base/ip.ts'
import type { Config } from '../../config/config.ts'
import type { Refusal } from '../../model/fields.ts'
import { familiesAtLocalhost, LOCALHOST } from '../../model/node-context.ts'
import type { Service, ServiceKey } from '../../model/service.ts'
import { findMode } from '../registry.ts'

/** The modes of kube-proxy on Linux. */
export const KUBE_PROXY_MODES = ['iptables', 'ipvs', 'nftables'] as const
export type KubeProxyMode = (typeof KUBE_PROXY_MODES)[number]

/** kube-proxy's mode where its configuration names none. */
export const KUBE_PROXY_DEFAULT_MODE: KubeProxyMode = 'iptables'

/** Something that is not the same after the change from kube-proxy to kprobe. */
export interface MigrationChange {
  /** `differs`: these Services may depend on it. `once`: it happens at the change itself. `note`: no Service depends on it. */
  readonly weight: 'differs' | 'once' | 'note'
  readonly subject: string
  readonly text: string
  readonly services: readonly ServiceKey[]
}

export interface MigrationFacts {
  readonly from: KubeProxyMode
  /** The configuration of kube-proxy, as kprobe reads it. */
  readonly config: Config
  /** The configuration names nodePortAddresses. */
  readonly isNodePortsWritten: boolean
  readonly services: readonly Service[]
  /** What kprobe refuses of them, and kube-proxy serves. */
  readonly refusals: readonly { readonly service: ServiceKey; readonly refusal: Refusal }[]
}

/** Lists what changes, each with the Services that it concerns. docs/differences.md and docs/differences-modes.md have all differences. Pure. */
export function migrationChanges(facts: MigrationFacts): readonly MigrationChange[] {
  return [
    ...refusedFields(facts),
    ...nodePorts(facts),
    ...localhost(facts),
    ...sourceRanges(facts),
    ...localPolicies(facts),
    ...affinity(facts),
    ...notes(facts),
  ].filter(({ weight, services }) => weight === 'note' || services.length > 0)
}

function keysOf(services: readonly Service[]): readonly ServiceKey[] {
  return services.map(({ key }) => key).sort()
}

function withNodePorts(services: readonly Service[]): readonly Service[] {
  return services.filter(({ ports }) => ports.some(({ nodePort }) => nodePort !== 0))
}

function refusedFields({ refusals }: MigrationFacts): readonly MigrationChange[] {
  return refusals.map(({ service, refusal: { object, field, value, reason } }) => ({
    weight: 'differs',
    subject: `${object}: ${field}`,
    text: `${value} is not served: ${reason}`,
    services: [service],
  }))
}

function nodePorts({
  from,
  config,
  isNodePortsWritten,
  services,
}: MigrationFacts): readonly MigrationChange[] {
  const isEverywhere = from !== 'nftables' && !isNodePortsWritten
  if (!isEverywhere || findMode(config.proxyMode).settings.everyAddress === true) return []
  const text =
    "answer at the Node's primary addresses, where kube-proxy's answer at every address of the node; to keep that, set nodePortAddresses: [0.0.0.0/0, '::/0']"
  return [{ weight: 'differs', subject: 'node ports', text, services: keysOf(withNodePorts(services)) }]
}

function localhost({
  from,
  config,
  isNodePortsWritten,
  services,
}: MigrationFacts): readonly MigrationChange[] {
  const { cidrs } = config.nodePortAddresses
  const answered = !isNodePortsWritten || cidrs.some(cidr => contains(cidr, LOCALHOST.IPv4))
  const isServed = config.proxyMode === from || familiesAtLocalhost(config.nodePortAddresses).includes('IPv4')
  if (from !== 'iptables' || !config.iptables.localhostNodePorts || !answered || isServed) return []
  const text =
    'do not answer at 127.0.0.1, where kube-proxy serves them for processes of the node; to keep that, add 127.0.0.0/8 to nodePortAddresses'
  const keys = keysOf(withNodePorts(services))
  return [{ weight: 'differs', subject: 'node ports at 127.0.0.1', text, services: keys }]
}

/** kube-proxy's iptables mode serves such an address to all clients: its rule for the external IP comes first. */
function sourceRanges({ from, services }: MigrationFacts): readonly MigrationChange[] {
  const guarded = services.filter(
    ({ sourceRanges, externalIps, loadBalancerIps }) =>
      sourceRanges.length > 0 && externalIps.some(ip => loadBalancerIps.includes(ip)),
  )
  const text = 'guard a load-balancer address that is also in externalIPs; kube-proxy lets every client in'
  const subject = 'loadBalancerSourceRanges'
  return from === 'iptables' ? [{ weight: 'differs', subject, text, services: keysOf(guarded) }] : []
}

function localPolicies({ from, services }: MigrationFacts): readonly MigrationChange[] {
  const local = services.filter(
    ({ internalTrafficPolicy, externalTrafficPolicy }) =>
      internalTrafficPolicy === 'Local' || externalTrafficPolicy === 'Local',
  )
  const text =
    "packets are dropped where the node has no endpoint, and pods reach all endpoints at external addresses; kube-proxy's IPVS mode does neither"
  return from === 'ipvs'
    ? [{ weight: 'differs', subject: 'policy Local', text, services: keysOf(local) }]
    : []
}

function affinity({ from, config, services }: MigrationFacts): readonly MigrationChange[] {
  // In these modes kprobe adopts the clients that the kernel remembers.
  if (from !== 'nftables' && from === config.proxyMode) return []
  const sticky = services.filter(({ affinityTimeoutS }) => affinityTimeoutS > 0)
  const text = 'their clients are balanced anew at their next connection, once'
  return [{ weight: 'once', subject: 'session affinity', text, services: keysOf(sticky) }]
}

function notes({ from, config }: MigrationFacts): readonly MigrationChange[] {
  const { proxyMode, detectLocal, masqueradeAll } = config
  const note = (subject: string, text: string): MigrationChange => ({
    weight: 'note',
    subject,
    text,
    services: [],
  })
  const { title } = findMode(proxyMode)
  const detects = `detectLocalMode ${detectLocal.kind}${masqueradeAll ? ', masqueradeAll' : ''}`
  return [
    note('mode', from === proxyMode ? `${title}, as before` : `${title}, and ${from} before`),
    note('source addresses', `masqueraded for the same clients as before (${detects})`),
    ...(from === proxyMode ? [] : [note('metrics and alerts', METRICS)]),
    ...(from === 'nftables' || findMode(proxyMode).settings.everyAddress === true
      ? []
      : [note('ClusterIPs', 'other ports are rejected, and unused addresses of a ServiceCIDR dropped')]),
  ]
}

const METRICS =
  'kubeproxy_sync_proxy_rules_iptables_* and kubeproxy_iptables_* are those of iptables mode alone; in the other modes alert on kubeproxy_sync_proxy_rules_nftables_sync_failures_total'
