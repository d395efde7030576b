import { Counter, Gauge, Histogram, type Registry } from 'prom-client'

/** A metric that each scrape resets and fills. */
interface Filled<L extends string, M> {
  readonly labelNames: readonly L[]
  readonly fill: (metric: M) => void | Promise<void>
}

/** Creates metrics in one registry, with one prefix. */
interface MetricSet {
  counter<L extends string>(name: string, help: string, labelNames?: readonly L[]): Counter<L>
  gauge<L extends string>(name: string, help: string, labelNames?: readonly L[]): Gauge<L>
  filled<L extends string>(name: string, help: string, options: Filled<L, Counter<L>>): void
  /** Like filled, for values that can fall. */
  levels<L extends string>(name: string, help: string, options: Filled<L, Gauge<L>>): void
  /** A gauge that each scrape sets; undefined keeps its value. */
  asked(name: string, help: string, value: () => number | undefined | Promise<number>): void
  histogram<L extends string>(
    name: string,
    help: string,
    options: { readonly buckets: readonly number[]; readonly labelNames?: readonly L[] },
  ): Histogram<L>
}

export function metricSet(registry: Registry, prefix: string): MetricSet {
  const registers = [registry]
  const common = <L extends string>(name: string, help: string, labelNames: readonly L[] = []) => ({
    name: prefix + name,
    help,
    labelNames: [...labelNames],
    registers,
  })
  return {
    counter: (name, help, labelNames) => new Counter(common(name, help, labelNames)),
    gauge: (name, help, labelNames) => new Gauge(common(name, help, labelNames)),
    filled<L extends string>(name: string, help: string, { labelNames, fill }: Filled<L, Counter<L>>) {
      const counter: Counter<L> = new Counter({
        ...common(name, help, labelNames),
        collect: () => {
          counter.reset()
          return fill(counter)
        },
      })
    },
    levels<L extends string>(name: string, help: string, { labelNames, fill }: Filled<L, Gauge<L>>) {
      const gauge: Gauge<L> = new Gauge({
        ...common(name, help, labelNames),
        collect: () => {
          gauge.reset()
          return fill(gauge)
        },
      })
    },
    asked(name, help, value) {
      const gauge: Gauge = new Gauge({
        ...common(name, help),
        collect: async () => {
          const now = await value()
          if (now !== undefined) gauge.set(now)
        },
      })
    },
    histogram: (name, help, { buckets, labelNames }) =>
      new Histogram({ ...common(name, help, labelNames), buckets: [...buckets] }),
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
