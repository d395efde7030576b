import type { Family } from '../base/ip.ts'
import { type Octets, u16be } from '../base/octets.ts'
import type { Endpoint, EndpointSlice, Protocol, Service } from '../model/service.ts'
import type { Snapshot } from '../model/snapshot.ts'

/** The endpoints that a service port uses from this node: addresses with their ports. */
export interface PortDestinations {
  /** The list for policy Cluster; empty only where no endpoint anywhere can serve. */
  readonly cluster: readonly Octets[]
  readonly local: readonly Octets[]
  readonly onNode: readonly Octets[]
}

interface Query {
  readonly name: string
  readonly protocol: Protocol
  readonly family: Family
  readonly node: {
    readonly config: { readonly nodeName: string }
    readonly node: { readonly zone: string } | undefined
  }
}

/** Selects endpoints: kube-proxy's CategorizeEndpoints, and KEP-1669 for those that terminate. */
export function destinationsOf(snapshot: Snapshot, service: Service, query: Query): PortDestinations {
  const { nodeName } = query.node.config
  const zone = query.node.node?.zone ?? ''
  const known = entriesOf(snapshot, service, query)
  const isLocal = ({ endpoint }: Entry) => endpoint.traits.nodeName === nodeName
  const ready = known.filter(({ endpoint }) => endpoint.traits.conditions.ready)
  const draining = known.filter(
    ({ endpoint: { traits } }) => traits.conditions.serving && traits.conditions.terminating,
  )
  const cluster = ready.length > 0 ? preferred(ready, nodeName, zone) : draining
  const readyHere = ready.filter(isLocal)
  const local = readyHere.length > 0 ? readyHere : draining.filter(isLocal)
  const texts = (entries: readonly Entry[]) => entries.map(({ place }) => place)
  return {
    cluster: texts(cluster),
    local: texts(local),
    onNode: [...texts(cluster.filter(isLocal)), ...texts(local)],
  }
}

/** Hints count where every ready endpoint has them and one is for this node, or else for its zone. */
function preferred(ready: readonly Entry[], nodeName: string, zone: string): readonly Entry[] {
  const nodesOf = ({ endpoint }: Entry) => endpoint.traits.hints.forNodes
  const zonesOf = ({ endpoint }: Entry) => endpoint.traits.hints.forZones
  const forNode = ready.filter(entry => nodesOf(entry).includes(nodeName))
  if (forNode.length > 0 && ready.every(entry => nodesOf(entry).length > 0)) return forNode
  const forZone = zone === '' ? [] : ready.filter(entry => zonesOf(entry).includes(zone))
  return forZone.length > 0 && ready.every(entry => zonesOf(entry).length > 0) ? forZone : ready
}

interface Entry {
  readonly place: Octets
  readonly endpoint: Endpoint
  readonly slice: EndpointSlice
  readonly index: number
}

/** Collects the endpoints of a service port, each place once. */
function entriesOf(snapshot: Snapshot, service: Service, query: Query): readonly Entry[] {
  const entries = new Map<Octets, Entry>()
  for (const slice of snapshot.slices.get(service.key) ?? []) {
    if (slice.family !== query.family) continue
    for (const { name, protocol, port } of slice.ports) {
      if (name !== query.name || protocol !== query.protocol) continue
      for (const [index, endpoint] of slice.endpoints.entries()) {
        // Traffic to the ClusterIP of the Service itself would return.
        if (service.clusterIps.includes(endpoint.ip)) continue
        const entry: Entry = { place: endpoint.ip + u16be(port), endpoint, slice, index }
        const other = entries.get(entry.place)
        if (other === undefined || isBetter(entry, other)) entries.set(entry.place, entry)
      }
    }
  }
  return [...entries.values()]
}

/** The newer slice wins for one pod; among several pods, one that does not terminate, is ready, serves. */
function isBetter(entry: Entry, than: Entry): boolean {
  const [uid, other] = [uidOf(entry), uidOf(than)]
  const newer = entry.slice.triggerTimeMs - than.slice.triggerTimeMs
  if (uid !== '' && uid === other && newer !== 0) return newer > 0
  return rank(entry) > rank(than)
}

function uidOf({ slice, index }: Entry): string {
  return slice.targetUids?.split(',')[index] ?? ''
}

function rank({ endpoint }: Entry): number {
  const { ready, serving, terminating } = endpoint.traits.conditions
  return (terminating ? 0 : 4) + (ready ? 2 : 0) + (serving ? 1 : 0)
}
