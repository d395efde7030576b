import { expect, test } from 'vitest'
import { familyLine, parseMetrics } from '../../../support/reference/metrics-text.ts'

const TEXT = `# HELP seconds [ALPHA] How long.
# TYPE seconds histogram
seconds_bucket{ip_family="IPv4",le="0.5"} 1
seconds_bucket{ip_family="IPv4",le="+Inf"} 2
seconds_sum{ip_family="IPv4"} 0.7
seconds_count{ip_family="IPv4"} 2
# TYPE errors_total counter
errors_total{host="[::1]:6443",code="40,3"} 3
errors_total{host="a\\"b",code="500"} 1e+06
# TYPE up gauge
up 1
`

test('a scrape tells names, types, labels and buckets', () => {
  expect(parseMetrics(TEXT).map(familyLine)).toEqual([
    'errors_total counter code,host',
    'seconds histogram ip_family le=0.5,+Inf',
    'up gauge',
  ])
})

test('samples keep their labels and values', () => {
  const [errors] = parseMetrics(TEXT)
  expect([...(errors?.samples ?? [])]).toEqual([
    ['errors_total{host="[::1]:6443",code="40,3"}', 3],
    ['errors_total{host="a\\"b",code="500"}', 1_000_000],
  ])
})
