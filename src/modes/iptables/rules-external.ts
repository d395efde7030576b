import type { Cidr } from '../../base/cidr.ts'
import type { XtRule } from '../../kernel/xt/rule.ts'
import { addressOf, comment, FROM_LOCAL, fromPods, jump, NO_MATCHES } from '../xt-common/rules-parts.ts'
import { natChain, type PortRules } from './rules-port.ts'
import type { ServiceChain } from './service-rules.ts'

/** EXT and FW: what meets clients at addresses beside the ClusterIP. */
export function externalChains(port: PortRules): readonly ServiceChain[] {
  const { external, clients } = port.uses
  if (external === undefined) return NO_CHAINS
  const rules = external === 'cluster' ? clusterRules(port) : localRules(port)
  const ext = natChain(port, port.chains.ext, rules)
  return clients === undefined ? [ext] : [ext, firewallChain(port, clients)]
}

const NO_CHAINS: readonly ServiceChain[] = []

function clusterRules({ port, chains, statics }: PortRules): readonly XtRule[] {
  const text = `masquerade traffic for ${port.displayName} external destinations`
  return [
    { matches: [comment(text)], target: jump(statics.options.names.markMasq) },
    { matches: NO_MATCHES, target: jump(chains.svc) },
  ]
}

/** Pods and this node are let past the policy, as if they had gone out and come back by a load balancer. */
function localRules({ port, chains, uses, ofFamily, statics }: PortRules): readonly XtRule[] {
  const { displayName } = port
  const { detector } = ofFamily
  const say = (what: string) => comment(`${what} traffic for ${displayName} external destinations`)
  const rules: XtRule[] = []
  if (detector !== undefined)
    rules.push({ ...fromPods(detector, false), matches: [say('pod')], target: jump(chains.svc) })
  rules.push(
    // The node's own packets come from the very address they go to.
    { matches: [say('masquerade LOCAL'), FROM_LOCAL], target: jump(statics.options.names.markMasq) },
    { matches: [say('route LOCAL'), FROM_LOCAL], target: jump(chains.svc) },
  )
  if (uses.local) rules.push({ matches: NO_MATCHES, target: jump(chains.svl) })
  return rules
}

/** Who is not in it goes on untranslated, and is dropped in filter. */
function firewallChain(port: PortRules, clients: readonly Cidr[]): ServiceChain {
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
