import { anyContains, familyOf, formatCidr, formatIp, formatIpPort, type Ip, parseIp } from '../../base/ip.ts'
import { count } from '../../base/text.ts'
import type { Verdict } from '../../model/endpoint-choice.ts'
import type { Refusal } from '../../model/fields.ts'
import type { Frontend, FrontendTable, PortFrontends } from '../../model/frontend.ts'
import type { RefusedService } from '../../model/memory-caps.ts'
import type { Service } from '../../model/service.ts'
import type { Snapshot } from '../../model/snapshot.ts'
import type { RefusedSince } from '../../telemetry/refusal-log.ts'
import type { UnansweredRow } from '../live/unanswered-rows.ts'
import { portsText } from '../peers.ts'
import type { Question } from './explain-question.ts'
import type { Outcome } from './outcome.ts'

export interface ExplainedEndpoint {
  readonly address: string
  /** `namespace/name` of the Pod, where the slice names it. */
  readonly pod: string | undefined
  readonly node: string
  /** The zone of the endpoint; undefined where the slice names none. */
  readonly zone: string | undefined
  readonly slice: string
  readonly cluster: Verdict
  readonly local: Verdict
  /** Its connections without a reply, where conntrack was read and holds such. */
  readonly unanswered?: UnansweredRow
}

export interface Caught {
  readonly port: PortFrontends
  readonly frontend: Frontend
}

interface ReasonsInput {
  readonly question: Question
  readonly table: FrontendTable
  readonly snapshot: Snapshot
  /** Services over a cap of memory, which are not served. */
  readonly overCap: Iterable<RefusedService>
  /** EndpointSlices and Services that are refused as a whole. */
  readonly refusedObjects: readonly Refusal[]
  /** Gives the time since which the daemon refuses something; undefined if it is unknown. */
  readonly refusedSince?: ((refusal: Refusal) => RefusedSince | undefined) | undefined
  readonly caught: Caught | undefined
  readonly endpoints: readonly ExplainedEndpoint[]
  readonly isLocal: boolean
  readonly wallMs: number
}

/** A reason for which a connection does not reach its destination, or a field of its Service is ignored. */
export interface Reason {
  readonly text: string
  /** `no-endpoint`: none is left for the client, and the rules reject or drop the connection. `note`: it decides nothing. */
  readonly kind: 'obstacle' | 'no-endpoint' | 'note'
}

/** Lists the reasons why a connection does not reach its destination; the first that is no note decides. */
export function reasonsOf(input: ReasonsInput): readonly Reason[] {
  const { caught } = input
  const own =
    caught === undefined
      ? [...otherPorts(input), ...nodePortElsewhere(input)]
      : [...deadEnds(input, caught), ...ignoredParts(input, caught)]
  // A refusal of the Service that the question names is one of the address as well.
  const all = [...ofNamed(input), ...own, ...refusals(input)]
  return all.filter(({ text }, index) => all.findIndex(other => other.text === text) === index)
}

/** Gives the reasons why the Service that the question names is not the one that the packet matches. */
function ofNamed(input: ReasonsInput): readonly Reason[] {
  const service =
    isOther(input.question, input.caught) && input.snapshot.services.get(input.question.service ?? '')
  if (!service) return []
  const isIts = (refusal: Refusal) => isAbout(refusal, input, service.ports)
  return whyUnserved(service, input, isIts)
}

/** Tests whether the packet matches another Service than the one that the question names. */
export function isOther({ service }: Question, caught: Caught | undefined): boolean {
  return service !== undefined && caught !== undefined && caught.port.service !== service
}

type Refusing = Pick<ReasonsInput, 'table' | 'overCap' | 'refusedSince' | 'wallMs'>

/** Gives the reasons why nothing leads to a Service, or to those parts of it that `isIts` selects. */
export function whyUnserved(
  service: Service,
  input: Refusing,
  isIts: (refusal: Refusal) => boolean = () => true,
): readonly Reason[] {
  const { table, overCap } = input
  const lack = [...overCap].find(each => each.service.key === service.key)
  if (lack !== undefined) return [obstacle(overCapText(lack))]
  const held = table.services.get(service.key)
  if (held !== undefined)
    return held.refusals.filter(isIts).map(refusal => refusedReason(service.key, refusal, input))
  return [ofOtherProxy(service)]
}

function obstacle(text: string): Reason {
  return { text, kind: 'obstacle' }
}

function overCapText({ refusal }: RefusedService): string {
  return `${refusal.object} is not served: it ${refusal.reason}`
}

function refusedReason(service: string, refusal: Refusal, { refusedSince, wallMs }: Refusing): Reason {
  return obstacle(refusedText(service, refusal, sinceText(refusedSince?.(refusal), wallMs)))
}

