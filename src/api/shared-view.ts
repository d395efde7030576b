import { finish } from '../base/clock.ts'
import { PersistentMap } from '../base/collections.ts'
import { anyContains, familyOf, type Ip } from '../base/ip.ts'
import { type Claims, nodePortPlace } from '../model/claims.ts'
import type { ServiceFrontends } from '../model/frontend.ts'
import { cappedSnapshot } from '../model/memory-caps.ts'
import type { NodeContext } from '../model/node-context.ts'
import { isApiAddress } from '../model/reserved.ts'
import { type Resolved, resolveAll, touching } from '../model/resolve.ts'
import type { Service, ServiceKey, SliceList } from '../model/service.ts'
import type { NodeInfo } from '../model/snapshot.ts'

/** Stands for the name of a Node where no Node is meant: from its point of view no endpoint is local. */
export const NO_NODE = '*'

/** A node of this zone that has neither endpoints nor addresses. */
export function nodeIn(zone: string): NodeInfo {
  return { name: NO_NODE, uid: '', ips: [], zone, podCidrs: [], eligible: true, refusals: [] }
}

/**
 * Resolves these Services for a node; addresses have the owners that they have in `shared`, which was resolved for
 * NO_NODE in the zone of the node. The result is that of resolve() for the node unless its addresses matter
 * (Entanglement). Services that no slice names the node in are the same in `shared`.
 */
export function resolveFor(
  here: NodeContext,
  { snapshot, memo: { claims, caps } }: Resolved,
  keys: readonly ServiceKey[],
): ReadonlyMap<ServiceKey, ServiceFrontends | undefined> {
  const view = cappedSnapshot(snapshot, caps)
  const pass = { here, claims, snapshot: view, before: NO_FRONTENDS }
  return finish(resolveAll(pass, touching(keys, view), changes => changes))
}

const NO_FRONTENDS = PersistentMap.empty<ServiceFrontends>()

/** The nodes from whose point of view slices differ: those of their endpoints, and those of their hints. */
export function nodesOf(slices: SliceList): ReadonlySet<string> {
  const nodes = new Set<string>()
  for (const { endpoints } of slices)
    for (const { traits } of endpoints) {
      nodes.add(traits.nodeName)
      for (const name of traits.hints.forNodes) nodes.add(name)
    }
  return nodes
}

export function isNamedIn(slices: SliceList, node: string): boolean {
  return slices.some(({ endpoints }) =>
    endpoints.some(({ traits }) => traits.nodeName === node || traits.hints.forNodes.includes(node)),
  )
}

/** Follows whether an external address of a Service has another owner, or none, on a node because of the node's own addresses. */
export class Entanglement {
  readonly #node: NodeInfo
  /** External addresses within the pod CIDRs of the node. */
  readonly #inPods = new Set<Ip>()
  #claims: Claims | undefined
  #isEntangled = false

  constructor(node: NodeInfo) {
    this.#node = node
  }

  /** Costs the external addresses that have changed since the last call, and those that the node has. */
  in({ memo, snapshot }: Resolved): boolean {
    const { claims, here } = memo
    if (claims === this.#claims) return this.#isEntangled
    const { ips, podCidrs } = this.#node
    const before = this.#claims?.externals
    const changed =
      before === undefined ? claims.externals.keys() : PersistentMap.changes(before, claims.externals)
    for (const ip of changed)
      if (claims.externals.has(ip) && anyContains(podCidrs, ip)) this.#inPods.add(ip)
      else this.#inPods.delete(ip)
    this.#claims = claims
    const met = [...ips, ...here.apiServers.endpoints.map(({ ip }) => ip), ...this.#inPods]
    this.#isEntangled = met.some(ip => isMet(ip, { memo, snapshot }, ips.includes(ip)))
    return this.#isEntangled
  }
}

/** The address is one of the node, of its pods, or of an API server. */
function isMet(ip: Ip, { memo, snapshot }: Pick<Resolved, 'memo' | 'snapshot'>, isOwn: boolean): boolean {
  const { externals, places } = memo.claims
  const claimants = externals.get(ip) ?? []
  for (const key of claimants) {
    const service = snapshot.services.get(key)
    if (service === undefined) continue
    if (!service.loadBalancerIps.includes(ip) || service.externalIps.includes(ip)) return true
    if (service.sourceRanges.length > 0 && isApiAddress(memo.here.apiServers, ip)) return true
    if (isOwn && service.ports.some(port => places.has(nodePortOf(ip, port)))) return true
  }
  return false
}

function nodePortOf(ip: Ip, { protocol, port }: Service['ports'][number]): string {
  return nodePortPlace(familyOf(ip), protocol, port)
}
