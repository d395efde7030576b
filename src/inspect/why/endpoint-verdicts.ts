import type { Family } from '../../base/ip.ts'
import { balanceOf, failsOver, weightOf, weightsIn } from '../../model/balance.ts'
import {
  type Candidate,
  candidatesOf,
  clusterVerdict,
  localVerdict,
  survey,
  type Verdict,
} from '../../model/endpoint-choice.ts'
import { type NodeContext, nodeContextOf, type ResolveOptions } from '../../model/node-context.ts'
import { withoutLoops } from '../../model/resolve-service.ts'
import type {
  EndpointTraits,
  PortBalance,
  Protocol,
  Service,
  ServiceKey,
  SilentEndpoint,
} from '../../model/service.ts'
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
  const cluster = weighedVerdicts(query, service, {
    candidates,
    here,
    verdictOf: its => clusterVerdict(its, found, here),
  })
  const local = weighedVerdicts(query, service, {
    candidates,
    here,
    verdictOf: its => localVerdict(its, found, here),
  })
  const endpoints = candidates.map((candidate, at) => ({
    ip: candidate.endpoint.ip,
    port: candidate.port,
    /** `namespace/name` of the slice that speaks for it. */
    slice: candidate.slice.key,
    /** The name as the slice has it: untrusted text. */
    nodeName: candidate.endpoint.traits.nodeName,
    zone: candidate.endpoint.traits.zone,
    local: candidate.endpoint.traits.nodeName === here.nodeName,
    cluster: cluster[at] ?? UNKNOWN,
    /** The verdict for traffic policy Local; `cluster` has that for Cluster. */
    localList: local[at] ?? UNKNOWN,
  }))
  return { topology: found.topology, endpoints }
}

const UNKNOWN: Verdict = { isIn: false, reason: 'not known' }

interface Listing {
  readonly candidates: readonly Candidate[]
  readonly here: NodeContext
  readonly verdictOf: (traits: EndpointTraits) => Verdict
}

/** Gives the verdict of each candidate, in the light of weights, of `local-first`, and of fail-over. */
function weighedVerdicts(
  { options, snapshot, protocol }: ExplainQuery,
  service: Service,
  { candidates, here, verdictOf }: Listing,
): readonly Verdict[] {
  const verdicts = candidates.map(({ endpoint }) => verdictOf(endpoint.traits))
  const balance = balanceOf(service, options.balancing, {
    kind: 'Service',
    key: service.key,
    refusals: undefined,
  })
  const silent = failsOver(service, options.balancing)
    ? snapshot.silent.get(service.key)?.endpoints.filter(its => its.protocol === protocol)
    : undefined
  if (balance === undefined && silent === undefined) return verdicts
  const chosen = candidates.filter((_, at) => verdicts[at]?.isIn)
  const traits = chosen.map(({ endpoint }) => endpoint.traits)
  const placed = chosen.map(({ endpoint: { ip, traits }, port }) => ({
    ip,
    port,
    local: traits.nodeName === here.nodeName,
  }))
  const weights = weightsIn(placed, traits, { balance, silent })
  const weightBy = new Map(chosen.map((candidate, at) => [candidate, weights[at]]))
  return verdicts.map((verdict, at): Verdict => {
    const candidate = candidates[at]
    const weight = candidate && weightBy.get(candidate)
    if (candidate === undefined || weight === undefined || weight === 1) return verdict
    if (weight > 1) return { isIn: true, reason: `${verdict.reason}, with weight ${weight}` }
    return { isIn: false, reason: `${verdict.reason}, but ${whyWithout(candidate, balance, silent)}` }
  })
}

/** Gives the reason for which an endpoint that was chosen has weight 0. */
function whyWithout(
  { endpoint, port }: Candidate,
  balance: PortBalance | undefined,
  silent: readonly SilentEndpoint[] = [],
): string {
  if (weightOf(balance?.weights ?? [], endpoint.traits) === 0) return 'drained by kprobe.io/weights'
  const isSilent = silent.some(its => its.ip === endpoint.ip && its.port === port)
  if (isSilent)
    return 'out for a short time: it left connections of this node without a reply (kprobe.io/fail-over)'
  return 'not needed: this node has its share of endpoints'
}
