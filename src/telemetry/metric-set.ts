/// <reference path="./prom-client.d.ts" />
import type { Counter, Gauge, Histogram, Metric, OpenMetricsContentType } from 'prom-client'
import PromCounter from 'prom-client/lib/counter.js'
import PromGauge from 'prom-client/lib/gauge.js'
import PromHistogram from 'prom-client/lib/histogram.js'
import PromRegistry from 'prom-client/lib/registry.js'

export type { Counter } from 'prom-client'

/** The formats of a scrape: Prometheus' text format, and OpenMetrics, which has exemplars. */
export type MetricsFormat = 'text' | 'openmetrics'

type Collect = () => void | Promise<void>

/** The metrics of one page, in the order in which they were added. */
export class Registry {
  readonly #text = new PromRegistry()
  readonly #openMetrics = new PromRegistry<OpenMetricsContentType>()
  readonly #collects = new Map<string, Collect>()

  constructor() {
    this.#openMetrics.setContentType(PromRegistry.OPENMETRICS_CONTENT_TYPE)
  }

  /** `collect` updates the metric for a scrape. Throws if a metric of that name exists. */
  add(name: string, metric: Metric, collect?: Collect): void {
    this.#text.registerMetric(metric)
    this.#openMetrics.registerMetric(openMetric(name, metric))
    if (collect !== undefined) this.#collects.set(name, collect)
  }

  remove(name: string): void {
    for (const registry of [this.#text, this.#openMetrics]) registry.removeSingleMetric(name)
    this.#collects.delete(name)
  }

  /** Collects all metrics before the first is written, so that one scrape shows one moment. */
  async text(format: MetricsFormat = 'text'): Promise<string> {
    await Promise.all([...this.#collects.values()].map(collect => collect()))
    const registry = format === 'text' ? this.#text : this.#openMetrics
    // prom-client writes `Nan`, which only lenient readers take.
    return (await registry.metrics()).replace(/ Nan$/gm, ' NaN')
  }
}

/**
 * Gives a metric an object of its own for OpenMetrics, because prom-client takes `_total` off the names of counters there, for
 * good. It would append it to a counter that is named without: such a series keeps its name, and its type is unknown.
 */
function openMetric(name: string, metric: Metric): Metric {
  const own = Object.create(metric)
  return metric instanceof PromCounter && !name.endsWith('_total')
    ? Object.assign(own, { type: 'unknown' })
    : own
}

/** A metric that each scrape resets and fills. */
interface Filled<L extends string, M> {
  readonly labelNames: readonly L[]
  readonly fill: (metric: M) => void | Promise<void>
}

type AskedRow<T> = readonly [help: string, value: (now: T) => number | undefined | Promise<number>]

interface HistogramOptions<L extends string> {
  readonly buckets: readonly number[]
  readonly labelNames?: readonly L[]
}

/** Creates metrics in one registry, with one prefix. */
interface MetricSet {
  counter<L extends string>(name: string, help: string, labelNames?: readonly L[]): Counter<L>
  gauge<L extends string>(name: string, help: string, labelNames?: readonly L[]): Gauge<L>
  filled<L extends string>(name: string, help: string, options: Filled<L, Counter<L>>): void
  /** Defines gauges as `filled` does counters. */
  levels<L extends string>(name: string, help: string, options: Filled<L, Gauge<L>>): void
  /** A gauge that each scrape sets; undefined keeps its value. */
  asked(name: string, help: string, value: () => number | undefined | Promise<number>): void
  /** Such gauges by name, all of one answer. */
  askedOf<T>(read: () => T, table: Readonly<Record<string, AskedRow<T>>>): void
  histogram<L extends string>(name: string, help: string, options: HistogramOptions<L>): Histogram<L>
  /** A histogram without labels: an observation names what it was of, by the labels of its exemplar. */
  exemplified(
    name: string,
    help: string,
    buckets: readonly number[],
  ): (value: number, exemplarLabels: Readonly<Record<string, string>>) => void
}

export function metricSet(registry: Registry, prefix: string): MetricSet {
  const add = <M extends Metric>(name: string, metric: M, collect?: Collect): M => {
    registry.add(prefix + name, metric, collect)
    return metric
  }
  // An empty list of registers: prom-client would add a metric to its global registry.
  const config = <L extends string>(name: string, help: string, labelNames: readonly L[]) => {
    return { name: prefix + name, help, labelNames: [...labelNames], registers: [] }
  }
  const filledAtScrape = <M extends Metric>(
    name: string,
    metric: M,
    fill: Filled<never, M>['fill'],
  ): void => {
    add(name, metric, () => {
      metric.reset()
      return fill(metric)
    })
  }
  const asked: MetricSet['asked'] = (name, help, value) => {
    const gauge = new PromGauge(config(name, help, []))
    add(name, gauge, async () => {
      const now = await value()
      if (now !== undefined) gauge.set(now)
    })
  }
  return {
    counter: (name, help, labelNames = []) => add(name, new PromCounter(config(name, help, labelNames))),
    gauge: (name, help, labelNames = []) => add(name, new PromGauge(config(name, help, labelNames))),
    filled: (name, help, { labelNames, fill }) =>
      filledAtScrape(name, new PromCounter(config(name, help, labelNames)), fill),
    levels: (name, help, { labelNames, fill }) =>
      filledAtScrape(name, new PromGauge(config(name, help, labelNames)), fill),
    asked,
    askedOf(read, table) {
      for (const [name, [help, value]] of Object.entries(table)) asked(name, help, () => value(read()))
    },
    histogram: (name, help, { buckets, labelNames = [] }) =>
      add(name, new PromHistogram({ ...config(name, help, labelNames), buckets: [...buckets] })),
    exemplified(name, help, buckets) {
      const options = { ...config(name, help, []), buckets: [...buckets], enableExemplars: true }
      const histogram = add(name, new PromHistogram(options))
      return (value, exemplarLabels) => histogram.observe({ labels: {}, value, exemplarLabels })
    },
  }
}

const VALUES_MAX = 32

/**
 * Bounds label values that other programs choose: the first 32 pass, cut to 64 characters, and the rest become `other`.
 */
export class LabelValues {
  readonly #known = new Set<string>()

  of(text: string): string {
    const value = text.slice(0, 64)
    if (this.#known.has(value)) return value
    if (this.#known.size >= VALUES_MAX) return 'other'
    this.#known.add(value)
    return value
  }
}

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
