import { errorOf } from '../base/errors.ts'
import { type MetricSet, type Rows, readCounter, readGauge } from './metric-set.ts'

export interface ConnectionMetricsOptions {
  /** Maximum number of series. Above it the series of endpoints are omitted first, then those of Services. */
  readonly seriesMax: number
  readonly read: () => Promise<readonly TrafficCount[]>
  readonly nowMs: () => number
  /** The counters could not be read; the metrics keep their values. */
  readonly failed: (error: Error) => void
}

/** The sums at a scrape, and the maximum number of series. */
interface Sums {
  readonly totals: ConnectionTotals
  readonly seriesMax: number
}

type Labels = Readonly<Record<string, string>>

/** The fields that a metric shows, each with the labels that its series have beside those of the port. */
type Fields<D extends Labels> = readonly (readonly [labels: D, field: keyof Traffic])[]
type Directions = Fields<{ readonly direction: string }>
type NoLabels = Fields<Record<never, string>>

const CONNECTIONS: NoLabels = [[{}, 'connections']]
/** Direction `in` is to the endpoint, `out` is from it. */
const PACKETS: Directions = [
  [{ direction: 'in' }, 'packetsIn'],
  [{ direction: 'out' }, 'packetsOut'],
]
const BYTES: Directions = [
  [{ direction: 'in' }, 'bytesIn'],
  [{ direction: 'out' }, 'bytesOut'],
]

function ofPorts<D extends Labels>(fields: Fields<D>) {
  return function* ({ totals, seriesMax }: Sums): Iterable<[PortLabels & D, number]> {
    if (totals.series.ports > seriesMax || !totals.hasAll(fields)) return
    for (const [port, traffic] of totals.ports) {
      const labels = labelsOf(port)
      for (const [more, field] of fields) yield [{ ...labels, ...more }, traffic[field]]
    }
  }
}

function ofEndpoints<D extends Labels>(fields: Fields<D>) {
  return function* ({ totals, seriesMax }: Sums): Iterable<[PortLabels & D & { endpoint: string }, number]> {
    if (totals.series.all > seriesMax || !totals.hasAll(fields)) return
    for (const { port, endpoint, traffic } of totals.endpoints) {
      const labels = { ...labelsOf(port), endpoint }
      for (const [more, field] of fields) yield [{ ...labels, ...more }, traffic[field]]
    }
  }
}

const PORT = ['namespace', 'service', 'service_key', 'port', 'protocol', 'ip_family'] as const
const ENDPOINT = [...PORT, 'endpoint'] as const
const [OF_PORT, OF_ENDPOINT] = ['of a port of a Service, by direction.', 'of an endpoint, by direction.']

const ROWS = {
  kprobe_service_connections_total: readCounter(
    'New connections to a port of a Service.',
    ofPorts(CONNECTIONS),
    ...PORT,
  ),
  kprobe_endpoint_connections_total: readCounter(
    'New connections to an endpoint.',
    ofEndpoints(CONNECTIONS),
    ...ENDPOINT,
  ),
  kprobe_service_packets_total: readCounter(`Packets ${OF_PORT}`, ofPorts(PACKETS), ...PORT, 'direction'),
  kprobe_endpoint_packets_total: readCounter(
    `Packets ${OF_ENDPOINT}`,
    ofEndpoints(PACKETS),
    ...ENDPOINT,
    'direction',
  ),
  kprobe_service_bytes_total: readCounter(`Bytes ${OF_PORT}`, ofPorts(BYTES), ...PORT, 'direction'),
  kprobe_endpoint_bytes_total: readCounter(
    `Bytes ${OF_ENDPOINT}`,
    ofEndpoints(BYTES),
    ...ENDPOINT,
    'direction',
  ),
  kprobe_connection_series: readGauge(
    'Time series of the connection metrics, including those beyond --connection-metrics-max.',
    ({ totals }) => totals.series.all,
  ),
} satisfies Rows<Sums>

/**
 * Adds metrics of new connections by Service and endpoint, and of packets and bytes if the kernel counts them (IPVS
 * does). A scrape reads them from the kernel.
 */
