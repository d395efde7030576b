import { Counter, Gauge, Histogram, type Registry } from 'prom-client'

/** Creates metrics in one registry, with one prefix. */
interface MetricSet {
  counter<L extends string>(name: string, help: string, labelNames?: readonly L[]): Counter<L>
  gauge<L extends string>(name: string, help: string, labelNames?: readonly L[]): Gauge<L>
  /** A counter that each scrape resets and fills. */
  filled<L extends string>(
    name: string,
    help: string,
    options: {
      readonly labelNames: readonly L[]
      readonly fill: (counter: Counter<L>) => void | Promise<void>
    },
  ): void
  /** A gauge that each scrape resets and fills. */
  levels<L extends string>(
    name: string,
    help: string,
    options: { readonly labelNames: readonly L[]; readonly fill: (gauge: Gauge<L>) => void },
  ): void
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
  return {
    counter: (name, help, labelNames = []) =>
      new Counter({ name: prefix + name, help, labelNames: [...labelNames], registers }),
    gauge: (name, help, labelNames = []) =>
      new Gauge({ name: prefix + name, help, labelNames: [...labelNames], registers }),
    filled<L extends string>(
      name: string,
      help: string,
      options: {
        readonly labelNames: readonly L[]
        readonly fill: (counter: Counter<L>) => void | Promise<void>
      },
    ) {
      const counter: Counter<L> = new Counter({
        name: prefix + name,
        help,
        labelNames: [...options.labelNames],
        registers,
        collect: () => {
          counter.reset()
          return options.fill(counter)
        },
      })
    },
    levels: (name, help, options) => addLevels({ name: prefix + name, help, registers, ...options }),
    asked(name, help, value) {
      const gauge: Gauge = new Gauge({
        name: prefix + name,
        help,
        registers,
        collect: async () => {
          const now = await value()
          if (now !== undefined) gauge.set(now)
        },
      })
    },
    histogram: (name, help, { buckets, labelNames = [] }) =>
      new Histogram({
        name: prefix + name,
        help,
        buckets: [...buckets],
        labelNames: [...labelNames],
        registers,
      }),
  }
}

interface Levels<L extends string> {
  readonly name: string
  readonly help: string
  readonly labelNames: readonly L[]
  readonly fill: (gauge: Gauge<L>) => void
  readonly registers: Registry[]
}

function addLevels<L extends string>({ labelNames, fill, ...rest }: Levels<L>): void {
  const gauge: Gauge<L> = new Gauge({
    ...rest,
    labelNames: [...labelNames],
    collect: () => {
      gauge.reset()
      fill(gauge)
    },
  })
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
