import type { Family, Ip } from '../base/ip.ts'
import {
  clusterVerdict,
  localVerdict,
  nodeContextOf,
  type ResolveOptions,
  survey,
  type TopologyMode,
  type Verdict,
} from './node-context.ts'
import { candidatesOf } from './port-endpoints.ts'
import type { Protocol, ServiceKey } from './service.ts'
import { type Snapshot, withoutLoops } from './snapshot.ts'

interface ExplainQuery {
  readonly options: ResolveOptions
  readonly snapshot: Snapshot
  readonly service: ServiceKey
  readonly portName: string
  readonly protocol: Protocol
  readonly family: Family
}

/** Why one endpoint is, or is not, in the two lists of a port. */
interface EndpointExplanation {
  readonly ip: Ip
  readonly port: number
  /** `namespace/name` of the slice that speaks for it. */
  readonly slice: string
  /** The name as the slice has it: untrusted text. */
  readonly nodeName: string
  readonly local: boolean
  /** Whether it is in the list for traffic policy Cluster. */
  readonly cluster: Verdict
  /** Whether it is in the list for traffic policy Local. */
  readonly localList: Verdict
}

interface PortExplanation {
  readonly topology: TopologyMode
  /** Sorted by address and port, as in PortFrontends. */
  readonly endpoints: readonly EndpointExplanation[]
}

/** How resolve chose among the endpoints of a port: the same predicates, with their reasons. */
export function explainEndpoints(query: ExplainQuery): PortExplanation | undefined {
  const { snapshot, family } = query
  const service = snapshot.services.get(query.service)
  const port = service?.ports.find(
    ({ name, protocol }) => name === query.portName && protocol === query.protocol,
  )
  if (service === undefined || port === undefined) return undefined
  const here = nodeContextOf(query.options, snapshot)
  const slices = withoutLoops(snapshot.slices.get(service.key) ?? [], service)
  const candidates = candidatesOf(slices, { name: port.name, protocol: port.protocol, family })
  const found = survey(
    candidates.map(({ endpoint }) => endpoint),
    here,
  )
  const endpoints = candidates.map(({ endpoint, port: number, slice }) => ({
    ip: endpoint.ip,
    port: number,
    slice: slice.key,
    nodeName: endpoint.traits.nodeName,
    local: endpoint.traits.nodeName === here.nodeName,
    cluster: clusterVerdict(endpoint.traits, found, here),
    localList: localVerdict(endpoint.traits, found, here),
  }))
  return { topology: found.topology, endpoints }
}
