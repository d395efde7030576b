import { assert } from '../base/errors.ts'

type Labels<L extends string> = Readonly<Partial<Record<L, string>>>

interface MetricOptions<L extends string> {
  readonly name: string
  readonly help: string
  readonly labelNames: readonly L[]
}

/** Numbers by the values of labels. They are plain numbers until a scrape makes text of them. */
abstract class Metric<L extends string, S> {
  readonly name: string
  readonly labelNames: readonly L[]
  readonly #help: string
  readonly #type: string
  readonly #series = new Map<string, { readonly labels: Labels<L> | undefined; readonly value: S }>()
  /** Updates the metric for a scrape. */
  collect: () => void | Promise<void> = () => undefined

  constructor(type: string, { name, help, labelNames }: MetricOptions<L>) {
    this.name = name
    this.labelNames = labelNames
    this.#help = help
    this.#type = type
  }

  /** Gives the metric in Prometheus' text format. */
  text(): string {
    const lines = [`# HELP ${this.name} ${escaped(this.#help)}`, `# TYPE ${this.name} ${this.#type}`]
    for (const { labels, value } of this.#series.values()) this.addLines(lines, this.#textOf(labels), value)
    return lines.join('\n')
  }

  /** Clears the metric. One without labels has a value from the start. */
  reset(): void {
    this.#series.clear()
    if (this.labelNames.length === 0) this.of(undefined)
  }

  protected abstract addLines(lines: string[], labels: string, value: S): void

  protected abstract zero(): S

  protected of(labels: Labels<L> | undefined): S {
    const { labelNames } = this
    let key = ''
    for (const name of labelNames) key += `${labels?.[name] ?? ''}\0`
    const known = this.#series.get(key)
    if (known !== undefined) return known.value
    const value = this.zero()
    this.#series.set(key, { labels, value })
    return value
  }

  #textOf(labels: Labels<L> | undefined): string {
    if (labels === undefined) return ''
    const given = this.labelNames.filter(name => labels[name] !== undefined)
    return given.map(name => `${name}="${escaped(labels[name] ?? '').replace(/"/g, '\\"')}"`).join(',')
  }
}

function escaped(text: string): string {
  return text.replace(/\\/g, '\\\\').replace(/\n/g, '\\n')
}

interface Cell {
  value: number
}

abstract class Single<L extends string> extends Metric<L, Cell> {
  constructor(type: string, options: MetricOptions<L>) {
    super(type, options)
    this.reset()
  }

  protected override zero(): Cell {
    return { value: 0 }
  }

  protected override addLines(lines: string[], labels: string, { value }: Cell): void {
    lines.push(line(this.name, labels, value))
  }
}

export class Counter<L extends string = never> extends Single<L> {
  constructor(options: MetricOptions<L>) {
    super('counter', options)
  }

  inc(labels: Labels<L> | number = 1, value = 1): void {
    const [at, by] = typeof labels === 'number' ? [undefined, labels] : [labels, value]
    assert(by >= 0, `counter ${this.name} cannot fall`)
    this.of(at).value += by
  }
}

class Gauge<L extends string = never> extends Single<L> {
  constructor(options: MetricOptions<L>) {
    super('gauge', options)
  }

  set(labels: Labels<L> | number, value = 0): void {
    if (typeof labels === 'number') this.of(undefined).value = labels
    else this.of(labels).value = value
  }
}

interface Distribution {
  /** Values by the first bucket that holds them; those above all buckets are in the count alone. */
  readonly inBucket: number[]
  sum: number
  count: number
}

class Histogram<L extends string = never> extends Metric<L, Distribution> {
  readonly #buckets: readonly number[]

  constructor(options: MetricOptions<L> & { readonly buckets: readonly number[] }) {
    super('histogram', options)
    this.#buckets = options.buckets
    this.reset()
  }

