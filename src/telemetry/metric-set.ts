/// <reference path="./prom-client.d.ts" />
import type {
  Counter,
  Gauge,
  Histogram,
  Metric,
  OpenMetricsContentType,
  PrometheusContentType,
} from 'prom-client'
import PromCounter from 'prom-client/lib/counter.js'
import PromGauge from 'prom-client/lib/gauge.js'
import PromHistogram from 'prom-client/lib/histogram.js'
import PromRegistry from 'prom-client/lib/registry.js'

/** The formats of a scrape: Prometheus' text format, and OpenMetrics, which has exemplars. */
export type MetricsFormat = 'text' | 'openmetrics'

type Kind = 'counter' | 'gauge' | 'histogram' | 'exemplified'

type Labels<L extends string> = Readonly<Record<L, string>>

/** The value of a metric without labels, or one value for each series. Undefined keeps the last value. */
export type Reading<L extends string> = [L] extends [never]
  ? number | undefined
  : Iterable<readonly [labels: Labels<L>, value: number]>

export interface Row<K extends Kind = Kind, L extends string = string> {
  readonly kind: K
  readonly help: string
  readonly labels: readonly L[]
  readonly buckets?: readonly number[]
}

export interface ReadRow<Source = void> extends Row<'counter' | 'gauge'> {
  readonly read: Read<Source, string> | Read<Source, never>
}

type Read<Source, L extends string> = (now: Source) => Reading<L> | Promise<Reading<L>>

type AnyRow<Source> = Row & Partial<Pick<ReadRow<Source>, 'read'>>

export type Rows<Source> = Readonly<Record<string, AnyRow<Source>>>

export type ReadRows = Readonly<Record<string, ReadRow>>

type Names = readonly string[]

function rowsOf<K extends 'counter' | 'gauge'>(kind: K) {
  return <const L extends Names>(help: string, ...labels: L): Row<K, L[number]> => ({ kind, help, labels })
}

export const counter = rowsOf('counter')
export const gauge = rowsOf('gauge')

export function histogram<const L extends Names>(
  help: string,
  buckets: readonly number[],
  ...labels: L
): Row<'histogram', L[number]> {
  return { kind: 'histogram', help, labels, buckets }
}

/** A histogram whose observations name what they were of, by the labels of an exemplar. */
export function exemplified(help: string, buckets: readonly number[]): Row<'exemplified', never> {
  return { kind: 'exemplified', help, labels: [], buckets }
}

function readRowsOf(kind: 'counter' | 'gauge') {
  return <Source, const L extends Names>(
    help: string,
    read: Read<Source, L[number]>,
    ...labels: L
  ): ReadRow<Source> => ({ kind, help, labels, read })
}

export const readCounter = readRowsOf('counter')
export const readGauge = readRowsOf('gauge')

type At<L extends string, V extends readonly unknown[]> = [L] extends [never] ? V : [Labels<L>, ...V]

interface HandleOf<L extends string> {
  readonly counter: { inc(...args: At<L, [by?: number]>): void }
  readonly gauge: { set(...args: At<L, [value: number]>): void }
  readonly histogram: { observe(...args: At<L, [value: number]>): void }
  readonly exemplified: {
    observe(its: { labels: Labels<L>; value: number; exemplarLabels: Record<string, string> }): void
  }
}

export type Handles<T> = {
  readonly [N in keyof T as T[N] extends ReadRow<never> ? never : N]: T[N] extends Row<infer K, infer L>
    ? HandleOf<L>[K]
    : never
}

/** The metrics of one page, in the order in which they were added. */
export class MetricSet {
  readonly #metrics = new Map<string, Metric>()
  readonly #reads: (() => Promise<unknown>)[] = []

  /** Adds a table of metrics. Each scrape calls `now` once. Throws if a metric of that name exists. */
  add<Source, T extends Rows<Source>>(rows: T, now: () => Source | Promise<Source>): Handles<T> {
    const reads: ((source: Source) => Promise<void>)[] = []
    const added = Object.entries(rows).map(([name, row]) => {
      if (this.#metrics.has(name)) throw new Error(`two metrics with the name ${name}`)
      const metric = metricOf(name, row)
      this.#metrics.set(name, metric)
      const { read } = row
      if (read !== undefined && !(metric instanceof PromHistogram))
        reads.push(async source => fill(metric, await read(source)))
      return [name, metric]
    })
    this.#reads.push(async () => {
      const source = await now()
      await Promise.all(reads.map(read => read(source)))
    })
    // Each name has the metric of its row, which the type of fromEntries does not say.
    return Object.fromEntries(added)
  }

  /** Reads all metrics before the first is written, so that one scrape shows one moment. */
  async text(format: MetricsFormat = 'text', more: ReadRows = {}): Promise<string> {
    const page = new MetricSet()
    page.add(more, () => undefined)
    await Promise.all([...this.#reads, ...page.#reads].map(read => read()))
    const all = [...this.#metrics, ...page.#metrics]
    const registry = new PromRegistry<OpenMetricsContentType | PrometheusContentType>()
    if (format === 'openmetrics') registry.setContentType(PromRegistry.OPENMETRICS_CONTENT_TYPE)
    for (const [name, metric] of all)
      registry.registerMetric(format === 'text' ? metric : openMetric(name, metric))
    // prom-client writes `Nan`, which only lenient readers take.
    return (await registry.metrics()).replace(/ Nan$/gm, ' NaN')
  }
}

function metricOf(name: string, { kind, help, labels, buckets = [] }: Row): Counter | Gauge | Histogram {
  // An empty list of registers: prom-client would add the metric to its global registry.
  const config = { name, help, labelNames: [...labels], registers: [] }
  if (kind === 'counter') return new PromCounter(config)
  if (kind === 'gauge') return new PromGauge(config)
  return new PromHistogram({ ...config, buckets: [...buckets], enableExemplars: kind === 'exemplified' })
}

function fill(metric: Counter | Gauge, reading: Reading<string> | Reading<never>): void {
  if (reading === undefined) return
  metric.reset()
  if (typeof reading === 'number') metric.inc(reading)
  else for (const [labels, value] of reading) metric.inc(labels, value)
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
