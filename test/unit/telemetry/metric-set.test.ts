import { describe, expect, it } from 'vitest'
import { ModeMetrics, metricSet, Registry } from '../../../src/telemetry/metric-set.ts'

/** Written by the registry that kprobe had of its own before prom-client: scrapers see no difference. */
const TEXT = String.raw`# HELP x_bare_total Of \\ and\nlines.
# TYPE x_bare_total counter
x_bare_total 1.25

# HELP x_by_total By two.
# TYPE x_by_total counter
x_by_total{one="a\"b\\c\nd",two=""} 0
x_by_total{one="a",two="b"} 4
x_by_total{one="ab",two=""} 1
x_by_total{one="__proto__",two="é ✓"} 1

# HELP x_level Level.
# TYPE x_level gauge
x_level +Inf

# HELP x_low Low.
# TYPE x_low gauge
x_low{of="x"} -Inf

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
x_seconds_bucket{le="0",of="more"} 0
x_seconds_bucket{le="0.5",of="more"} 0
x_seconds_bucket{le="1",of="more"} 1
x_seconds_bucket{le="+Inf",of="more"} 2
x_seconds_sum{of="more"} 3
x_seconds_count{of="more"} 2

# HELP x_bare_seconds Bare.
# TYPE x_bare_seconds histogram
x_bare_seconds_bucket{le="0"} 0
x_bare_seconds_bucket{le="0.5"} 1
x_bare_seconds_bucket{le="1"} 1
x_bare_seconds_bucket{le="+Inf"} 1
x_bare_seconds_sum 0.3
x_bare_seconds_count 1

# HELP x_filled_total Filled.
# TYPE x_filled_total counter
x_filled_total{of="now"} 7

# HELP x_levels Levels.
# TYPE x_levels gauge
x_levels 3

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

function examples(): Registry {
  const registry = new Registry()
  const { counter, gauge, histogram, filled, levels, asked, askedOf } = metricSet(registry, 'x_')
  const bare = counter('bare_total', 'Of \\ and\nlines.')
  bare.inc()
  bare.inc(0.25)
  const by = counter('by_total', 'By two.', ['one', 'two'])
  by.inc({ one: 'a"b\\c\nd', two: '' }, 0)
  by.inc({ one: 'a', two: 'b' })
  by.inc({ one: 'a', two: 'b' }, 3)
  by.inc({ one: 'ab', two: '' })
  by.inc({ one: '__proto__', two: 'é ✓' })
  gauge('level', 'Level.').set(Number.POSITIVE_INFINITY)
  gauge('low', 'Low.', ['of']).set({ of: 'x' }, Number.NEGATIVE_INFINITY)
  gauge('unknown', 'Unknown.').set(Number.NaN)
  gauge('empty', 'Nothing yet.', ['of'])
  const seconds = histogram('seconds', 'Seconds.', { buckets: [0, 0.5, 1], labelNames: ['of'] })
  for (const value of [-1, 0, 0.5, 0.75, 1, 2]) seconds.observe({ of: value < 1 ? 'less' : 'more' }, value)
  histogram('bare_seconds', 'Bare.', { buckets: [0, 0.5, 1] }).observe(0.3)
  filled('filled_total', 'Filled.', { labelNames: ['of'], fill: metric => metric.inc({ of: 'now' }, 7) })
  levels('levels', 'Levels.', { labelNames: [], fill: metric => metric.set(3) })
  asked('asked', 'Asked.', async () => 4)
  askedOf(() => ({ a: 5 }), { of_a: ['Of a.', ({ a }) => a], of_nothing: ['Of nothing.', () => undefined] })
  const values = [{ labels: { l: 'v' }, value: 1e21 }]
  new ModeMetrics(registry).take([
    { name: 'mode_total', help: 'Of a mode.', kind: 'counter', labelNames: ['l'], values },
  ])
  return registry
}

describe('the text of metrics', () => {
  it('is the same as ever, scrape after scrape, whatever format others ask for', async () => {
    const registry = examples()
    expect(await registry.text()).toBe(TEXT)
    const [open, text] = await Promise.all([registry.text('openmetrics'), registry.text()])
    expect(text).toBe(TEXT)
    expect(await registry.text('openmetrics')).toBe(open)
  })

  it('has the same series in OpenMetrics, and ends with # EOF', async () => {
    const lines = (await examples().text('openmetrics')).split('\n')
    expect(lines.slice(-2)).toEqual(['# EOF', ''])
    const series = (all: readonly string[]) => all.filter(line => line !== '' && !line.startsWith('#'))
    expect(series(lines)).toEqual(series(TEXT.split('\n')))
    expect(lines).toContain('# TYPE x_by counter')
    expect(lines).toContain('# TYPE x_seconds histogram')
  })

  it('keeps the name of a counter without _total in OpenMetrics', async () => {
    const registry = new Registry()
    metricSet(registry, 'x_').counter('objects', 'Objects.').inc(2)
    expect(await registry.text('openmetrics')).toBe(
      '# HELP x_objects Objects.\n# TYPE x_objects unknown\nx_objects 2\n# EOF\n',
    )
  })

  it('writes exemplars in OpenMetrics alone', async () => {
    const registry = new Registry()
    metricSet(registry, 'x_').exemplified('seconds', 'Seconds.', [1])(0.5, { generation: '7' })
    expect(await registry.text('openmetrics')).toMatch(
      /^x_seconds_bucket\{le="1"\} 1 # \{generation="7"\} 0\.5 \d+(\.\d+)?$/m,
    )
    expect(await registry.text()).toContain('\nx_seconds_bucket{le="1"} 1\n')
  })

  it('shows one moment: no metric is written before the last is collected', async () => {
    const registry = new Registry()
    const { counter, asked } = metricSet(registry, 'x_')
    const reads = counter('reads_total', 'Reads.')
    asked('slow', 'Slow.', async () => {
      await new Promise(setImmediate)
      reads.inc()
      return 1
    })
    expect(await registry.text()).toContain('x_reads_total 1')
  })

  it('refuses a second metric of one name, and a name or label that is none', () => {
    const { counter } = metricSet(new Registry(), 'x_')
    counter('a_total', 'A.')
    expect(() => counter('a_total', 'A.')).toThrow('x_a_total')
    expect(() => counter('a b', 'A.')).toThrow('Invalid metric name')
    expect(() => counter('b_total', 'B.', ['a b'])).toThrow('Invalid label name')
  })

  it('takes the metrics of a mode away in both formats', async () => {
    const registry = new Registry()
    const modes = new ModeMetrics(registry)
    modes.take([{ name: 'mode_total', help: 'Of a mode.', kind: 'counter', labelNames: [], values: [] }])
    await registry.text('openmetrics')
    modes.take([])
    expect(await registry.text()).toBe('\n')
    expect(await registry.text('openmetrics')).toBe('\n# EOF\n')
  })
})
