import { type Cidr, formatIpPort } from '../../base/ip.ts'
import type { XtRule } from '../../kernel/xt/rule.ts'
import type { XtChain, XtEntry } from '../../kernel/xt/scope.ts'
import type { Asked } from '../../kernel/xt/scope-held.ts'
import type { PortFrontends, ServiceFrontends } from '../../model/frontend.ts'
import { addressOf, comment, FROM_LOCAL, fromPods, jump, NO_MATCHES } from '../xt-common/rules-parts.ts'
import { optimizeService } from './optimize/optimize.ts'
import {
  captureEntries,
  endpointChains,
  healthCheckEntry,
  natChain,
  type PortRules,
  portRules,
} from './rules.ts'
import type { Statics } from './state.ts'

/**
 * Makes the chains of a Service in table nat, and its rules in shared chains, which reject clients or lead to its own
 * chains.
 */
export function rulesOfService(service: ServiceFrontends, statics: Statics): Asked {
  const chains: XtChain[] = []
  const entries: XtEntry[] = []
  const checked = new Set<string>()
  for (const frontends of service.ports) {
    const port = portRules(frontends, statics)
    for (const frontend of frontends.frontends) entries.push(...captureEntries(port, frontend))
    // Ports of one name with several protocols would repeat the rule.
    const name = `${port.family} ${frontends.displayName}`
    if (service.healthCheck !== undefined && !checked.has(name)) {
      checked.add(name)
      entries.push(healthCheckEntry(port, service.healthCheck.port))
    }
    for (const chain of externalChains(port)) chains.push(chain)
    for (const chain of endpointChains(port)) chains.push(chain)
  }
  const rules: Asked = { chains, entries }
  return statics.options.optimize ? optimizeService(rules, statics) : rules
}

/**
 * Counts distinct endpoints over all ports of a Service, in the family that has more of them: kube-proxy counts each
 * family separately.
 */
export function endpointsOf({ ports }: ServiceFrontends): number {
  let v4 = 0
  let v6 = 0
  for (const port of ports) {
    const count = distinctEndpoints(port)
    if (port.family === 'IPv4') v4 += count
    else v6 += count
  }
  return Math.max(v4, v6)
}

function distinctEndpoints({ cluster, local }: PortFrontends): number {
  if (local.length === 0 || cluster.length === 0) return cluster.length + local.length
  const known = new Set(cluster.map(({ ip, port }) => formatIpPort(ip, port)))
  let count = cluster.length
  for (const { ip, port } of local) if (!known.has(formatIpPort(ip, port))) count++
  return count
}

/** Makes EXT and FW: the chains for clients of addresses beside the ClusterIP. */
function externalChains(port: PortRules): readonly XtChain[] {
  const { external, clients } = port.uses
  if (external === undefined) return NO_CHAINS
  const rules = external === 'cluster' ? clusterRules(port) : localRules(port)
  const ext = natChain(port, port.chains.ext, rules)
  return clients === undefined ? [ext] : [ext, firewallChain(port, clients)]
}

const NO_CHAINS: readonly XtChain[] = []

function clusterRules({ port, chains, statics }: PortRules): readonly XtRule[] {
  const text = `masquerade traffic for ${port.displayName} external destinations`
  return [
    { matches: [comment(text)], target: jump(statics.options.names.markMasq) },
    { matches: NO_MATCHES, target: jump(chains.svc) },
  ]
}

/**
 * Makes the rules by which pods and this node bypass policy Local, as if their packets had left and come back by a
 * load balancer.
 */
function localRules({ port, chains, uses, ofFamily, statics }: PortRules): readonly XtRule[] {
  const { displayName } = port
  const { detector } = ofFamily
  const say = (what: string) => comment(`${what} traffic for ${displayName} external destinations`)
  const rules: XtRule[] = []
  if (detector !== undefined)
    rules.push({ ...fromPods(detector, false), matches: [say('pod')], target: jump(chains.svc) })
  rules.push(
    // The node's own packets have their destination address as their source.
    { matches: [say('masquerade LOCAL'), FROM_LOCAL], target: jump(statics.options.names.markMasq) },
    { matches: [say('route LOCAL'), FROM_LOCAL], target: jump(chains.svc) },
  )
  if (uses.local) rules.push({ matches: NO_MATCHES, target: jump(chains.svl) })
  return rules
}

/**
 * Makes the firewall chain. A client outside the ranges passes untranslated, and the table filter drops its packets.
 */
function firewallChain(port: PortRules, clients: readonly Cidr[]): XtChain {
  const { displayName } = port.port
  const { fw, ext } = port.chains
  const matches = [comment(`${displayName} loadbalancer IP`)]
  const others = comment(
    `other traffic to ${displayName} will be dropped by ${port.statics.options.names.proxyFirewall}`,
  )
  return natChain(port, fw, [
    ...clients.map(client => ({ source: addressOf(client), matches, target: jump(ext) })),
    { matches: [others], target: undefined },
  ])
}
