import { metricSet, type Registry } from './metric-set.ts'

/** A metric that a proxy mode declares, with its values now. */
export interface ModeMetric {
  readonly name: string
  readonly help: string
  readonly kind: 'counter' | 'gauge'
  readonly labelNames: readonly string[]
  readonly values: readonly ModeMetricValue[]
}

interface ModeMetricValue {
  readonly labels: Readonly<Record<string, string>>
  readonly value: number
}

/** Publishes the metrics of the active mode only. */
export class ModeMetrics {
  readonly #registry: Registry
  #now: ReadonlyMap<string, ModeMetric> = new Map()

  constructor(registry: Registry) {
    this.#registry = registry
  }

  take(metrics: readonly ModeMetric[]): void {
    const before = this.#now
    this.#now = new Map(metrics.map(metric => [metric.name, metric]))
    for (const name of before.keys()) if (!this.#now.has(name)) this.#registry.remove(name)
    for (const metric of metrics) if (!before.has(metric.name)) this.#add(metric)
  }

  #add({ name, help, kind, labelNames }: ModeMetric): void {
    const { levels, filled } = metricSet(this.#registry, '')
    const values = () => this.#now.get(name)?.values ?? []
    if (kind === 'counter')
      filled(name, help, {
        labelNames,
        fill: counter => {
          for (const { labels, value } of values()) counter.inc(labels, value)
        },
      })
    else
      levels(name, help, {
        labelNames,
        fill: gauge => {
          for (const { labels, value } of values()) gauge.set(labels, value)
        },
      })
  }
}
