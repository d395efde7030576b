import { describe, expect, it } from 'vitest'
import {
  counter,
  exemplified,
  gauge,
  histogram,
  MetricSet,
  readCounter,
  readGauge,
} from '../../../src/telemetry/metric-set.ts'

/** Written by the registry that kprobe had of its own before prom-client: scrapers see no difference. */
const TEXT = String.raw`# HELP x_bare_total Of \\ and\nlines.
# TYPE x_bare_total counter
x_bare_total 1.25

# HELP x_by_total By two.
# TYPE x_by_total counter
x_by_total{one="a\"b\\c\nd",two=""} 0
x_by_total{one="a",two="b"} 4
x_by_total{one="__proto__",two="é ✓"} 1

# HELP x_level Level.
# TYPE x_level gauge
x_level +Inf

# HELP x_unknown Unknown.
# TYPE x_unknown gauge
x_unknown NaN

# HELP x_empty Nothing yet.
# TYPE x_empty gauge

# HELP x_seconds Seconds.
# TYPE x_seconds histogram
x_seconds_bucket{le="0",of="less"} 2
x_seconds_bucket{le="0.5",of="less"} 3
x_seconds_bucket{le="1",of="less"} 4
x_seconds_bucket{le="+Inf",of="less"} 4
x_seconds_sum{of="less"} 0.25
x_seconds_count{of="less"} 4

# HELP x_filled_total Filled.
# TYPE x_filled_total counter
x_filled_total{of="now"} 7

# HELP x_asked Asked.
# TYPE x_asked gauge
x_asked 4

# HELP x_of_a Of a.
# TYPE x_of_a gauge
x_of_a 5

# HELP x_of_nothing Of nothing.
# TYPE x_of_nothing gauge
x_of_nothing 0

# HELP mode_total Of a mode.
# TYPE mode_total counter
mode_total{l="v"} 1e+21
`

const ROWS = {
  x_bare_total: counter('Of \\ and\nlines.'),
  x_by_total: counter('By two.', 'one', 'two'),
  x_level: gauge('Level.'),
  x_unknown: gauge('Unknown.'),
  x_empty: gauge('Nothing yet.', 'of'),
  x_seconds: histogram('Seconds.', [0, 0.5, 1], 'of'),
  x_filled_total: readCounter('Filled.', ({ a }: { a: number }) => [[{ of: 'now' }, a + 2]], 'of'),
  x_asked: readGauge('Asked.', async () => 4),
  x_of_a: readGauge('Of a.', ({ a }: { a: number }) => a),
  x_of_nothing: readGauge('Of nothing.', () => undefined),
}

const OF_MODE = { mode_total: readCounter('Of a mode.', () => [[{ l: 'v' }, 1e21]], 'l') }

function examples(): MetricSet {
  const set = new MetricSet()
  const metrics = set.add(ROWS, () => ({ a: 5 }))
  metrics.x_bare_total.inc()
  metrics.x_bare_total.inc(0.25)
  metrics.x_by_total.inc({ one: 'a"b\\c\nd', two: '' }, 0)
  metrics.x_by_total.inc({ one: 'a', two: 'b' })
  metrics.x_by_total.inc({ one: 'a', two: 'b' }, 3)
  metrics.x_by_total.inc({ one: '__proto__', two: 'é ✓' })
  metrics.x_level.set(Number.POSITIVE_INFINITY)
  metrics.x_unknown.set(Number.NaN)
  for (const value of [-1, 0, 0.5, 0.75]) metrics.x_seconds.observe({ of: 'less' }, value)
  return set
}

