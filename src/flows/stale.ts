import { stepsOver } from '../base/clock.ts'
import { type Family, familyOf, type Ip, isLoopback } from '../base/ip.ts'
import type { Octets } from '../base/octets.ts'
import { type Flow, type FlowProtocol, isTranslated, socketKey } from '../kernel/conntrack/flow.ts'
import type { ServiceKey } from '../model/service.ts'
import type { FlowCheck, FlowPhase, FlowPort, View } from './ports.ts'

export type Judgment =
  | { readonly kind: 'keep' }
  /** Its packets go to an address that no longer serves, or bypass the Service. */
  | { readonly kind: 'stale' }
  /** A connection to an endpoint that is gone: to be cut after so long. */
  | Draining

export interface Draining {
  readonly kind: 'drain'
  readonly service: ServiceKey
  /** The Service's address and port, and the endpoint's: all connections between them have one fate. */
  readonly between: Octets
  readonly drainMs: number
}

interface NodeAddresses {
  readonly ips: ReadonlySet<Ip>
  /** The node has further addresses, which are unknown. */
  readonly isOpen: boolean
}

interface Place {
  /** Undefined when the Service has left it. */
  port: FlowPort | undefined
  /** The endpoints that answered there since the last complete pass. */
  readonly known: Set<Octets>
  readonly isNodePort: boolean
}

const KEEP: Judgment = { kind: 'keep' }
const STALE: Judgment = { kind: 'stale' }

interface BookKind {
  readonly family: Family
  readonly protocol: FlowProtocol
  readonly phase: FlowPhase
}

/**
 * Finds the stale flows of one protocol and family. Only the present state decides, not the changes: a flow whose endpoint
 * serves is kept. Flows to other addresses and ports than those of Services are kept; where the address may not be a
 * Service's, all flows are kept but those to a former endpoint.
 */
export class RuleBook {
  readonly family: Family
  readonly protocol: FlowProtocol
  readonly phase: FlowPhase
  readonly #node: NodeAddresses
  readonly #sockets = new Map<Octets, Place>()
  readonly #nodePorts = new Map<number, Place>()
  /** Addresses of all Services at the numbers of these node ports: the rules match them first. */
  readonly #taken = new Set<Octets>()
  readonly #addresses = new Map<Ip, number[]>()

  constructor({ family, protocol, phase }: BookKind, node: NodeAddresses) {
    this.family = family
    this.protocol = protocol
    this.phase = phase
    this.#node = node
  }

  serve(port: FlowPort): void {
    for (const { ip, port: number } of port.sockets) this.#socket(ip, number).port = port
    if (port.nodePort !== 0) this.#nodePort(port.nodePort).port = port
  }

