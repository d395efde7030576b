/** What the kernel has counted at one of its objects since that exists. */
export interface TrafficCount {
  /** Stands for the object as long as it exists. */
  readonly element: string
  /** `namespace/name:port/PROTOCOL/FAMILY`. */
  readonly port: string
  /** `10.0.0.1:8080`. */
  readonly endpoint: string
  readonly connections: bigint
  /** Where the kernel counts them: packets and bytes, to the endpoint and from it. */
  readonly volume?: Volume<bigint>
}

export interface Volume<N> {
  readonly packetsIn: N
  readonly packetsOut: N
  readonly bytesIn: N
  readonly bytesOut: N
}

/** Counts of one port, or one endpoint. */
export interface Traffic extends Volume<number> {
  readonly connections: number
}

interface EndpointTraffic {
  readonly port: string
  readonly endpoint: string
  readonly traffic: Traffic
}

interface Seen {
  readonly port: string
  readonly endpoint: string
  readonly traffic: Traffic
  /** The number of the read that saw it last. */
  look: number
}

/** A list that is read while it changes may leave an element out: its count is remembered for so many more reads. */
const MISSES_MAX = 2
/** Series of a port or an endpoint: of connections, and of packets and bytes in two directions each. */
const SERIES_OF_CONNECTIONS = 1
const SERIES_OF_VOLUME = 4

/**
 * What ports and endpoints have seen, from counters that begin anew with each element of the kernel's. Sums only grow,
 * however elements come and go; what is not there any more is forgotten.
 */
export class ConnectionTotals {
  readonly #seen = new Map<string, Seen>()
  readonly #ports = new Map<string, Traffic>()
  readonly #endpoints = new Map<string, EndpointTraffic>()
  #look = 0
  #hasVolume = false

  /** Traffic by port: `namespace/name:port/PROTOCOL/FAMILY`. */
  get ports(): ReadonlyMap<string, Traffic> {
    return this.#ports
  }

  /** One for each endpoint of a port whose element was seen lately. */
  get endpoints(): Iterable<EndpointTraffic> {
    return this.#endpoints.values()
  }

  /** Packets and bytes are counted, too. */
  get hasVolume(): boolean {
    return this.#hasVolume
  }

  /** Series that ports have, and those that everything has. */
  get series(): { readonly ports: number; readonly all: number } {
    const each = SERIES_OF_CONNECTIONS + (this.#hasVolume ? SERIES_OF_VOLUME : 0)
    const ports = this.#ports.size * each
    return { ports, all: ports + this.#endpoints.size * each }
  }

  take(counts: Iterable<TrafficCount>): void {
    this.#look++
    for (const count of counts) this.#add(count)
    const alive = new Set<string>()
    for (const [element, { look, port, endpoint }] of this.#seen) {
      if (this.#look - look >= MISSES_MAX) this.#seen.delete(element)
      else alive.add(port).add(endpointKey(port, endpoint))
    }
    for (const key of this.#ports.keys()) if (!alive.has(key)) this.#ports.delete(key)
    for (const key of this.#endpoints.keys()) if (!alive.has(key)) this.#endpoints.delete(key)
  }

  #add({ element, port, endpoint, connections, volume }: TrafficCount): void {
    if (volume !== undefined) this.#hasVolume = true
    const traffic: Traffic = {
      connections: Number(connections),
      packetsIn: Number(volume?.packetsIn ?? 0n),
      packetsOut: Number(volume?.packetsOut ?? 0n),
      bytesIn: Number(volume?.bytesIn ?? 0n),
      bytesOut: Number(volume?.bytesOut ?? 0n),
    }
    const before = this.#seen.get(element)
    const isSame = before?.port === port && before.endpoint === endpoint && isReached(before.traffic, traffic)
    const news = isSame ? combine(traffic, before.traffic, (a, b) => a - b) : traffic
    this.#seen.set(element, { port, endpoint, traffic, look: this.#look })
    this.#ports.set(
      port,
      combine(this.#ports.get(port) ?? NOTHING, news, (a, b) => a + b),
    )
    const key = endpointKey(port, endpoint)
    const sum = this.#endpoints.get(key)?.traffic ?? NOTHING
    this.#endpoints.set(key, { port, endpoint, traffic: combine(sum, news, (a, b) => a + b) })
  }
}

const NOTHING: Traffic = { connections: 0, packetsIn: 0, packetsOut: 0, bytesIn: 0, bytesOut: 0 }

function endpointKey(port: string, endpoint: string): string {
  return `${port} ${endpoint}`
}

/** Counters that went back are those of another object. */
function isReached(before: Traffic, now: Traffic): boolean {
  return (
    before.connections <= now.connections &&
    before.packetsIn <= now.packetsIn &&
    before.packetsOut <= now.packetsOut &&
    before.bytesIn <= now.bytesIn &&
    before.bytesOut <= now.bytesOut
  )
}

function combine(a: Traffic, b: Traffic, by: (a: number, b: number) => number): Traffic {
  return {
    connections: by(a.connections, b.connections),
    packetsIn: by(a.packetsIn, b.packetsIn),
    packetsOut: by(a.packetsOut, b.packetsOut),
    bytesIn: by(a.bytesIn, b.bytesIn),
    bytesOut: by(a.bytesOut, b.bytesOut),
  }
}

interface PortLabels {
  readonly namespace: string
  readonly service: string
  /** `namespace/name`: what `service` was up to 0.1, for one release more. */
  readonly service_key: string
  /** Name of the port; may be empty. */
  readonly port: string
  readonly protocol: string
  readonly ip_family: string
}

export function labelsOf(key: string): PortLabels {
  const colon = key.indexOf(':')
  const serviceKey = key.slice(0, colon)
  const slash = serviceKey.indexOf('/')
  const [port = '', protocol = '', family = ''] = key.slice(colon + 1).split('/')
  return {
    namespace: serviceKey.slice(0, slash),
    service: serviceKey.slice(slash + 1),
    service_key: serviceKey,
    port,
    protocol,
    ip_family: family,
  }
}
