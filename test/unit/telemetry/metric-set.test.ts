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
})
