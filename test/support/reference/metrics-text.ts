type MetricType = 'counter' | 'gauge' | 'histogram' | 'summary' | 'untyped'

/** What a scrape tells of one metric. */
interface MetricFamily {
  readonly name: string
  readonly type: MetricType
  /** Sorted; without le and quantile. */
  readonly labels: readonly string[]
  /** Of a histogram, as written: `0.001`, `+Inf`. */
  readonly buckets: readonly string[]
  readonly samples: ReadonlyMap<string, number>
}

const TYPES: readonly MetricType[] = ['counter', 'gauge', 'histogram', 'summary', 'untyped']

/** Reads the text exposition format; samples are keyed as written, name and labels. Sorted by name. */
export function parseMetrics(text: string): readonly MetricFamily[] {
  const families = new Map<string, Collected>()
  let current: Collected | undefined
  for (const line of text.split('\n')) {
    const type = /^# TYPE (\S+) (\S+)$/.exec(line)
    if (type !== null) {
      current = collected(type[1] ?? '', type[2] ?? '')
      families.set(current.name, current)
    } else if (line !== '' && !line.startsWith('#') && current !== undefined) addSample(current, line)
  }
  return [...families.values()]
    .map(({ labels, buckets, ...rest }) => ({ ...rest, labels: [...labels].sort(), buckets: [...buckets] }))
    .sort((a, b) => (a.name < b.name ? -1 : 1))
}

/** `NAME TYPE label,label le=0.001,0.002`: what has to be the same in another implementation. */
export function familyLine({ name, type, labels, buckets }: MetricFamily): string {
  const words = [name, type, ...(labels.length === 0 ? [] : [labels.join(',')])]
  return [...words, ...(buckets.length === 0 ? [] : [`le=${buckets.join(',')}`])].join(' ')
}

interface Collected {
  readonly name: string
  readonly type: MetricType
  readonly labels: Set<string>
  readonly buckets: Set<string>
  readonly samples: Map<string, number>
}

function collected(name: string, type: string): Collected {
  return {
    name,
    type: TYPES.find(one => one === type) ?? 'untyped',
    labels: new Set(),
    buckets: new Set(),
    samples: new Map(),
  }
}

function addSample(family: Collected, line: string): void {
  const match = /^(\w[\w:]*(?:\{(.*)\})?) (\S+)/.exec(line)
  if (match === null) return
  const [, key = '', labels = '', value = ''] = match
  family.samples.set(key, Number(value))
  for (const [, label = '', text = ''] of labels.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
    if (label === 'le') family.buckets.add(text)
    else if (label !== 'quantile') family.labels.add(label)
  }
}