export function addConnectionMetrics(set: MetricSet, options: ConnectionMetricsOptions): void {
  const totals = new ConnectionTotals()
  const refresh = readerOf(totals, options)
  set.add(ROWS, async () => {
    await refresh()
    return { totals, seriesMax: options.seriesMax }
  })
}

/**
 * Gives a function that joins the read in progress, or starts a new one if the last is older than five seconds: each
 * dumps a map of the kernel.
 */
function readerOf(totals: ConnectionTotals, options: ConnectionMetricsOptions): () => Promise<void> {
  const { read, nowMs, failed } = options
  let startedMs = Number.NEGATIVE_INFINITY
  let running: Promise<void> = Promise.resolve()
  const update = async () => {
    try {
      totals.take(await read())
    } catch (thrown) {
      failed(errorOf(thrown))
    }
  }
  return () => {
    // At most every 5 s: each read dumps a map of the kernel.
    if (nowMs() - startedMs >= 5_000) {
      startedMs = nowMs()
      running = update()
    }
    return running
  }
}

/** The counts of one kernel object since its creation. */
export interface TrafficCount {
  /** Identifies the object while it exists. */
  readonly element: string
  readonly port: string
  readonly endpoint: string
  readonly connections: bigint
  /** Packets and bytes to the endpoint and from it, if the kernel counts them. */
  readonly volume?: Volume<bigint>
}

interface Volume<N> {
  readonly packetsIn: N
  readonly packetsOut: N
  readonly bytesIn: N
  readonly bytesOut: N
}

interface Traffic extends Volume<number> {
  readonly connections: number
}

interface EndpointTraffic {
  readonly port: string
  readonly endpoint: string
  readonly traffic: Traffic
}

interface Seen extends EndpointTraffic {
  /** The number of the last read with this element. */
  read: number
}

/**
 * Sums the traffic of ports and endpoints from counters that start at zero with each kernel element. A sum never falls
 * while its port or endpoint exists.
 */
export class ConnectionTotals {
  readonly #seen = new Map<string, Seen>()
  readonly #ports = new Map<string, Traffic>()
  readonly #endpoints = new Map<string, EndpointTraffic>()
  #reads = 0
  #hasVolume = false

  get ports(): ReadonlyMap<string, Traffic> {
    return this.#ports
  }

  /** Traffic by endpoint of a port, for elements of the last reads. */
  get endpoints(): Iterable<EndpointTraffic> {
    return this.#endpoints.values()
  }

  /** Tests whether the kernel counts all these fields; it always counts connections. */
  hasAll(fields: Fields<Labels>): boolean {
    return this.#hasVolume || fields.every(([, field]) => field === 'connections')
  }

  get series(): { readonly ports: number; readonly all: number } {
    // Connections, and packets and bytes in two directions each.
    const each = this.#hasVolume ? 5 : 1
    const ports = this.#ports.size * each
    return { ports, all: ports + this.#endpoints.size * each }
  }

  take(counts: Iterable<TrafficCount>): void {
    this.#reads++
    for (const count of counts) this.#add(count)
    const alive = new Set<string>()
    for (const [element, { read, port, endpoint }] of this.#seen) {
      // A list that changes while it is read may omit an element once.
      if (this.#reads - read >= 2) this.#seen.delete(element)
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
    this.#seen.set(element, { port, endpoint, traffic, read: this.#reads })
    const plus = (sum = NOTHING) => combine(sum, news, (a, b) => a + b)
    this.#ports.set(port, plus(this.#ports.get(port)))
    const key = endpointKey(port, endpoint)
    this.#endpoints.set(key, { port, endpoint, traffic: plus(this.#endpoints.get(key)?.traffic) })
  }
}

const FIELDS = ['connections', 'packetsIn', 'packetsOut', 'bytesIn', 'bytesOut'] as const
const NOTHING: Traffic = { connections: 0, packetsIn: 0, packetsOut: 0, bytesIn: 0, bytesOut: 0 }

function endpointKey(port: string, endpoint: string): string {
  return `${port} ${endpoint}`
}

/** Tests whether no counter fell: a counter that fell belongs to another object. */
function isReached(before: Traffic, now: Traffic): boolean {
  return FIELDS.every(field => before[field] <= now[field])
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
  /** `namespace/name`, which `service` was up to 0.1; kept for one more release. */
  readonly service_key: string
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
