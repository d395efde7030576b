import type { Registry } from 'prom-client'
import { metricSet } from './metric-set.ts'

/** What goes through this process in userspace mode, since the mode began. */
export interface RelayNumbers {
  readonly listeners: number
  readonly tcp: FlowNumbers
  readonly udp: FlowNumbers
  /** Connections and UDP clients of this process that came back to it, and were given up. */
  readonly loops: number
}

export interface FlowNumbers {
  /** Connections, or clients of UDP, now. */
  readonly held: number
  /** Refused connections and lost datagrams, because of the limits. */
  readonly refused: number
}

/** Absent in every other mode. */
export class RelayMetrics {
  readonly #registry: Registry
  #numbers: RelayNumbers | undefined

  constructor(registry: Registry) {
    this.#registry = registry
  }

  /** Undefined while another mode is in use. */
  take(numbers: RelayNumbers | undefined): void {
    const before = this.#numbers
    this.#numbers = numbers
    if (numbers === undefined && before !== undefined)
      for (const name of NAMES) this.#registry.removeSingleMetric(PREFIX + name)
    else if (numbers !== undefined && before === undefined) this.#add()
  }

  #add(): void {
    const { levels, filled } = metricSet(this.#registry, PREFIX)
    const [listeners, connections, refused, loops] = NAMES
    const labelNames = ['protocol'] as const
    levels(listeners, 'Sockets that receive connections to Services.', {
      labelNames: [],
      fill: gauge => gauge.set(this.#numbers?.listeners ?? 0),
    })
    levels(connections, 'Connections (TCP) and clients (UDP) that are relayed now.', {
      labelNames,
      fill: gauge => {
        for (const [protocol, { held }] of this.#flows()) gauge.set({ protocol }, held)
      },
    })
    filled(refused, 'Connections rejected and datagrams dropped because of the relay limits.', {
      labelNames,
      fill: counter => {
        for (const [protocol, numbers] of this.#flows()) counter.inc({ protocol }, numbers.refused)
      },
    })
    filled(loops, 'Connections of the relay that reached the relay again and were closed.', {
      labelNames: [],
      fill: counter => counter.inc(this.#numbers?.loops ?? 0),
    })
  }

  #flows(): readonly (readonly [protocol: string, numbers: FlowNumbers])[] {
    const numbers = this.#numbers
    return numbers === undefined
      ? []
      : [
          ['TCP', numbers.tcp],
          ['UDP', numbers.udp],
        ]
  }
}

const PREFIX = 'kprobe_relay_'

const NAMES = ['listeners', 'connections', 'refused_total', 'loops_total'] as const
