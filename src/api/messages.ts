import { Pauses, type Steps } from '../base/clock.ts'
import { compareIps, FAMILIES, type Family, familyOf, formatCidr, formatIp, type Ip } from '../base/ip.ts'
import { isSame } from '../model/fields.ts'
import type {
  Backend,
  Frontend,
  FrontendKind,
  PortFrontends,
  Route,
  ServiceFrontends,
} from '../model/frontend.ts'
import { targetKey } from '../model/parse-service.ts'
import { positionOf } from '../model/port-endpoints.ts'
import type { Service, ServicePortSpec, SliceList } from '../model/service.ts'
import type { MessageOf } from '../wire/protobuf/table.ts'
import { localv1 } from './schema.ts'

type EndpointMessage = MessageOf<typeof localv1.Endpoint>
type PortName = MessageOf<typeof localv1.PortName>

/** The endpoints that this node may send the Service's connections to, by key; with `only`, those of these addresses. */
export function* endpointsOfService(
  view: ServiceView,
  only?: ReadonlySet<Ip>,
): Steps<ReadonlyMap<string, EndpointMessage>> {
  const terms = termsOf(view.service)
  const drafts = yield* draftsOf(view.frontends, only)
  const hostnames = yield* hostnamesOf(view.slices, drafts)
  const endpoints = new Map<string, EndpointMessage>()
  const pauses = new Pauses()
  for (const [ip, draft] of drafts) {
    const hostname = hostnames.get(ip)
    for (const overrides of variantsOf(draft, terms))
      endpoints.set(keyOf(ip, overrides), endpointMessage(terms, draft, { ip, hostname, overrides }))
    if (pauses.due()) yield
  }
  return endpoints
}

export function* endpointKeys(view: ServiceView, only?: ReadonlySet<Ip>): Steps<Set<string>> {
  const terms = termsOf(view.service)
  const keys = new Set<string>()
  const pauses = new Pauses()
  for (const [ip, draft] of yield* draftsOf(view.frontends, only)) {
    for (const overrides of variantsOf(draft, terms)) keys.add(keyOf(ip, overrides))
    if (pauses.due()) yield
  }
  return keys
}

function keyOf(ip: Ip, overrides: readonly PortName[]): string {
  return `${formatIp(ip)}${overrides.map(({ Name = '', Port }) => `,${Name}=${Port}`).join('')}`
}

/** The fields of the Service object that concern all of its endpoints. */
interface EndpointTerms {
  /** Target ports by the name of the service port. */
  readonly targets: ReadonlyMap<string, number | string>
  /** A policy keeps some traffic on the node. */
  readonly scoped: boolean
}

function termsOf(service: Service): EndpointTerms {
  const { ports, internalTrafficPolicy, externalTrafficPolicy } = service
  return {
    targets: new Map(ports.map(port => [port.name, targetOf(service, port)])),
    scoped: internalTrafficPolicy === 'Local' || externalTrafficPolicy === 'Local',
  }
}

interface Particulars {
  readonly ip: Ip
  readonly hostname: string | undefined
  readonly overrides: readonly PortName[]
}

function endpointMessage({ scoped }: EndpointTerms, draft: EndpointDraft, its: Particulars): EndpointMessage {
  const { ip, hostname, overrides } = its
  const { local, internal, external } = draft
  const address = [formatIp(ip)]
  return {
    Hostname: hostname,
    IPs: familyOf(ip) === 'IPv4' ? { V4: address } : { V6: address },
    Local: local || undefined,
    PortOverrides: overrides.length === 0 ? undefined : overrides,
    Scopes: scoped ? { Internal: internal || undefined, External: external || undefined } : undefined,
  }
}

/**
 * The ports that are not the ones the Service names, once for each endpoint that has the address: pods in the network of
 * their node share it, and differ in nothing but their ports.
 */
function variantsOf({ ports }: EndpointDraft, { targets }: EndpointTerms): readonly (readonly PortName[])[] {
  const lists = [...ports].map(([name, numbers]) => ({ name, numbers: [...numbers] }))
  const count = Math.max(1, ...lists.map(({ numbers }) => numbers.length))
  const variants: PortName[][] = []
  for (let index = 0; index < count; index++) {
    const overrides: PortName[] = []
    for (const { name, numbers } of lists) {
      const port = numbers[index] ?? numbers[0] ?? 0
      if (port !== targets.get(name)) overrides.push({ Name: name || undefined, Port: port })
    }
    variants.push(overrides)
  }
  return variants
}

