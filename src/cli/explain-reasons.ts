import { anyContains, formatCidr } from '../base/cidr.ts'
import { familyOf, formatIp, formatIpPort, type Ip, parseIp } from '../base/ip.ts'
import { count } from '../base/text.ts'
import type { Oversized } from '../model/admission.ts'
import type { Frontend, FrontendTable, PortFrontends } from '../model/frontend.ts'
import type { Refusal } from '../model/refusal.ts'
import type { Service } from '../model/service.ts'
import type { Snapshot } from '../model/snapshot.ts'
import { portsText, type Question } from './explain-question.ts'
import type { ExplainedEndpoint } from './explanation-text.ts'

/** A frontend that the packet matches, with its service port. */
export interface Caught {
  readonly port: PortFrontends
  readonly frontend: Frontend
}

interface ReasonsInput {
  readonly question: Question
  readonly table: FrontendTable
  readonly snapshot: Snapshot
  /** Services that are not served for want of memory. */
  readonly oversized: Iterable<Oversized>
  /** EndpointSlices that are refused as a whole, with their Services. */
  readonly refusedSlices: readonly Refusal[]
  readonly caught: Caught | undefined
  readonly endpoints: readonly ExplainedEndpoint[]
  readonly isLocal: boolean
}

/** Lists the reasons why a connection does not reach its destination, as sentences that name the Services. */
export function reasonsOf(input: ReasonsInput): readonly string[] {
  const { caught } = input
  const own =
    caught === undefined ? otherPorts(input) : [...deadEnds(input, caught), ...ignoredParts(input, caught)]
  return [...own, ...refusals(input)]
}

/** Finds frontends without an endpoint for this client, and those that do not admit it. */
function deadEnds({ question, endpoints }: ReasonsInput, { port, frontend }: Caught): readonly string[] {
  const { route, sourceRanges } = frontend
  const reasons: string[] = []
  if (sourceRanges !== undefined && !anyContains(sourceRanges, question.from))
    reasons.push(
      `${formatIp(question.from)} is outside the source ranges of Service ${port.service}: ${sourceRanges.map(formatCidr).join(', ')}`,
    )
  const all = endpoints.length
  const others = all === 0 ? '' : ` (${count(all, 'endpoint')}, listed below)`
  const local = `Service ${port.displayName} has no usable endpoint on this node, and its traffic policy is Local${others}`
  if (all === 0) reasons.push(`Service ${port.displayName} has no endpoints`)
  else if (route.kind === 'reject')
    reasons.push(`Service ${port.displayName} has no usable endpoint${others}`)
  else if (route.kind === 'drop') reasons.push(local)
  else if (route.kind === 'external-local' && port.local.length === 0)
    reasons.push(`${local}; pods and processes of this node reach endpoints on other nodes`)
  return reasons
}

/** Parts of EndpointSlices that the text names at most. */
const PARTS_MAX = 5

/** Lists what is ignored of the Service's EndpointSlices. */
function ignoredParts({ snapshot, refusedSlices }: ReasonsInput, { port }: Caught): readonly string[] {
  const { service } = port
  const slices = (snapshot.slices.get(service) ?? []).filter(slice => slice.leftOut === undefined)
  const whole = refusedSlices.filter(refusal => refusal.service === service)
  const texts = [
    ...whole.map(({ object, field, value, reason }) => `${object} is ignored: ${field} ${value}: ${reason}`),
    ...slices.flatMap(({ refusals }) =>
      refusals.map(({ object, field, value, reason }) => `${object}: ignored ${field} ${value}: ${reason}`),
    ),
  ]
  const more = texts.length - PARTS_MAX
  if (more <= 0) return texts
  const rest = `${count(more, 'more part')} of EndpointSlices of Service ${service} ${more === 1 ? 'is' : 'are'} ignored`
  return [...texts.slice(0, PARTS_MAX), rest]
}

/** Finds Services that have the address, and serve other ports there. */
function otherPorts({ question, table, snapshot }: ReasonsInput): readonly string[] {
  const { to } = question
  const reasons: string[] = []
  for (const { service, ports } of table.services.values()) {
    const here = ports.filter(({ frontends }) => frontends.some(({ ip }) => ip === to))
    if (here.length === 0) continue
    const listed = here.flatMap(({ displayName, protocol, frontends }) =>
      frontends
        .filter(({ ip }) => ip === to)
        .map(({ port }) => ({ name: displayName.slice(service.length + 1), port, protocol })),
    )
    reasons.push(
      `${formatIp(to)} is an address of Service ${service}, whose ports there are ${portsText(listed)}`,
    )
  }
  for (const service of snapshot.services.values()) {
    const isForeign = !table.services.has(service.key) && service.clusterIps.includes(to)
    if (isForeign)
      reasons.push(`${formatIp(to)} is an address of Service ${service.key}, which ${served(service)}`)
  }
  return reasons
}

function served({ proxyName }: { readonly proxyName: string | undefined }): string {
  return proxyName === undefined
    ? 'the unnamed proxy serves'
    : `the proxy ${proxyName} serves (label service.kubernetes.io/service-proxy-name)`
}

/** Finds Services whose request for the address or the node port was refused. */
function refusals(input: ReasonsInput): readonly string[] {
  const reasons = new Set<string>()
  for (const { service, refusal } of input.oversized)
    if (wants(service, input)) reasons.add(`${refusal.object} is not served: it ${refusal.reason}`)
  for (const service of input.snapshot.services.values())
    if (wants(service, input)) for (const reason of leftOut(service, input)) reasons.add(reason)
  for (const { refusals } of input.table.services.values())
    for (const refusal of refusals)
      if (isAbout(refusal, input))
        reasons.add(
          `${refusal.object} requests ${refusal.value} (${refusal.field}), which kprobe refuses: ${refusal.reason}`,
        )
  return [...reasons]
}

/** Lists objects of the Service that are left out for want of memory. */
function leftOut(service: Service, { snapshot }: ReasonsInput): readonly string[] {
  const slices = (snapshot.slices.get(service.key) ?? []).filter(slice => slice.leftOut !== undefined)
  return [
    ...(service.leftOut === undefined ? [] : service.refusals).map(
      ({ object, reason }) => `${object} is not served: it ${reason}`,
    ),
    ...slices.flatMap(({ refusals }) =>
      refusals.map(({ object, reason }) => `${object} is not used: it ${reason}`),
    ),
  ]
}

/** Tests whether the packet is for an address or a node port of the Service. */
function wants(
  { clusterIps, externalIps, loadBalancerIps, ports }: Service,
  { question, isLocal }: ReasonsInput,
): boolean {
  const { to, port, protocol } = question
  if ([clusterIps, externalIps, loadBalancerIps].some(ips => ips.includes(to))) return true
  return isLocal && ports.some(its => its.nodePort === port && its.protocol === protocol.name)
}

/**
 * Tests whether a refusal is about this packet. A refusal names an address, an address with its port, or a node port;
 * the latter two carry their protocol.
 */
function isAbout({ value }: Refusal, { question, isLocal }: ReasonsInput): boolean {
  const { to, port, protocol } = question
  const [place = '', its = protocol.name] = value.split('/')
  if (its !== protocol.name) return false
  return sameIp(place, to) || place === formatIpPort(to, port) || (isLocal && place === `${port}`)
}

function sameIp(text: string, ip: Ip): boolean {
  const its = parseIp(text)
  return its !== undefined && familyOf(its) === familyOf(ip) && its === ip
}
