import { setTimeout as sleep } from 'node:timers/promises'
import { decodeSighting, encodeProbe } from '../support/lab/probe.ts'
import { closeTopology, openTopology, type Topology } from '../support/lab/topology.ts'

const SOURCE = '203.0.113.9'
/** A probe that is to hit one endpoint of many misses it in all of a volley once in two hundred. */
const MISS = 0.005

export interface Hit {
  readonly vip: string
  readonly endpoint: string
}

/** Sends first packets of connections from outside to Services, and tells at which pods they arrive. */
export class Marksman {
  readonly topology: Topology
  readonly #vips = new Map<number, string>()
  readonly #hits: Hits
  #ident = 0x20000000

  private constructor(topology: Topology, hits: Hits) {
    this.topology = topology
    this.#hits = hits
  }

  /** Moves this process into a network namespace of its own, the node's. */
  static async start(): Promise<Marksman> {
    const hits = new Hits()
    const topology = await openTopology([], (place, packet) => {
      const sighting = place === 'pods' ? decodeSighting(packet) : undefined
      if (sighting?.kind === 'probe') hits.add(sighting.ident, sighting.destination)
    })
    return new Marksman(topology, hits)
  }

  async close(): Promise<void> {
    await closeTopology(this.topology)
  }

  /** Milliseconds from `since` until each of these addresses has led to a pod. */
  async untilAllAnswer(vips: readonly string[], since: number, timeoutMs: number): Promise<number> {
    const open = new Set(vips)
    let lastMs = since
    const stop = this.#listen(({ vip, endpoint }) => {
      // Before its Service is there, an address is just one that is routed to the pods.
      if (endpoint !== vip && open.delete(vip)) lastMs = performance.now()
    })
    try {
      while (open.size > 0) {
        if (performance.now() - since > timeoutMs)
          throw new Error(
            `${open.size} of ${vips.length} Services that were asked did not answer within ${timeoutMs / 1000} s`,
          )
        this.#shoot([...open])
        await sleep(5)
        this.topology.node.forgetConnections()
      }
    } finally {
      stop()
    }
    return lastMs - since
  }

  /** Milliseconds from `since` until a connection to the Service arrives at this endpoint, one of so many. */
  async untilReached(target: Hit, endpoints: number, since: number, timeoutMs: number): Promise<number> {
    let reachedMs: number | undefined
    const stop = this.#listen(({ vip, endpoint }) => {
      if (vip === target.vip && endpoint === target.endpoint) reachedMs ??= performance.now()
    })
    const volley = Array.from({ length: volleySize(endpoints) }, () => target.vip)
    try {
      while (reachedMs === undefined) {
        const waitedMs = performance.now() - since
        if (waitedMs > timeoutMs) throw new Error(`${target.endpoint} was never reached`)
        this.#shoot(volley)
        await sleep(waitedMs < 200 ? 1 : 10)
      }
      return Math.max(0, reachedMs - since)
    } finally {
      stop()
      this.topology.node.forgetConnections()
    }
  }

  #listen(hear: (hit: Hit) => void): () => void {
    this.#vips.clear()
    this.#hits.hear = (ident, endpoint) => {
      const vip = this.#vips.get(ident)
      if (vip !== undefined) hear({ vip, endpoint })
    }
    return () => {
      this.#hits.hear = () => undefined
    }
  }

  #shoot(vips: readonly string[]): void {
    this.topology.outside.send(
      vips.map(destination => {
        this.#ident++
        this.#vips.set(this.#ident, destination)
        const ports = { sourcePort: 1024 + (this.#ident % 60_000), destinationPort: 80 }
        return encodeProbe({ source: SOURCE, destination, protocol: 'TCP', ident: this.#ident, ...ports })
      }),
    )
  }
}

class Hits {
  hear: (ident: number, endpoint: string) => void = () => undefined

  add(ident: number, endpoint: string): void {
    this.hear(ident, endpoint)
  }
}

export function volleySize(endpoints: number): number {
  return endpoints === 1 ? 1 : Math.ceil(Math.log(MISS) / Math.log(1 - 1 / endpoints))
}
