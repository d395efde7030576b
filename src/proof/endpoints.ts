import type { Family } from '../base/ip.ts'
import { type Octets, u16be } from '../base/octets.ts'
import type { Endpoint, EndpointSlice, Protocol, Service, ServiceBalance } from '../model/service.ts'
import type { Snapshot } from '../model/snapshot.ts'
import type { Shares } from './meaning.ts'

/** The endpoints that a service port uses from this node: addresses with their ports. */
export interface PortDestinations {
  /** The list for policy Cluster; empty only where no endpoint anywhere can serve. */
  readonly cluster: readonly Octets[]
  readonly local: readonly Octets[]
  readonly onNode: readonly Octets[]
  /** The shares of both lists; absent where all are equal. */
  readonly clusterShares?: Shares | undefined
  readonly localShares?: Shares | undefined
}

interface Query {
  readonly name: string
  readonly protocol: Protocol
  readonly family: Family
  readonly node: {
    readonly config: { readonly nodeName: string }
    readonly node: { readonly zone: string } | undefined
  }
  /** Undefined for equal shares. */
  readonly balance?: ServiceBalance | undefined
  /** Places of silent endpoints, those first that are to be out first. */
  readonly silent?: readonly Octets[]
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
  const [all, own] = [cluster, local].map(entries => dividedBy(query, entries))
  return {
    cluster: texts(all?.entries ?? cluster),
    local: texts(own?.entries ?? local),
    onNode: [...texts(cluster.filter(isLocal)), ...texts(local)],
    clusterShares: all?.shares,
    localShares: own?.shares,
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

interface Divided {
  readonly entries: readonly Entry[]
  /** Undefined for equal shares. */
  readonly shares: Shares | undefined
}

/** Rules for 16 or fewer slots are exact; others round by at most this part of a share. */
const ROUNDING_RANDOM = 0.013
const ROUNDING_MAGLEV = 0.005

/**
 * Divides the connections of a list: docs/balance.md. Endpoints of weight 0 get none while others are there, silent ones
 * get none within their bound, and with `local-first` those of this node come first.
 */
function dividedBy({ balance, silent = [], node }: Query, entries: readonly Entry[]): Divided | undefined {
  if ((balance === undefined && silent.length === 0) || entries.length === 0) return undefined
  const { nodeName } = node.config
  const { policy = 'random', weights = [] } = balance ?? {}
  const written = entries.map(({ endpoint: { traits } }) => {
    const ofNode = weights.find(({ kind, name }) => kind === 'node' && name === traits.nodeName)
    const ofZone = weights.find(({ kind, name }) => kind === 'zone' && name === traits.zone)
    return (ofNode ?? ofZone ?? { weight: 1 }).weight
  })
  const drained = written.every(weight => weight === 0)
  const all = withoutSilent(
    entries,
    written.map(weight => (drained ? 1 : weight)),
    silent,
  )
  const parts = policy === 'local-first' ? localFirst(entries, all, nodeName) : all
  const total = parts.reduce((sum, part) => sum + part, 0)
  const of = parts.map(part => part / total)
  const tolerance = policy.startsWith('maglev') ? ROUNDING_MAGLEV : ROUNDING_RANDOM
  return {
    entries: entries.filter((_, at) => of[at] !== 0),
    shares: balance && { of: of.filter(share => share !== 0), tolerance },
  }
}

/** At most a third of the endpoints that get connections stop getting them, or one of two. */
function withoutSilent(
  entries: readonly Entry[],
  weights: readonly number[],
  silent: readonly Octets[],
): readonly number[] {
  const left = [...weights]
  const serving = weights.filter(weight => weight !== 0).length
  let room = serving === 2 ? 1 : Math.trunc(serving / 3)
  for (const place of silent) {
    const at = entries.findIndex(entry => entry.place === place)
    if (room === 0 || at < 0 || left[at] === 0) continue
    left[at] = 0
    room--
  }
  return left
}

/** Of N endpoints on K nodes, N / K are a node's share; with less of its own, the rest of its connections goes elsewhere. */
function localFirst(
  entries: readonly Entry[],
  weights: readonly number[],
  nodeName: string,
): readonly number[] {
  const used = entries.filter((_, at) => weights[at] !== 0)
  const own = used.filter(({ endpoint }) => endpoint.traits.nodeName === nodeName).length
  const nodes = new Set(used.map(({ endpoint }) => endpoint.traits.nodeName)).size
  if (own === 0 || own === used.length) return weights
  const kept = Math.min(1, own / (used.length / nodes))
  const others = used.length - own
  return entries.map(({ endpoint }, at) => {
    const part = endpoint.traits.nodeName === nodeName ? kept / own : kept === 1 ? 0 : (1 - kept) / others
    return part * (weights[at] ?? 0)
  })
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
