import { stepsOver } from '../base/clock.ts'
import { append } from '../base/collections.ts'
import type { Family, Ip } from '../base/ip.ts'
import type { Octets } from '../base/octets.ts'
import { type FlowProtocol, socketKey } from '../kernel/conntrack/flow.ts'
import type { Frontend, FrontendTable, PortFrontends, ServiceFrontends } from '../model/frontend.ts'
import type { EndpointConditions, ServiceKey, SliceList } from '../model/service.ts'
import type { Snapshot } from '../model/snapshot.ts'

/** A Snapshot, and what was computed from it or from one shortly before it. */
export interface View {
  readonly snapshot: Snapshot
  readonly table: FrontendTable
}

/** The facts of one Service that decide about its flows. Immutable values of a View, so keeping one costs nothing. */
export interface Version {
  readonly frontends: ServiceFrontends | undefined
  readonly slices: SliceList
  readonly drainMs: number | undefined
}

/** A check concerns flows that are under way, or attempts of TCP that no endpoint has answered. */
export type FlowPhase = 'under way' | 'half-open'

/** One port of a Service in one family, with the flows that are fine there. */
export interface FlowPort {
  readonly service: ServiceKey
  readonly family: Family
  readonly protocol: FlowProtocol
  /** Addresses at which this node catches it: ClusterIP, external and load-balancer addresses. */
  readonly sockets: readonly FlowSocket[]
  /** 0 for none. */
  readonly nodePort: number
  /**
   * The endpoints that may answer (socketKey). UDP: those that serve; policies, topology and termination decide only about
   * new flows. TCP and SCTP: all that are listed, because a pod that no longer serves may finish existing connections.
   * Half-open: those that are ready or serve, because only they take new connections.
   */
  readonly endpoints: ReadonlySet<Octets>
  /** The drain time of TCP ports; undefined for others. */
  readonly drainMs: number | undefined
}

export interface FlowSocket {
  readonly ip: Ip
  readonly port: number
}

const NO_SLICES: SliceList = []

export function versionOf({ snapshot, table }: View, key: ServiceKey): Version {
  return {
    frontends: table.services.get(key),
    slices: snapshot.slices.get(key) ?? NO_SLICES,
    drainMs: snapshot.services.get(key)?.tcpDrainMs,
  }
}

/** Tests whether flows of the Service are ever checked: it has a UDP or SCTP port, or connections that are to be cut. */
export function isWatched({ frontends, drainMs }: Version): boolean {
  const ports = frontends?.ports ?? []
  return ports.some(({ protocol }) => protocol !== 'TCP' || drainMs !== undefined)
}

/** Tests whether the endpoints of a TCP port have changed: connection attempts may go to one that is gone. */
export function hasOtherTcpEndpoints(before: Version, after: Version): boolean {
  return before.slices !== after.slices && (before.frontends?.ports ?? []).some(isTcp)
}

/** `isReadyOnly` leaves out endpoints that serve without being ready, except where a policy Local uses them. */
export function flowPorts(
  version: Version,
  phase: FlowPhase = 'under way',
  isReadyOnly = false,
): readonly FlowPort[] {
  const ports: FlowPort[] = []
  for (const port of version.frontends?.ports ?? []) {
    const { protocol } = port
    const isMeant = phase === 'half-open' ? isTcp(port) : !isTcp(port) || version.drainMs !== undefined
    if (!isMeant) continue
    ports.push(flowPortOf(version, port, { protocol, phase, isReadyOnly }))
  }
  return ports
}

function isTcp({ protocol }: PortFrontends): boolean {
  return protocol === 'TCP'
}

interface FlowKind {
  readonly protocol: FlowProtocol
  readonly phase: FlowPhase
  readonly isReadyOnly: boolean
}