export function refusedText(service: string, { field, value, reason }: Refusal, since = ''): string {
  return `refused${since}: ${service} requests ${value} (${field}): ${reason}`
}

/** Gives the list of endpoints that applies to the client of these outcomes. */
export function listOf(
  { frontend: { route } }: Caught,
  endpoints: readonly ExplainedEndpoint[],
  outcomes: readonly Outcome[],
): 'cluster' | 'local' {
  switch (route.kind) {
    case 'reject':
    case 'external-cluster':
      return 'cluster'
    case 'drop':
      return 'local'
    case 'internal':
      return route.over
    case 'external-local': {
      // Pods and processes of this node reach all endpoints.
      const isLocal = new Set(endpoints.flatMap(({ address, local }) => (local.isIn ? [address] : [])))
      return outcomes.some(({ destination }) => destination !== undefined && !isLocal.has(destination))
        ? 'cluster'
        : 'local'
    }
  }
}

/** Counts the endpoints that are out, by reason: `2 of 3 are not ready`. Empty when all are in. */
export function outText(endpoints: readonly ExplainedEndpoint[], list: 'cluster' | 'local'): string {
  const counts = new Map<string, number>()
  for (const { [list]: verdict } of endpoints)
    if (!verdict.isIn) counts.set(verdict.reason, (counts.get(verdict.reason) ?? 0) + 1)
  return [...counts]
    .map(([reason, number]) => `${number} of ${endpoints.length} ${number === 1 ? 'is' : 'are'} ${reason}`)
    .join(', ')
}

/** Finds frontends without an endpoint for this client, and those that do not admit it. */
function deadEnds({ question, endpoints }: ReasonsInput, { port, frontend }: Caught): readonly Reason[] {
  const { route, sourceRanges } = frontend
  const { service, displayName: name, protocol, family } = port
  const reasons: Reason[] = []
  if (sourceRanges !== undefined && !anyContains(sourceRanges, question.from)) {
    const [client, ranges] = [formatIp(question.from), sourceRanges.map(formatCidr).join(', ')]
    reasons.push(obstacle(`not admitted: ${service} admits only ${ranges}, and ${client} is outside`))
  }
  const add = (text: string) => reasons.push({ text, kind: 'no-endpoint' })
  const isElsewhere = route.kind === 'external-local' && port.local.length === 0
  if (endpoints.length === 0) {
    const portName = name.slice(service.length + 1)
    const its = portName === '' ? `unnamed ${protocol} port` : `port ${portName}/${protocol}`
    add(`${name} has no endpoint: no EndpointSlice lists one for its ${its} in ${family}`)
  } else if (route.kind === 'reject') add(`${name} has no ready endpoint: ${outText(endpoints, 'cluster')}`)
  else if (route.kind === 'drop' || isElsewhere) {
    const out = outText(endpoints, 'local')
    add(`${name} has no usable endpoint on this node, and its traffic policy is Local: ${out}`)
  }
  if (isElsewhere && endpoints.length > 0)
    reasons.push({ text: 'Pods and processes of this node reach endpoints on other nodes', kind: 'note' })
  return reasons
}

/** Parts of EndpointSlices that the text names at most. */
const PARTS_MAX = 5

function ignoredParts({ snapshot, refusedObjects }: ReasonsInput, { port }: Caught): readonly Reason[] {
  const { service } = port
  const slices = snapshot.slices.get(service) ?? []
  const whole = refusedObjects.filter(refusal => refusal.service === service)
  const texts = [
    ...whole.map(({ object, field, value, reason }) =>
      field === '' ? `${object} is ignored: ${reason}` : `${object} is ignored: ${field} ${value}: ${reason}`,
    ),
    ...slices.flatMap(({ refusals }) =>
      refusals.map(({ object, field, value, reason }) => `${object}: ignored ${field} ${value}: ${reason}`),
    ),
  ]
  const more = texts.length - PARTS_MAX
  const notes = (all: readonly string[]) => all.map((text): Reason => ({ text, kind: 'note' }))
  if (more <= 0) return notes(texts)
  const rest = `${count(more, 'more part')} of EndpointSlices of Service ${service} ${more === 1 ? 'is' : 'are'} ignored`
  return notes([...texts.slice(0, PARTS_MAX), rest])
}