  remember(port: FlowPort): void {
    const places = port.sockets.map(({ ip, port: number }) => this.#socket(ip, number))
    if (port.nodePort !== 0) places.push(this.#nodePort(port.nodePort))
    for (const { known } of places) for (const endpoint of port.endpoints) known.add(endpoint)
  }

  /** A place at which some Service answers, checked or not. */
  take(ip: Ip, port: number): void {
    if (this.#nodePorts.has(port)) this.#taken.add(socketKey(ip, port))
  }

  get addresses(): ReadonlyMap<Ip, readonly number[]> {
    return this.#addresses
  }

  get nodePorts(): readonly number[] {
    return [...this.#nodePorts.keys()]
  }

  /** Tests whether flows to this destination are judged here at all. */
  concerns(destination: Ip, port: number): boolean {
    return this.#placeOf(destination, port) !== undefined
  }

  judge(flow: Flow): Judgment {
    const { destination, destinationPort } = flow
    const place = this.#placeOf(destination, destinationPort)
    if (place === undefined) return KEEP
    const endpoint = socketKey(flow.answerer, flow.answererPort)
    const isTold = !place.isNodePort || this.#node.ips.has(destination)
    if (this.phase === 'half-open') return isLost({ place, flow, endpoint, isTold }) ? STALE : KEEP
    if (flow.protocol === 'TCP') return judgeTcp({ place, flow, endpoint, isTold })
    // Each INIT of a client that restarts renews the entry of its former association: only deleting it helps.
    if (flow.protocol === 'SCTP' && (place.port === undefined || !flow.isDnat)) return KEEP
    return isStale({ place, flow, endpoint, isTold }) ? STALE : KEEP
  }

  #placeOf(destination: Ip, port: number): Place | undefined {
    const key = socketKey(destination, port)
    const place = this.#sockets.get(key)
    if (place !== undefined || this.#taken.has(key)) return place
    const { ips, isOpen } = this.#node
    return isOpen || ips.has(destination) ? this.#nodePorts.get(port) : undefined
  }

  #socket(ip: Ip, port: number): Place {
    const key = socketKey(ip, port)
    const found = this.#sockets.get(key)
    if (found !== undefined) return found
    const place: Place = { port: undefined, known: new Set(), isNodePort: false }
    this.#sockets.set(key, place)
    const ports = this.#addresses.get(ip)
    if (ports === undefined) this.#addresses.set(ip, [port])
    else ports.push(port)
    return place
  }

  #nodePort(port: number): Place {
    const found = this.#nodePorts.get(port)
    if (found !== undefined) return found
    const place: Place = { port: undefined, known: new Set(), isNodePort: true }
    this.#nodePorts.set(port, place)
    return place
  }
}

interface Case {
  readonly place: Place
  readonly flow: Flow
  readonly endpoint: Octets
  readonly isTold: boolean
}

function isStale({ place, flow, endpoint, isTold }: Case): boolean {
  const { port, known, isNodePort } = place
  if (port?.endpoints.has(endpoint) === true) return false
  if (port !== undefined && isTold) return true
  if (isTranslated(flow)) return known.has(endpoint)
  // No process answers at a Service's former address; at the node's own there may be one.
  return port === undefined && !isNodePort
}

/**
 * An attempt that no endpoint has answered goes to one that has left: its next SYN is to be balanced anew. Where the
 * Service has left the place, another one may have taken it, with the same endpoint.
 */
function isLost({ place: { port, known }, flow, endpoint }: Case): boolean {
  return !flow.isAnswered && known.has(endpoint) && port?.endpoints.has(endpoint) === false
}

function judgeTcp({ place, flow, endpoint, isTold }: Case): Judgment {
  const { port, known } = place
  if (port?.drainMs === undefined || !isTranslated(flow) || port.endpoints.has(endpoint)) return KEEP
  if (!isTold && !known.has(endpoint)) return KEEP
  const between = socketKey(flow.destination, flow.destinationPort) + endpoint
  return { kind: 'drain', service: port.service, between, drainMs: port.drainMs }
}

interface Judging {
  readonly looks: Iterable<FlowCheck>
  readonly view: View
  readonly phase: FlowPhase
}

/** Builds one book for each protocol and family with something to check. */
export function ruleBooks({ looks, view, phase }: Judging) {
  const books = new Map<string, RuleBook>()
  const bookOf = ({ family, protocol }: FlowPort): RuleBook => {
    const key = protocol + family
    const book = books.get(key) ?? new RuleBook({ family, protocol, phase }, addressesOf(view, family))
    books.set(key, book)
    return book
  }
  return stepsOver(looks, {
    each({ current, former }) {
      for (const port of current) bookOf(port).serve(port)
      for (const port of former) bookOf(port).remember(port)
    },
    result() {
      const all = [...books.values()]
      const ports = view.table.services.values().flatMap(service => service.ports)
      if (all.some(({ nodePorts }) => nodePorts.length > 0))
        for (const { protocol, family, frontends } of ports) {
          const book = books.get(protocol + family)
          for (const { ip, port } of frontends) if (ip !== undefined) book?.take(ip, port)
        }
      return all
    },
  })
}

/** The addresses at which NodePorts answer, as far as they are known. */
function addressesOf({ snapshot, table }: View, family: Family): NodeAddresses {
  const selected = table.nodePorts[family]
  if (selected.kind === 'only') return { ips: new Set(selected.ips), isOpen: false }
  const known = [...snapshot.localIps, ...table.node.ips]
  const ips = known.filter(ip => familyOf(ip) === family && !isLoopback(ip))
  return { ips: new Set(ips), isOpen: true }
}