/** An address behind a Service, with all that its lists say about it. */
interface EndpointDraft {
  readonly local: boolean
  internal: boolean
  external: boolean
  /** Port numbers by the name of the service port, mostly one. */
  readonly ports: Map<string, Set<number>>
}

/** All addresses behind a Service; where `only` is given those, which costs their number and not the Service's. */
export function* draftsOf(
  frontends: ServiceFrontends,
  only: ReadonlySet<Ip> | undefined,
): Steps<ReadonlyMap<Ip, EndpointDraft>> {
  const drafts = new Map<Ip, EndpointDraft>()
  for (const { name, ...lists } of usesOf(frontends))
    for (const scope of ['internal', 'external'] as const) {
      const pauses = new Pauses()
      for (const backend of among(lists[scope], only)) {
        take(drafts, scope, { name, backend })
        if (pauses.due()) yield
      }
    }
  return drafts
}

/** The back ends of a list, sorted by address, that have one of the addresses. */
function* among(list: readonly Backend[], only: ReadonlySet<Ip> | undefined): Iterable<Backend> {
  if (only === undefined) {
    yield* list
    return
  }
  for (const ip of only) {
    let index = positionOf(list, ip)
    for (let backend = list[index]; backend?.ip === ip; backend = list[index]) {
      yield backend
      index++
    }
  }
}

interface Found {
  readonly name: string | undefined
  readonly backend: Backend
}

function take(
  drafts: Map<Ip, EndpointDraft>,
  scope: 'internal' | 'external',
  { name, backend: { ip, port, local } }: Found,
): void {
  const draft = drafts.get(ip) ?? { local, internal: false, external: false, ports: new Map() }
  drafts.set(ip, draft)
  draft[scope] = true
  if (name !== undefined) draft.ports.set(name, (draft.ports.get(name) ?? new Set()).add(port))
}

/**
 * Finds the hostname of each address: the first slice with a name for it counts. Walks the names of each slice, or the
 * addresses if they are fewer.
 */
export function* hostnamesOf(
  slices: SliceList,
  addresses: ReadonlyMap<Ip, unknown>,
): Steps<ReadonlyMap<Ip, string>> {
  const found = new Map<Ip, string>()
  for (const { hostnames, endpoints } of slices) {
    if (hostnames === undefined) continue
    for (const ip of addresses.size < endpoints.length ? addresses.keys() : Object.keys(hostnames)) {
      const hostname = hostnames[ip]
      if (hostname !== undefined && !found.has(ip)) found.set(ip, hostname)
    }
    yield
  }
  return found
}

/** The back ends of one port of a Service in one family, or of its whole addresses. Both lists are sorted. */
interface PortUses {
  /** The key is the same in each version of the Service. */
  readonly key: string
  /** The name of the service port; undefined behind whole addresses, which keep ports. */
  readonly name: string | undefined
  /** Back ends behind the ClusterIP. */
  readonly internal: readonly Backend[]
  /** Back ends behind every other address. */
  readonly external: readonly Backend[]
}

const NO_BACKENDS: readonly Backend[] = []

function usesOf({ ports, wholes = [] }: ServiceFrontends): readonly PortUses[] {
  return [
    ...ports.map(usesOfPort),
    ...wholes.map(whole => ({
      key: whole.family,
      name: undefined,
      internal: NO_BACKENDS,
      external: backendsOf(whole.route, whole),
    })),
  ]
}

function usesOfPort(port: PortFrontends): PortUses {
  const isInternal = ({ kind }: Frontend) => kind === 'ClusterIP'
  const internal = port.frontends.find(isInternal)?.route
  const external = port.frontends.find(frontend => !isInternal(frontend))?.route
  return {
    key: port.key,
    name: port.displayName.slice(port.service.length + 1),
    internal: backendsOf(internal, port),
    external: backendsOf(external, port),
  }
}

function backendsOf(
  route: Route | undefined,
  lists: Pick<PortFrontends, 'cluster' | 'local'>,
): readonly Backend[] {
  switch (route?.kind) {
    case undefined:
    case 'reject':
    case 'drop':
      return NO_BACKENDS
    case 'internal':
      return route.over === 'local' ? lists.local : lists.cluster
    case 'external-cluster':
      return lists.cluster
    case 'external-local':
      return lists.local
  }
}

/**
 * Finds the addresses whose endpoint messages may differ between two views of a Service, because a back end or a
 * hostname differs. Undefined where the views differ in something that concerns all. Compares each back end, and makes
 * no message.
 */