/** Finds Services that have the address, and serve other ports there. */
function otherPorts({ question, table, snapshot }: ReasonsInput): readonly Reason[] {
  const { to, port: wanted, protocol } = question
  const reasons: Reason[] = []
  for (const { service, ports } of table.services.values()) {
    const here = ports.filter(({ frontends }) => frontends.some(({ ip }) => ip === to))
    if (here.length === 0) continue
    const listed = here.flatMap(({ displayName, protocol, frontends }) =>
      frontends
        .filter(({ ip }) => ip === to)
        .map(({ port }) => ({ name: displayName.slice(service.length + 1), port, protocol })),
    )
    const its = `${wanted}/${protocol.name} at ${formatIp(to)}`
    reasons.push(obstacle(`wrong port: ${service} has no port ${its}; it has ${portsText(listed)}`))
  }
  for (const service of snapshot.services.values()) {
    const isForeign = !table.services.has(service.key) && service.clusterIps.includes(to)
    if (isForeign) reasons.push(ofOtherProxy(service))
  }
  return reasons
}

/** Finds the Service that has the node port, at other addresses of the node. */
function nodePortElsewhere({ question, table, isLocal }: ReasonsInput): readonly Reason[] {
  const { to, port: wanted, protocol } = question
  const family = familyOf(to)
  const nodePorts = table.nodePorts[family]
  if (!isLocal || nodePorts.kind === 'all' || nodePorts.ips.includes(to)) return []
  const places = nodePorts.ips.length === 0 ? 'no address' : `${nodePorts.ips.map(formatIp).join(', ')} only`
  const reasons: Reason[] = []
  for (const { service, ports } of table.services.values())
    for (const its of ports)
      if (its.family === family && its.protocol === protocol.name && its.frontends.some(isNodePort(wanted)))
        reasons.push(
          obstacle(`another address: ${service} has node port ${wanted} at ${places} (--nodeport-addresses)`),
        )
  return reasons
}

function isNodePort(wanted: number) {
  return ({ ip, port }: Frontend) => ip === undefined && port === wanted
}

function ofOtherProxy({ key, proxyName }: Pick<Service, 'key' | 'proxyName'>): Reason {
  const its =
    proxyName === undefined
      ? 'the unnamed proxy serves'
      : `the proxy ${proxyName} serves (label service.kubernetes.io/service-proxy-name)`
  return obstacle(`another proxy: ${key} is one that ${its}`)
}

/** Finds Services whose request for the address or the node port was refused. */
function refusals(input: ReasonsInput): readonly Reason[] {
  const reasons = new Map<string, Reason>()
  const add = (reason: Reason) => reasons.set(reason.text, reason)
  for (const each of input.overCap) if (wants(each.service, input)) add(obstacle(overCapText(each)))
  for (const { service, refusals } of input.table.services.values())
    for (const refusal of refusals)
      if (isAbout(refusal, input, input.snapshot.services.get(service)?.ports ?? []))
        add(refusedReason(service, refusal, input))
  return [...reasons.values()]
}

/** ` since 12:03 UTC`, with the date unless it is today. */
function sinceText(since: RefusedSince | undefined, wallMs: number): string {
  if (since === undefined) return ''
  const [day = '', time = ''] = new Date(since.wallMs).toISOString().split('T')
  const isToday = new Date(wallMs).toISOString().startsWith(day)
  return ` since ${isToday ? '' : `${day} `}${time.slice(0, 5)} UTC${since.orEarlier ? ' or earlier' : ''}`
}

/** Tests whether the packet is for an address or a node port of the Service. */
function wants(
  { clusterIps, externalIps, loadBalancerIps, ports }: Service,
  { question, isLocal }: ReasonsInput,
): boolean {
  const { to, port, protocol } = question
  if (clusterIps.includes(to)) return true
  // Others may have other ports of these.
  if ([externalIps, loadBalancerIps].some(ips => ips.includes(to)) && hasPort(ports, question)) return true
  return isLocal && ports.some(its => its.nodePort === port && its.protocol === protocol.name)
}

function hasPort(ports: Service['ports'], { port, protocol }: Question): boolean {
  return ports.some(its => its.port === port && its.protocol === protocol.name)
}

/**
 * Tests whether a refusal is about this packet. A refusal names an address, for all ports of the Service, an address
 * with its port, or a node port; the latter two carry their protocol.
 */
function isAbout({ value }: Refusal, { question, isLocal }: ReasonsInput, ports: Service['ports']): boolean {
  const { to, port, protocol } = question
  const [place = '', its = protocol.name] = value.split('/')
  if (its !== protocol.name) return false
  return (
    (sameIp(place, to) && hasPort(ports, question)) ||
    place === formatIpPort(to, port) ||
    (isLocal && place === `${port}`)
  )
}

function sameIp(text: string, ip: Ip): boolean {
  const its = parseIp(text)
  return its !== undefined && familyOf(its) === familyOf(ip) && its === ip
}