function flowPortOf(version: Version, port: PortFrontends, kind: FlowKind): FlowPort {
  const sockets: FlowSocket[] = []
  let nodePort = 0
  for (const { ip, port: number } of port.frontends) {
    if (ip === undefined) nodePort = number
    else sockets.push({ ip, port: number })
  }
  const { protocol } = kind
  const drainMs = protocol === 'TCP' ? version.drainMs : undefined
  return {
    service: port.service,
    family: port.family,
    protocol,
    sockets,
    nodePort,
    endpoints: endpointsOf(version.slices, port, kind),
    drainMs,
  }
}

/** The endpoints of a port that may answer: one such entry of an address is enough. */
function endpointsOf(slices: SliceList, port: PortFrontends, kind: FlowKind): ReadonlySet<Octets> {
  const found = new Set<Octets>()
  const name = nameOf(port)
  for (const slice of slices) {
    if (slice.family !== port.family) continue
    for (const its of slice.ports) {
      if (its.name !== name || its.protocol !== kind.protocol) continue
      for (const { ip, traits } of slice.endpoints)
        if (mayAnswer(traits.conditions, kind) || isFallback(port, kind, { ip, port: its.port }))
          found.add(socketKey(ip, its.port))
    }
  }
  return found
}

function mayAnswer({ ready, serving }: EndpointConditions, kind: FlowKind): boolean {
  const { protocol, phase, isReadyOnly } = kind
  if (phase === 'half-open') return ready || (serving && !isReadyOnly)
  return protocol !== 'UDP' || serving
}

/** A policy Local sends to an endpoint of this node that terminates while others are ready elsewhere. */
function isFallback({ local }: PortFrontends, { isReadyOnly }: FlowKind, { ip, port }: FlowSocket): boolean {
  return isReadyOnly && local.some(each => each.ip === ip && each.port === port)
}

function nameOf({ displayName, service }: PortFrontends): string {
  return displayName === service ? '' : displayName.slice(service.length + 1)
}

export interface FlowCheck {
  readonly current: readonly FlowPort[]
  /** The ports of the Service since the last complete pass, to recognize the flows that it made then. */
  readonly former: readonly FlowPort[]
}

export type Looks = Map<ServiceKey, FlowCheck>

/** Services that are to be checked, with their versions since the last pass that got through. */
export type Pending = Map<ServiceKey, readonly Version[]>

/** Maximum number of Services to check one by one. */
const PENDING_MAX = 5_000
/** Maximum number of versions of one Service between two passes; the second oldest is dropped first. */
const VERSIONS_MAX = 32

/** Adds to what is known of a Service; false, and nothing is added, when there are too many others. */
export function remember(pending: Pending, key: ServiceKey, versions: readonly Version[]): boolean {
  const known = pending.get(key)
  if (known === undefined && pending.size >= PENDING_MAX) return false
  const all = [...(known ?? []), ...versions]
  pending.set(key, all.length > VERSIONS_MAX ? [...all.slice(0, 1), ...all.slice(1 - VERSIONS_MAX)] : all)
  return true
}

/** Undefined when nothing that changed can have left a flow behind: for example, endpoints were added to others. */
export function lookAt(former: readonly Version[], now: Version): FlowCheck | undefined {
  const current = flowPorts(now)
  const before = former.flatMap(version => flowPorts(version))
  return leavesFlows(before, current) ? { current, former: before } : undefined
}

/**
 * Does the work of lookAt() for connection attempts. Undefined when no TCP endpoint has gone that took new connections.
 * Cost follows the slices that changed, unless one has.
 */
export function lookAtHalfOpen(former: readonly Version[], now: Version): FlowCheck | undefined {
  const same = new Set(now.slices.filter(slice => former.every(({ slices }) => slices.includes(slice))))
  const changed = (version: Version, isReadyOnly: boolean) =>
    flowPorts(
      { ...version, slices: version.slices.filter(slice => !same.has(slice)) },
      'half-open',
      isReadyOnly,
    )
  // A pod that terminates gets no new connections beside others that are ready: its end is normal in a rollout.
  const before = former.flatMap(version => changed(version, hasReady(version)))
  if (!losesEndpoint(byPlace(before), byPlace(changed(now, false)))) return undefined
  // An endpoint that moved to another slice is still there.
  const current = flowPorts(now, 'half-open')
  return losesEndpoint(byPlace(before), byPlace(current)) ? { current, former: before } : undefined
}