export function* changedAddresses(from: ServiceView, to: ServiceView): Steps<ReadonlySet<Ip> | undefined> {
  if (from.service !== to.service && !isSameTerms(from, to)) return undefined
  const [before, after] = [usesOf(from.frontends), usesOf(to.frontends)]
  if (before.length !== after.length) return undefined
  const changed = new Set<Ip>()
  for (const [index, now] of after.entries()) {
    const old = before[index]
    if (old?.key !== now.key) return undefined
    yield* addOtherBackends(changed, old.internal, now.internal)
    // One list is mostly behind all addresses of a port.
    if (old.external !== old.internal || now.external !== now.internal)
      yield* addOtherBackends(changed, old.external, now.external)
  }
  yield* addRenamed(changed, from.slices, to.slices)
  return changed
}

function isSameTerms(from: ServiceView, to: ServiceView): boolean {
  const [before, after] = [termsOf(from.service), termsOf(to.service)]
  return before.scoped === after.scoped && isSame([...before.targets], [...after.targets])
}

function addOtherBackends(changed: Set<Ip>, from: readonly Backend[], to: readonly Backend[]): Steps<void> {
  return inPairs(from, to, {
    order: (a, b) => (a.ip === b.ip ? a.port - b.port : compareIps(a.ip, b.ip)),
    visit(a, b) {
      const ip = a?.ip ?? b?.ip
      if (ip !== undefined && (a?.ip !== b?.ip || a?.local !== b?.local)) changed.add(ip)
    },
  })
}

function addRenamed(changed: Set<Ip>, from: SliceList, to: SliceList): Steps<void> {
  return inPairs(from, to, {
    order: (a, b) => (a.key === b.key ? 0 : a.key < b.key ? -1 : 1),
    visit(a, b) {
      const [old, now] = [a?.hostnames, b?.hostnames]
      if (old === now) return
      for (const names of [old, now]) for (const ip in names) if (old?.[ip] !== now?.[ip]) changed.add(ip)
    },
  })
}

interface Pairing<T> {
  readonly order: (a: T, b: T) => number
  /** Gets two items of the same key, or one without a counterpart. */
  readonly visit: (from: T | undefined, to: T | undefined) => void
}

/** Walks two sorted lists, neither of which has a key twice. */
function* inPairs<T>(from: readonly T[], to: readonly T[], { order, visit }: Pairing<T>): Steps<void> {
  if (from === to) return
  let [left, right] = [0, 0]
  const pauses = new Pauses()
  while (left < from.length || right < to.length) {
    const [a, b] = [from[left], to[right]]
    const first = a === undefined ? 1 : b === undefined ? -1 : order(a, b)
    visit(first <= 0 ? a : undefined, first >= 0 ? b : undefined)
    if (first <= 0) left++
    if (first >= 0) right++
    if (pauses.due()) yield
  }
}

type ServiceMessage = MessageOf<typeof localv1.Service>
type PortMapping = MessageOf<typeof localv1.PortMapping>
type IpFilter = MessageOf<typeof localv1.IPFilter>
type IpSet = MessageOf<typeof localv1.IPSet>

/** A Service as this node sees it: its object, what was resolved from it, and its slices. */
export interface ServiceView {
  readonly service: Service
  readonly frontends: ServiceFrontends
  readonly slices: SliceList
}

/** A number, or the name of a port that each pod has a number of its own for. */
function targetOf(service: Service, { name, protocol, port }: ServicePortSpec): number | string {
  return service.details?.targetPorts[targetKey(name, protocol)] ?? port
}

/** Tests whether this node serves an address of the Service: nothing leads to it otherwise. */
export function isReached({ ports, wholes = [] }: ServiceFrontends): boolean {
  return ports.some(({ frontends }) => frontends.length > 0) || wholes.some(({ ips }) => ips.length > 0)
}

/** Tests whether serviceMessage() gives the same for both, as it does when only endpoints differ; makes neither. */
export function isSameMessage(a: ServiceView, b: ServiceView): boolean {
  return a.service === b.service && isSame(reachOf(a.frontends), reachOf(b.frontends))
}

/** All that serviceMessage() reads of frontends. */
function reachOf({ ports, wholes = [], healthCheck }: ServiceFrontends): readonly unknown[] {
  return [
    healthCheck?.port,
    ports.map(({ key, frontends }) => [
      key,
      ...frontends.flatMap(({ kind, ip, sourceRanges }) => [kind, ip, sourceRanges === undefined]),
    ]),
    wholes.map(({ ips }) => ips),
  ]
}