describe('the text of metrics', () => {
  it('is the same as ever, scrape after scrape, whatever format others ask for', async () => {
    const set = examples()
    expect(await set.text('text', OF_MODE)).toBe(TEXT)
    const [open, text] = await Promise.all([set.text('openmetrics', OF_MODE), set.text('text', OF_MODE)])
    expect(text).toBe(TEXT)
    expect(await set.text('openmetrics', OF_MODE)).toBe(open)
  })

  it('has the same series in OpenMetrics, and ends with # EOF', async () => {
    const lines = (await examples().text('openmetrics', OF_MODE)).split('\n')
    expect(lines.slice(-2)).toEqual(['# EOF', ''])
    const series = (all: readonly string[]) => all.filter(line => line !== '' && !line.startsWith('#'))
    expect(series(lines)).toEqual(series(TEXT.split('\n')))
    expect(lines).toContain('# TYPE x_by counter')
    expect(lines).toContain('# TYPE x_seconds histogram')
  })

  it('keeps the name of a counter without _total in OpenMetrics', async () => {
    const set = new MetricSet()
    set.add({ x_objects: counter('Objects.') }, () => undefined).x_objects.inc(2)
    expect(await set.text('openmetrics')).toBe(
      '# HELP x_objects Objects.\n# TYPE x_objects unknown\nx_objects 2\n# EOF\n',
    )
  })

  it('writes exemplars in OpenMetrics alone', async () => {
    const set = new MetricSet()
    const { x_seconds: seconds } = set.add({ x_seconds: exemplified('Seconds.', [1]) }, () => undefined)
    seconds.observe({ labels: {}, value: 0.5, exemplarLabels: { generation: '7' } })
    expect(await set.text('openmetrics')).toMatch(
      /^x_seconds_bucket\{le="1"\} 1 # \{generation="7"\} 0\.5 \d+(\.\d+)?$/m,
    )
    expect(await set.text()).toContain('\nx_seconds_bucket{le="1"} 1\n')
  })

  it('shows one moment: no metric is written before the last is read', async () => {
    const set = new MetricSet()
    const slow = async (): Promise<number> => {
      await new Promise(setImmediate)
      metrics.x_reads_total.inc()
      return 1
    }
    const rows = { x_reads_total: counter('Reads.'), x_slow: readGauge('Slow.', slow) }
    const metrics = set.add(rows, () => undefined)
    expect(await set.text()).toContain('x_reads_total 1')
  })

  it('shows the values of one read, whatever scrapes at the same time', async () => {
    const set = new MetricSet()
    set.add({ x_total: readCounter('Slow.', (now: number) => [[{ of: 'x' }, now]], 'of') }, async () => 3)
    const texts = await Promise.all([set.text(), set.text()])
    for (const text of texts) expect(text).toContain('x_total{of="x"} 3\n')
  })

  it('refuses a second metric of one name, and a name or label that is none', () => {
    const set = new MetricSet()
    const add = (name: string, label: string) => set.add({ [name]: counter('A.', label) }, () => undefined)
    add('x_a_total', 'a')
    expect(() => add('x_a_total', 'a')).toThrow('x_a_total')
    expect(() => add('x_a b', 'a')).toThrow('Invalid metric name')
    expect(() => add('x_b_total', 'a b')).toThrow('Invalid label name')
  })

  it('has the metrics of a mode only in the scrape that they are given to', async () => {
    const set = new MetricSet()
    for (const format of ['text', 'openmetrics'] as const)
      expect(await set.text(format, OF_MODE)).toContain('mode_total{l="v"} 1e+21')
    expect(await set.text()).toBe('\n')
    expect(await set.text('openmetrics')).toBe('\n# EOF\n')
  })
})

it('compiles with the labels and names of the table only', () => {
  const set = new MetricSet()
  const metrics = set.add({ x_total: counter('X.', 'one', 'two'), x_level: gauge('L.') }, () => undefined)
  metrics.x_total.inc({ one: '1', two: '2' })
  // @ts-expect-error: a label is missing
  metrics.x_total.inc({ one: '1' })
  // @ts-expect-error: x_totals is no row
  expect(() => metrics.x_totals.inc()).toThrow()
  // @ts-expect-error: a label that the row does not have
  expect(() => metrics.x_total.inc({ one: '1', two: '2', three: '3' })).toThrow()
  // @ts-expect-error: a row without labels
  expect(() => metrics.x_level.set({ of: 'x' }, 1)).toThrow()
  // @ts-expect-error: the series of a row have its labels
  readGauge('R.', () => [[{ to: 'x' }, 1]], 'of')
})
