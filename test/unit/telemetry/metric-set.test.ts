import { Counter, Gauge, Histogram, Registry as Reference } from 'prom-client'
import { describe, expect, it } from 'vitest'
import { metricSet, Registry } from '../../../src/telemetry/metric-set.ts'

const HELP = 'Of \\ and\nlines.'
const BUCKETS = [0, 0.5, 1]

/** What both do at the same metrics gives the same text. */
describe('the text of metrics', () => {
  it('is that of prom-client', async () => {
    const ours = new Registry()
    const { counter, gauge, histogram } = metricSet(ours, 'x_')
    const reference = new Reference()
    const named = (name: string) => ({ name: `x_${name}`, help: HELP, registers: [reference] })
    const counters = [counter('bare_total', HELP), new Counter({ ...named('bare_total') })]
    const labelled: readonly { inc(labels: { one: string; two: string }, value?: number): void }[] = [
      counter('by_total', HELP, ['one', 'two']),
      new Counter({ ...named('by_total'), labelNames: ['one', 'two'] }),
    ]
    const gauges = [gauge('level', HELP), new Gauge({ ...named('level') })]
    const histograms: readonly { observe(labels: { of: string }, value: number): void }[] = [
      histogram('seconds', HELP, { buckets: BUCKETS, labelNames: ['of'] }),
      new Histogram({ ...named('seconds'), buckets: BUCKETS, labelNames: ['of'] }),
    ]
    const bare = [
      histogram('bare_seconds', HELP, { buckets: BUCKETS }),
      new Histogram({ ...named('bare_seconds'), buckets: BUCKETS }),
    ]
    for (const each of counters) {
      each.inc()
      each.inc(0.25)
    }
    for (const each of labelled) {
      each.inc({ one: 'a"b\\c\nd', two: '' }, 0)
      each.inc({ one: 'a', two: 'b' })
      each.inc({ one: 'a', two: 'b' }, 3)
      each.inc({ one: 'ab', two: '' })
    }
    for (const each of gauges) each.set(Number.POSITIVE_INFINITY)
    for (const each of histograms)
      for (const value of [-1, 0, 0.5, 0.75, 1, 2]) each.observe({ of: value < 1 ? 'less' : 'more' }, value)
    for (const each of bare) each.observe(0.3)
    expect(await ours.text()).toBe(await reference.metrics())
  })

  it('has the values of the scrape alone where a scrape fills a metric', async () => {
    const registry = new Registry()
    const { filled, levels, asked } = metricSet(registry, 'x_')
    let names = ['a', 'b']
    const fill = (set: (labels: { readonly name: string }) => void) => {
      for (const name of names) set({ name })
    }
    filled('one_total', HELP, { labelNames: ['name'], fill: counter => fill(labels => counter.inc(labels)) })
    levels('two', HELP, { labelNames: ['name'], fill: gauge => fill(labels => gauge.set(labels, 2)) })
    let now: number | undefined = 7
    asked('three', HELP, () => now)
    const values = async () => (await registry.text()).split('\n').filter(line => /^x_/.test(line))
    expect(await values()).toEqual([
      'x_one_total{name="a"} 1',
      'x_one_total{name="b"} 1',
      'x_two{name="a"} 2',
      'x_two{name="b"} 2',
      'x_three 7',
    ])
    names = ['b']
    now = undefined
    expect(await values()).toEqual(['x_one_total{name="b"} 1', 'x_two{name="b"} 2', 'x_three 7'])
  })

  it('refuses a counter that falls, a value that is none, and a name that exists', () => {
    const { counter, histogram } = metricSet(new Registry(), 'x_')
    expect(() => counter('a_total', HELP).inc(-1)).toThrow('x_a_total cannot fall')
    expect(() => histogram('b', HELP, { buckets: BUCKETS }).observe(Number.NaN)).toThrow(
      'x_b cannot hold NaN',
    )
    expect(() => counter('a_total', HELP)).toThrow('x_a_total exists')
  })
})
