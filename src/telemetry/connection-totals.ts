/** How often one element of the kernel's was chosen for a new connection since it exists. */
export interface ConnectionCountLike {
  /** Stands for the element as long as it exists. */
  readonly element: string
  /** `namespace/name:port/PROTOCOL/FAMILY`. */
  readonly port: string
  /** `10.0.0.1:8080`. */
  readonly endpoint: string
  readonly connections: bigint
}

interface Seen {
  readonly port: string
  readonly endpoint: string
  readonly connections: number
  /** The look that saw it last. */
  look: number
}

/** A list that is read while it changes may leave an element out: its count is remembered for so many looks more. */
const MISSES_MAX = 2

/**
 * New connections by port and by endpoint, from counters that begin anew with each element of the kernel's. Sums of a port
 * only grow, however its endpoints come and go; what is not there any more is forgotten.
 */
export class ConnectionTotals {
  readonly #seen = new Map<string, Seen>()
  readonly #ports = new Map<string, number>()
  #look = 0

  /** By port: `namespace/name:port/PROTOCOL/FAMILY`. */
  get ports(): ReadonlyMap<string, number> {
    return this.#ports
  }

  /** One for each element that was seen lately. */
  get endpoints(): Iterable<{
    readonly port: string
    readonly endpoint: string
    readonly connections: number
  }> {
    return this.#seen.values()
  }

  get size(): number {
    return this.#seen.size + this.#ports.size
  }

  take(counts: Iterable<ConnectionCountLike>): void {
    this.#look++
    for (const count of counts) this.#add(count)
    const alive = new Set<string>()
    for (const [element, { look, port }] of this.#seen) {
      if (this.#look - look >= MISSES_MAX) this.#seen.delete(element)
      else alive.add(port)
    }
    for (const port of this.#ports.keys()) if (!alive.has(port)) this.#ports.delete(port)
  }

  #add({ element, port, endpoint, connections: count }: ConnectionCountLike): void {
    const connections = Number(count)
    const before = this.#seen.get(element)
    const isSame = before?.port === port && before.endpoint === endpoint && before.connections <= connections
    const news = isSame ? connections - before.connections : connections
    this.#ports.set(port, (this.#ports.get(port) ?? 0) + news)
    this.#seen.set(element, { port, endpoint, connections, look: this.#look })
  }
}

export interface PortLabels {
  /** `namespace/name`. */
  readonly service: string
  /** Name of the port; may be empty. */
  readonly port: string
  readonly protocol: string
  readonly ip_family: string
}

export function labelsOf(key: string): PortLabels {
  const colon = key.indexOf(':')
  const [port = '', protocol = '', family = ''] = key.slice(colon + 1).split('/')
  return { service: key.slice(0, colon), port, protocol, ip_family: family }
}
