import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { parse } from 'yaml'
import { createMetrics } from '../../../src/telemetry/metrics.ts'

const DEPLOY = new URL('../../../deploy/', import.meta.url)
const [dashboard, alerts] = ['grafana-dashboard.json', 'alerts.yaml'].map(name =>
  readFileSync(new URL(name, DEPLOY), 'utf8'),
)

const CONNECTIONS = {
  seriesMax: 0,
  read: () => Promise.resolve([]),
  nowMs: () => 0,
  failed: () => undefined,
}

interface Names {
  readonly metrics: ReadonlySet<string>
  /** What can be asked for: a histogram is three. */
  readonly series: ReadonlySet<string>
}

async function names(): Promise<Names> {
  const types = [
    ...(await createMetrics({ connections: CONNECTIONS }).text()).matchAll(/^# TYPE (\S+) (\S+)$/gm),
  ]
  const series = types.flatMap(([, name = '', type]) =>
    (type === 'histogram' ? ['_bucket', '_sum', '_count'] : ['']).map(suffix => name + suffix),
  )
  return { metrics: new Set(types.map(([, name = '']) => name)), series: new Set(series) }
}

function namedIn(text: string): string[] {
  return [...text.matchAll(/\b(?:kubeproxy|kprobe|process|nodejs|rest_client|kubernetes)_[a-z_]+\b/g)].map(
    ([name]) => name,
  )
}

/** The fields called `expr`, wherever they are. */
function expressions(value: unknown): string[] {
  if (typeof value !== 'object' || value === null) return []
  return Object.entries(value).flatMap(([name, its]) =>
    name === 'expr' && typeof its === 'string' ? [its] : expressions(its),
  )
}

describe.each([
  ['the dashboard', dashboard, (text: string): unknown => JSON.parse(text), 40],
  ['the alerts', alerts, (text: string): unknown => parse(text), 10],
])('%s', (_, text = '', read, least) => {
  it('names metrics that exist', async () => {
    const { metrics, series } = await names()
    const asked = expressions(read(text)).flatMap(namedIn)
    expect(asked.length).toBeGreaterThanOrEqual(least)
    expect(asked.filter(name => !series.has(name))).toEqual([])
    expect(namedIn(text).filter(name => !series.has(name) && !metrics.has(name))).toEqual([])
  })

  it('has whole expressions, each with a metric', () => {
    const all = expressions(read(text))
    expect(all.length).toBeGreaterThanOrEqual(least)
    for (const expression of all) {
      expect(namedIn(expression).length, expression).toBeGreaterThan(0)
      for (const [open, close] of ['()', '{}', '[]'])
        expect(expression.split(open ?? '').length, expression).toBe(expression.split(close ?? '').length)
    }
  })
})

describe('the alerts', () => {
  it('have a name, a severity and words for people, each once', () => {
    const { groups } = parse(alerts ?? '')
    const rules: { alert: string; labels: { severity: string }; annotations: { summary: string } }[] =
      groups[0].rules
    expect(new Set(rules.map(({ alert }) => alert)).size).toBe(rules.length)
    for (const rule of rules) {
      expect(['info', 'warning', 'critical']).toContain(rule.labels.severity)
      expect(rule.annotations.summary).not.toBe('')
    }
  })
})