export function familiesOf(pending: Pending): ReadonlySet<Family> {
  const versions = [...pending.values()].flat()
  return new Set(versions.flatMap(({ frontends }) => (frontends?.ports ?? []).map(({ family }) => family)))
}

/** The destinations of TCP connections that nothing has answered. */
export interface Attempts {
  readonly sockets: ReadonlySet<Octets>
  readonly ports: ReadonlySet<number>
}

/** Tests whether an attempt goes to a TCP port of the Service; at a node port, to any address. */
export function isAimedAt({ frontends }: Version, { sockets, ports }: Attempts): boolean {
  const isAimed = ({ ip, port }: Frontend) =>
    ip === undefined ? ports.has(port) : sockets.has(socketKey(ip, port))
  return (frontends?.ports ?? []).some(port => isTcp(port) && port.frontends.some(isAimed))
}

function hasReady({ slices }: Version): boolean {
  return slices.some(({ endpoints }) => endpoints.some(({ traits }) => traits.conditions.ready))
}

interface LooksOptions {
  readonly look: typeof lookAt
  /** Services whose present flows are checked in any case. */
  readonly due?: readonly ServiceKey[]
}

/** The Services among those that changed whose flows are to be checked. */
export function looksAt(view: View, pending: Pending, { look, due = [] }: LooksOptions) {
  const looks: Looks = new Map()
  return stepsOver(pending, {
    each([key, former]) {
      const found = look(former, versionOf(view, key))
      if (found !== undefined) looks.set(key, found)
    },
    result() {
      for (const key of due)
        if (!looks.has(key)) looks.set(key, { current: flowPorts(versionOf(view, key)), former: [] })
      return looks
    },
  })
}

/** Tests whether the kernel's rules are behind the Snapshot: flows may still begin at an endpoint that is gone there. */
export function isLagging({ table, snapshot }: View): boolean {
  return table.number !== snapshot.number
}

type Places = ReadonlyMap<Octets, readonly FlowPort[]>

function losesEndpoint(before: Places, now: Places): boolean {
  for (const [place, ports] of before) if (ports.some(port => hasLost(port, now.get(place)?.[0]))) return true
  return false
}

function leavesFlows(former: readonly FlowPort[], current: readonly FlowPort[]): boolean {
  const now = byPlace(current)
  const before = byPlace(former)
  if (losesEndpoint(before, now)) return true
  for (const [place, ports] of now) if (isNew(ports[0], before.get(place))) return true
  return false
}

/** The place, or an endpoint there, has gone. */
function hasLost(before: FlowPort, now: FlowPort | undefined): boolean {
  if (now === undefined) return before.protocol === 'UDP'
  for (const endpoint of before.endpoints) if (!now.endpoints.has(endpoint)) return true
  return false
}

/** There may be untranslated flows: there was no Service, or it had no endpoint. */
function isNew(now: FlowPort | undefined, before: readonly FlowPort[] | undefined): boolean {
  // Only SCTP associations that a rule translated are judged.
  if (now === undefined || now.protocol === 'SCTP') return false
  if (before === undefined) return true
  if (now.protocol === 'TCP') return before.some(({ drainMs }) => drainMs !== now.drainMs)
  return now.endpoints.size > 0 && before.some(({ endpoints }) => endpoints.size === 0)
}

function byPlace(ports: readonly FlowPort[]): Places {
  const found = new Map<Octets, FlowPort[]>()
  for (const port of ports) {
    const { protocol, family, nodePort } = port
    const places = port.sockets.map(socket => protocol + socketKey(socket.ip, socket.port))
    if (nodePort !== 0) places.push(`${protocol}${family}:${nodePort}`)
    for (const place of places) append(found, place, port)
  }
  return found
}
