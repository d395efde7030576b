import type { Family } from '../../base/ip.ts'
import { candidatesOf, clusterVerdict, localVerdict, survey } from '../../model/endpoint-choice.ts'
import { nodeContextOf, type ResolveOptions } from '../../model/node-context.ts'
import { withoutLoops } from '../../model/resolve-service.ts'
import type { Protocol, ServiceKey } from '../../model/service.ts'
import type { Snapshot } from '../../model/snapshot.ts'

interface ExplainQuery {
  readonly options: ResolveOptions
  readonly snapshot: Snapshot
  readonly service: ServiceKey
  readonly portName: string
  readonly protocol: Protocol
  readonly family: Family
}

/**
 * Explains resolve's choice among the endpoints of a port. They are sorted by address and port, as in PortFrontends.
 */
export function explainEndpoints(query: ExplainQuery) {
  const { snapshot, family } = query
  const service = snapshot.services.get(query.service)
  const port = service?.ports.find(
    ({ name, protocol }) => name === query.portName && protocol === query.protocol,
  )
  if (service === undefined || port === undefined) return undefined
  const here = nodeContextOf(query.options, snapshot)
  const slices = withoutLoops(snapshot.slices.get(service.key) ?? [], service)
  const candidates = candidatesOf(slices, { name: port.name, protocol: port.protocol, family })
  const found = survey(candidates, here)
  const endpoints = candidates.map(({ endpoint, port: number, slice }) => ({
    ip: endpoint.ip,
    port: number,
    /** `namespace/name` of the slice that speaks for it. */
    slice: slice.key,
    /** The name as the slice has it: untrusted text. */
    nodeName: endpoint.traits.nodeName,
    local: endpoint.traits.nodeName === here.nodeName,
    cluster: clusterVerdict(endpoint.traits, found, here),
    /** The verdict for traffic policy Local; `cluster` has that for Cluster. */
    localList: localVerdict(endpoint.traits, found, here),
  }))
  return { topology: found.topology, endpoints }
}
