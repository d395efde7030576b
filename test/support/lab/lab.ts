import { drawsToMeet } from '../draws.ts'
import { Patience } from '../patience.ts'
import { canonicalAddress, endpointText, POD_GATEWAYS } from './address.ts'
import { decodeSighting, encodeProbe, type ProbeProtocol, type Sighting } from './probe.ts'
import { closeTopology, openTopology, type Topology } from './topology.ts'
import {
  type ClientOptions,
  repeatedSyns,
  type Servers,
  startClient,
  startServers,
  type TrafficClient,
} from './traffic.ts'

export type Place = 'outside' | 'pod' | 'node'

/** Connections that differ in nothing but the source port. */
export interface Flow {
  readonly from: Place
  readonly source: string
  readonly protocol: ProbeProtocol
  readonly destination: string
  readonly port: number
  /** How many connections to open; the default of the trace when absent. */
  readonly tries?: number
}

/** Why the probes of a flow ended where they did. */
export interface Outcome {
  readonly verdict: /** Arrived at a pod with another destination. */
    | 'DNAT'
    /** An ICMP port unreachable came back. */
    | 'REJECT'
    /** Nothing came of it. */
    | 'DROP'
    /** Arrived untouched, or was answered by the closed TCP port of the node that it was sent to. */
    | 'PASS'
    /** More than one of these. */
    | 'MIXED'
  /** By `address:port`, with the number of connections. */
  readonly endpoints: ReadonlyMap<string, number>
  /** Source addresses of what arrived translated. */
  readonly sources: ReadonlySet<string>
  /** The same by endpoint. */
  readonly sourcesAt: ReadonlyMap<string, ReadonlySet<string>>
  readonly sent: number
  readonly lost: number
  readonly badChecksums: number
}

interface LabOptions {
  /** Further addresses of the node. */
  readonly alsoLocal?: readonly string[]
}

export interface TraceOptions {
  /** Connections of flows that do not say how many. */
  readonly tries?: number
  /** Resolves when processes of the node have handed on what the kernel gave them; where none takes part, nobody waits. */
  readonly settled?: () => Promise<void>
}

/** More at once could overflow the kernel's queue of received packets (net.core.netdev_max_backlog, 1000). */
const WINDOW = 256
/** They meet each of up to three endpoints that are taken at random. */
const DEFAULT_TRIES = drawsToMeet(3)
const FENCE_LIMIT_MS = 30_000
const FENCE_AGAIN_MS = 1_000
const FENCE_OUTSIDE = '203.0.113.254'
const FENCE_POD = '10.255.255.250'

/** A node, its pods and the outside, in network namespaces of their own: see topology.ts. */
export class Lab {
  readonly topology: Topology
  readonly #sightings: Sightings
  #ident = 0x10000000

  private constructor(topology: Topology, sightings: Sightings) {
    this.topology = topology
    this.#sightings = sightings
  }

  /** Moves this process into a network namespace of its own, which becomes the node. */
  static async start(options: LabOptions = {}): Promise<Lab> {
    const sightings = new Sightings()
    const topology = await openTopology(options.alsoLocal ?? [], (place, packet) =>
      sightings.add(place, packet),
    )
    return new Lab(topology, sightings)
  }

  async close(): Promise<void> {
    await closeTopology(this.topology)
  }

  /** See startServers in traffic.ts. */
  servers(endpoints: readonly string[]): Promise<Servers> {
    return startServers(this.topology, endpoints)
  }

  /** See startClient in traffic.ts. */
  client(options: ClientOptions): TrafficClient {
    return startClient(this.topology, options)
  }

  /** See repeatedSyns in traffic.ts. */
  repeatedSyns(): number {
    return repeatedSyns(this.topology)
  }