  observe(labels: Labels<L> | number, value = 0): void {
    const [at, seen] = typeof labels === 'number' ? [undefined, labels] : [labels, value]
    assert(Number.isFinite(seen), `histogram ${this.name} cannot hold ${seen}`)
    const distribution = this.of(at)
    const bucket = this.#buckets.findIndex(most => seen <= most)
    if (bucket >= 0) distribution.inBucket[bucket] = (distribution.inBucket[bucket] ?? 0) + 1
    distribution.sum += seen
    distribution.count++
  }

  protected override zero(): Distribution {
    return { inBucket: this.#buckets.map(() => 0), sum: 0, count: 0 }
  }

  protected override addLines(lines: string[], labels: string, { inBucket, sum, count }: Distribution): void {
    const within = (most: number | string) => `le="${most}"${labels === '' ? '' : `,${labels}`}`
    let total = 0
    for (const [index, most] of this.#buckets.entries()) {
      total += inBucket[index] ?? 0
      lines.push(line(`${this.name}_bucket`, within(most), total))
    }
    lines.push(line(`${this.name}_bucket`, within('+Inf'), count))
    lines.push(line(`${this.name}_sum`, labels, sum), line(`${this.name}_count`, labels, count))
  }
}

function line(name: string, labels: string, value: number): string {
  return `${name}${labels === '' ? '' : `{${labels}}`} ${valueText(value)}`
}

function valueText(value: number): string {
  if (Number.isFinite(value) || Number.isNaN(value)) return String(value)
  return value > 0 ? '+Inf' : '-Inf'
}

type Registered = Pick<Metric<string, unknown>, 'name' | 'collect' | 'text'>

export class Registry {
  readonly #metrics = new Map<string, Registered>()

  add(metric: Registered): void {
    assert(!this.#metrics.has(metric.name), `the metric ${metric.name} exists`)
    this.#metrics.set(metric.name, metric)
  }

  remove(name: string): void {
    this.#metrics.delete(name)
  }

  /** Collects all metrics, and gives them in Prometheus' text format. */
  async text(): Promise<string> {
    const metrics = [...this.#metrics.values()]
    await Promise.all(metrics.map(metric => metric.collect()))
    return `${metrics.map(metric => metric.text()).join('\n\n')}\n`
  }
}

/** A metric that each scrape resets and fills. */
interface Filled<L extends string, M> {
  readonly labelNames: readonly L[]
  readonly fill: (metric: M) => void | Promise<void>
}

type AskedRow<T> = readonly [help: string, value: (now: T) => number | undefined | Promise<number>]

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
  histogram<L extends string>(
    name: string,
    help: string,
    options: { readonly buckets: readonly number[]; readonly labelNames?: readonly L[] },
  ): Histogram<L>
}

export function metricSet(registry: Registry, prefix: string): MetricSet {
  const added = <M extends Registered>(metric: M): M => {
    registry.add(metric)
    return metric
  }
  const filledAtScrape = <M extends Registered & { reset(): void }>(
    metric: M,
    fill: Filled<never, M>['fill'],
  ): void => {
    added(metric).collect = () => {
      metric.reset()
      return fill(metric)
    }
  }
  const asked: MetricSet['asked'] = (name, help, value) => {
    const gauge = added(new Gauge({ name: prefix + name, help, labelNames: [] }))
    gauge.collect = async () => {
      const now = await value()
      if (now !== undefined) gauge.set(now)
    }
  }
  return {
    counter: (name, help, labelNames = []) => added(new Counter({ name: prefix + name, help, labelNames })),
    gauge: (name, help, labelNames = []) => added(new Gauge({ name: prefix + name, help, labelNames })),
    filled: (name, help, { labelNames, fill }) =>
      filledAtScrape(new Counter({ name: prefix + name, help, labelNames }), fill),
    levels: (name, help, { labelNames, fill }) =>
      filledAtScrape(new Gauge({ name: prefix + name, help, labelNames }), fill),
    asked,
    askedOf(read, table) {
      for (const [name, [help, value]] of Object.entries(table)) asked(name, help, () => value(read()))
    },
    histogram: (name, help, { buckets, labelNames = [] }) =>
      added(new Histogram({ name: prefix + name, help, labelNames, buckets })),
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
