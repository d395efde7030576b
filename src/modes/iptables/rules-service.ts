import { formatIpPort } from '../../base/ip.ts'
import type { XtEntry } from '../../kernel/xt/scope.ts'
import type { PortFrontends, ServiceFrontends } from '../../model/frontend.ts'
import { optimizeService } from './optimize/optimize.ts'
import { endpointChains } from './rules-endpoints.ts'
import { captureEntries, healthCheckEntry } from './rules-entries.ts'
import { externalChains } from './rules-external.ts'
import { portRules } from './rules-port.ts'
import type { ServiceChain, ServiceRules } from './service-rules.ts'
import type { Statics } from './statics.ts'

/** The chains of a Service in table nat, and its rules in those that all Services share: they turn clients away or lead to its own. */
export function rulesOfService(service: ServiceFrontends, statics: Statics): ServiceRules {
  const chains: ServiceChain[] = []
  const entries: XtEntry[] = []
  const checked = new Set<string>()
  for (const frontends of service.ports) {
    const port = portRules(frontends, statics)
    for (const frontend of frontends.frontends) entries.push(...captureEntries(port, frontend))
    // Ports of one name but several protocols would say the same twice.
    const name = `${port.family} ${frontends.displayName}`
    if (service.healthCheck !== undefined && !checked.has(name)) {
      checked.add(name)
      entries.push(healthCheckEntry(port, service.healthCheck.port))
    }
    for (const chain of externalChains(port)) chains.push(chain)
    for (const chain of endpointChains(port)) chains.push(chain)
  }
  const rules: ServiceRules = { chains, entries }
  return statics.options.optimize ? optimizeService(rules, statics) : rules
}

/**
 * Distinct endpoints over all ports of a Service, of the family that has more of them: kube-proxy counts each family by
 * itself.
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