  /** Sends the first packets of new connections, and tells for each flow what came of them. */
  async trace(flows: readonly Flow[], options: TraceOptions = {}): Promise<readonly Outcome[]> {
    this.#sightings.clear()
    this.topology.node.forgetConnections()
    await this.topology.node.sync()
    const probes = flows.flatMap(flow => this.#probes(flow, flow.tries ?? options.tries ?? DEFAULT_TRIES))
    for (let at = 0; at < probes.length; at += WINDOW)
      await this.#send(probes.slice(at, at + WINDOW), options)
    const byFlow = new Map<Flow, NumberedProbe[]>(flows.map(flow => [flow, []]))
    for (const probe of probes) byFlow.get(probe.flow)?.push(probe)
    return flows.map(flow =>
      outcomeOf(
        flow,
        (byFlow.get(flow) ?? []).map(({ ident }) => this.#sightings.of(ident)),
      ),
    )
  }

  #probes(flow: Flow, tries: number): NumberedProbe[] {
    return Array.from({ length: tries }, () => ({ flow, ident: this.#next() }))
  }

  #next(): number {
    this.#ident += 1
    return this.#ident
  }

  /** Sends in order, and returns when everything that will ever come of it has been seen. */
  async #send(probes: readonly NumberedProbe[], { settled }: TraceOptions): Promise<void> {
    const fences: Array<Promise<void>> = []
    for (const place of ['outside', 'pod', 'node'] as const) {
      const own = probes.filter(({ flow }) => flow.from === place)
      if (own.length === 0) continue
      const fence = this.#next()
      const pipe = this.#pipe(place)
      pipe.send([...own.map(encode), encodeFence(place, fence)])
      // A machine that is busy enough drops packets between namespaces, and then a fence, too.
      const again = setInterval(() => pipe.send([encodeFence(place, fence)]), FENCE_AGAIN_MS)
      fences.push(this.#sightings.wait(fence, FENCE_LIMIT_MS).finally(() => clearInterval(again)))
    }
    // All ends share one processor and so one queue: what was sent before a fence has been handled before it arrives.
    await Promise.all(fences)
    await settled?.()
    const { outside, pods, node } = this.topology
    await Promise.all([outside.sync(), pods.sync(), node.sync()])
  }

  #pipe(place: Place) {
    return place === 'pod' ? this.topology.pods : this.topology[place]
  }
}

interface NumberedProbe {
  readonly flow: Flow
  readonly ident: number
}

function encode({ flow, ident }: NumberedProbe): Buffer {
  return encodeProbe({ ...flow, destinationPort: flow.port, sourcePort: 1024 + (ident % 60_000), ident })
}

/** A datagram that goes as many hops as any probe of the same origin, and that no rule of a test is about. */
function encodeFence(place: Place, ident: number): Buffer {
  const source = place === 'outside' ? FENCE_OUTSIDE : place === 'pod' ? FENCE_POD : (POD_GATEWAYS[0] ?? '')
  const destination = place === 'pod' ? FENCE_OUTSIDE : FENCE_POD
  return encodeProbe({ source, destination, protocol: 'UDP', sourcePort: 9, destinationPort: 9, ident })
}

interface Seen extends Sighting {
  readonly place: keyof Topology
}

/** What was seen since the last clear, by probe. */
class Sightings {
  readonly #seen = new Map<number, Seen[]>()
  readonly #waiting = new Map<number, () => void>()

  clear(): void {
    this.#seen.clear()
  }

  add(place: keyof Topology, packet: Buffer): void {
    const sighting = decodeSighting(packet)
    if (sighting === undefined) return
    const list = this.#seen.get(sighting.ident)
    if (list === undefined) this.#seen.set(sighting.ident, [{ ...sighting, place }])
    else list.push({ ...sighting, place })
    this.#waiting.get(sighting.ident)?.()
  }

  of(ident: number): readonly Seen[] {
    return this.#seen.get(ident) ?? []
  }

  wait(ident: number, limitMs: number): Promise<void> {
    const patience = new Patience(limitMs)
    return new Promise((resolve, reject) => {
      const timer = setInterval(() => {
        if (!patience.isOver) return
        clearInterval(timer)
        reject(new Error(`the laboratory lost its fence packet ${ident}: ${patience}`))
      }, FENCE_AGAIN_MS)
      this.#waiting.set(ident, () => {
        clearInterval(timer)
        this.#waiting.delete(ident)
        resolve()
      })
    })
  }
}

function outcomeOf(flow: Flow, tries: ReadonlyArray<readonly Seen[]>): Outcome {
  const endpoints = new Map<string, number>()
  const sourcesAt = new Map<string, Set<string>>()
  const kinds = new Map<Exclude<Outcome['verdict'], 'MIXED'>, number>()
  let badChecksums = 0
  for (const seen of tries) {
    const kind = verdictOf(flow, seen)
    kinds.set(kind, (kinds.get(kind) ?? 0) + 1)
    if (seen.some(({ checksumRight }) => !checksumRight)) badChecksums++
    for (const arrival of kind === 'DNAT' ? seen.filter(({ kind }) => kind === 'probe') : []) {
      const endpoint = endpointText(arrival.destination, arrival.port)
      endpoints.set(endpoint, (endpoints.get(endpoint) ?? 0) + 1)
      sourcesAt.set(endpoint, (sourcesAt.get(endpoint) ?? new Set()).add(arrival.source))
    }
  }
  const [only] = kinds.keys()
  const verdict = kinds.size === 1 && only !== undefined ? only : 'MIXED'
  const sources = new Set([...sourcesAt.values()].flatMap(one => [...one]))
  return {
    verdict,
    endpoints,
    sources,
    sourcesAt,
    sent: tries.length,
    lost: kinds.get('DROP') ?? 0,
    badChecksums,
  }
}

function verdictOf(flow: Flow, seen: readonly Seen[]): Exclude<Outcome['verdict'], 'MIXED'> {
  const untouched = (one: Seen) =>
    one.destination === canonicalAddress(flow.destination) && one.port === flow.port
  const arrivals = seen.filter(({ kind }) => kind === 'probe')
  if (arrivals.some(one => !untouched(one))) return 'DNAT'
  // What rejects at INPUT lets the node's own probe be seen on lo first. A closed TCP port answers with a reset instead.
  if (flow.protocol === 'TCP' && seen.some(({ kind }) => kind === 'refused')) return 'REJECT'
  // A local UDP port that is closed answers like a reject, but only after the probe was seen on lo.
  if (arrivals.length > 0 || seen.some(({ kind }) => kind === 'reset' || kind === 'icmp')) return 'PASS'
  return seen.length > 0 ? 'REJECT' : 'DROP'
}