/** The addresses of a kind that lead to at least one port of the Service. */
function addressesOf({ ports }: ServiceFrontends, wanted: FrontendKind): readonly Ip[] {
  const frontends = ports.flatMap(port => port.frontends)
  return [...new Set(frontends.flatMap(({ kind, ip }) => (kind === wanted ? (ip ?? []) : [])))]
}

/** ClusterIPs and ExternalIPs are always there, empty where there are none: back ends in Go read them without a check. */
export function serviceMessage(view: ServiceView): ServiceMessage {
  const { service } = view
  const { wholes = [], healthCheck } = view.frontends
  const external = [...wholes.flatMap(({ ips }) => ips), ...addressesOf(view.frontends, 'ExternalIP')]
  const balanced = addressesOf(view.frontends, 'LoadBalancerIP')
  const { details, affinityTimeoutS } = service
  const [namespace, name] = service.key.split('/')
  return {
    Namespace: namespace,
    Name: name,
    Type: service.type,
    IPs: {
      ClusterIPs: ipSet(addressesOf(view.frontends, 'ClusterIP')),
      ExternalIPs: ipSet(external),
      Headless: service.headless !== undefined || undefined,
      LoadBalancerIPs: balanced.length === 0 ? undefined : ipSet(balanced),
    },
    MapIP: wholes.length > 0 || undefined,
    Ports: filled(portsOf(view)),
    ExternalTrafficToLocal: service.externalTrafficPolicy === 'Local' || undefined,
    Labels: filled(details?.labels ?? {}),
    Annotations: filled(details?.annotations ?? {}),
    IPFilters: filled(filtersOf(view, balanced)),
    ClientIP: affinityTimeoutS === 0 ? undefined : { TimeoutSeconds: affinityTimeoutS },
    InternalTrafficToLocal: service.internalTrafficPolicy === 'Local' || undefined,
    HealthCheckNodePort: healthCheck?.port,
  }
}

/** Undefined where it is empty: JSON leaves it out then, as protobuf does. */
function filled<T extends object>(value: T): T | undefined {
  return Object.keys(value).length === 0 ? undefined : value
}

function ipSet(ips: readonly Ip[]): IpSet {
  return { V4: filled(textsOf(ips, 'IPv4')), V6: filled(textsOf(ips, 'IPv6')) }
}

function textsOf(ips: readonly Ip[], family: Family): readonly string[] {
  return ips.filter(ip => familyOf(ip) === family).map(formatIp)
}

function portsOf({ service, frontends }: ServiceView): readonly PortMapping[] {
  const served = new Map<string, readonly Frontend[]>()
  for (const port of frontends.ports) {
    const key = `${port.displayName}/${port.protocol}`
    served.set(key, [...(served.get(key) ?? []), ...port.frontends])
  }
  return service.ports.flatMap(port => {
    const its = served.get(
      `${port.name === '' ? service.key : `${service.key}:${port.name}`}/${port.protocol}`,
    )
    return its === undefined ? [] : [portMapping(service, port, its)]
  })
}

function portMapping(service: Service, spec: ServicePortSpec, frontends: readonly Frontend[]): PortMapping {
  const { name, protocol, port, nodePort } = spec
  const target = targetOf(service, spec)
  return {
    Name: name || undefined,
    Protocol: localv1.Protocol[protocol],
    Port: port,
    NodePort: frontends.some(({ kind }) => kind === 'NodePort') ? nodePort : undefined,
    TargetPort: typeof target === 'number' ? target : undefined,
    TargetPortName: typeof target === 'string' ? target : undefined,
  }
}

/** The source ranges of the load-balancer addresses of a family, where they are restricted. */
function filtersOf({ service, frontends }: ServiceView, ips: readonly Ip[]): readonly IpFilter[] {
  if (service.sourceRanges.length === 0 || ips.length === 0) return []
  const guarded = new Set<Ip>()
  for (const port of frontends.ports)
    for (const { kind, ip, sourceRanges } of port.frontends)
      if (kind === 'LoadBalancerIP' && ip !== undefined && sourceRanges !== undefined) guarded.add(ip)
  return FAMILIES.flatMap(family => {
    const targets = [...guarded].filter(ip => familyOf(ip) === family)
    const ranges = service.sourceRanges.filter(({ ip }) => familyOf(ip) === family)
    return targets.length === 0 ? [] : [{ TargetIPs: ipSet(targets), SourceRanges: ranges.map(formatCidr) }]
  })
}
