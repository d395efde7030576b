import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { parse } from 'yaml'
import { API } from '../../../src/api/metrics.ts'
import { leftoversMetric } from '../../../src/daemon/retirement.ts'
import { forwarderMetrics } from '../../../src/modes/common/forwarder/forwarder-set.ts'
import { balanceMetrics } from '../../../src/modes/nftables/metrics.ts'
import { RELAY } from '../../../src/relay/metrics.ts'
import { createMetrics } from '../../support/metrics.ts'

const TOP = new URL('../../../', import.meta.url)
const [dashboard, alerts, runbooks, page] = [
  'deploy/grafana-dashboard.json',
  'deploy/helm/kprobe/alerts.yaml',
  'docs/alerts.md',
  'docs/metrics.md',
].map(path => readFileSync(new URL(path, TOP), 'utf8'))

const CONNECTIONS = {
  seriesMax: 1,
  read: () => Promise.resolve([]),
  nowMs: () => 0,
  failed: () => undefined,
}

interface Names {
  readonly metrics: ReadonlySet<string>
  /** What can be asked for: a histogram is three. */
  readonly series: ReadonlySet<string>
  /** Series that only grow: counters, and the three of a histogram. */
  readonly counted: ReadonlySet<string>
}

async function names(): Promise<Names> {
  const text = await createMetrics({ connections: CONNECTIONS }).text()
  const types = [
    ...Array.from(text.matchAll(/^# TYPE (\S+) (\S+)$/gm), ([, name = '', type]) => ({ name, type })),
    ...Object.entries(RELAY).map(([name, { kind }]) => ({ name, type: kind })),
  ]
  const seriesOf = ({ name, type }: (typeof types)[number]) =>
    (type === 'histogram' ? ['_bucket', '_sum', '_count'] : ['']).map(suffix => name + suffix)
  return {
    metrics: new Set(types.map(({ name }) => name)),
    series: new Set(types.flatMap(seriesOf)),
    counted: new Set(types.filter(({ type }) => type !== 'gauge').flatMap(seriesOf)),
  }
}

function namedIn(text: string): string[] {
  return [...text.matchAll(/\b(?:kubeproxy|kprobe|process|nodejs|rest_client|kubernetes)_[a-z_]+\b/g)].map(
    ([name]) => name,
  )
}

/** Prometheus makes it itself, for each target that it scrapes. */
const OF_PROMETHEUS = /^up\b/

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

  it('asks for rates of counters and histograms alone', async () => {
    const { counted } = await names()
    const asked = expressions(read(text)).flatMap(expression =>
      [...expression.matchAll(/\b(?:rate|irate|increase)\(([a-z_]+)/g)].map(([, name = '']) => name),
    )
    expect(asked.length).toBeGreaterThan(0)
    expect(asked.filter(name => !counted.has(name))).toEqual([])
  })

  it('has whole expressions, each with a metric', () => {
    const all = expressions(read(text))
    expect(all.length).toBeGreaterThanOrEqual(least)
    for (const expression of all) {
      expect(namedIn(expression).length > 0 || OF_PROMETHEUS.test(expression), expression).toBe(true)
      for (const [open, close] of ['()', '{}', '[]'])
        expect(expression.split(open ?? '').length, expression).toBe(expression.split(close ?? '').length)
    }
  })
})

interface Rule {
  readonly alert: string
  readonly expr: string
  readonly labels: { readonly severity: string }
  readonly annotations: { readonly summary: string; readonly runbook_url: string }
}

describe('the alerts', () => {
  const rules: readonly Rule[] = parse(alerts ?? '').groups[0].rules
  const page = runbooks ?? ''

  it('have a name, a severity and words for people, each once', () => {
    expect(new Set(rules.map(({ alert }) => alert)).size).toBe(rules.length)
    for (const rule of rules) {
      expect(['info', 'warning', 'critical']).toContain(rule.labels.severity)
      expect(rule.annotations.summary).not.toBe('')
    }
  })

  it('have a runbook each, in their order, and no other has one', () => {
    const sections = page.split(/^## /m).slice(1)
    expect(sections.map(section => section.split('\n')[0])).toEqual(rules.map(({ alert }) => alert))
    for (const section of sections)
      for (const part of ['**Means**', '**Check**', '**Do**']) expect(section).toContain(`\n${part}`)
  })

  it('lead to their runbooks', () => {
    const urls = rules.map(({ annotations }) => annotations.runbook_url)
    expect(urls).toEqual(rules.map(({ alert }) => `docs/alerts.md#${alert.toLowerCase()}`))
  })

  it('concern kprobe alone: other programs have metrics of the same names', () => {
    const shared = rules.filter(({ expr }) => namedIn(expr).some(name => !name.startsWith('kprobe_')))
    expect(shared.map(({ alert }) => alert)).toEqual([
      'KprobeBehind',
      'KprobeProgrammingSlow',
      'KprobeDescriptorsShort',
      'KprobeNoLocalEndpoints',
    ])
    for (const { alert, expr } of shared) {
      expect(expr, alert).toMatch(/ and on \(instance, job\) kprobe_build_info$/)
      for (const [, labels = ''] of expr.matchAll(/\bby \(([^)]*)\)/g))
        expect(labels.split(', '), alert).toEqual(expect.arrayContaining(['instance', 'job']))
    }
  })

  it('find a change that waits, however soon after the last sync it came', () => {
    const behind = rules.find(({ alert }) => alert === 'KprobeBehind')
    const [last, queued] = ['last', 'last_queued'].map(
      name => `kubeproxy_sync_proxy_rules_${name}_timestamp_seconds`,
    )
    const waits = `${queued} > ${last} or on (instance, job) `
    expect(behind?.expr).toContain(`time() - ${last} > 60 and on (instance, job) ( ${waits}`)
  })

  it('tell of a node whose kprobe is down, by the job of the page and of the PodMonitor', () => {
    const [, job = ''] = /^up\{job=~"(.*)"\} == 0$/.exec(rules[0]?.expr ?? '') ?? []
    const isJob = new RegExp(`^(?:${job})$`)
    expect(page).toContain('job_name: kprobe ')
    expect(
      ['kprobe', 'kube-system/kprobe', 'kprobes', 'kube-system/other'].map(name => isJob.test(name)),
    ).toEqual([true, true, false, false])
  })
})

const BALANCED = { frontends: { services: new Map([['', { ports: [{ balance: { policy: 'maglev' } }] }]]) } }
const NONE = { held: 0, refused: 0 }

/** `name meaning` of all metrics of kprobe's own. */
async function ownMetrics(): Promise<readonly string[]> {
  const text = await createMetrics({ connections: CONNECTIONS }).text()
  const found = [...text.matchAll(/^# HELP (kprobe_\S+ .*)$/gm)]
  const relayed = forwarderMetrics({ listeners: 0, tcp: NONE, udp: NONE, loops: 0 })
  const others = [API, RELAY, relayed, leftoversMetric(undefined), balanceMetrics(BALANCED as never)].flatMap(
    table => Object.entries(table).map(([name, { help }]) => `${name} ${help}`),
  )
  return [...new Set([...found.map(([, line = '']) => line), ...others])]
}

it("docs/metrics.md lists kprobe's metrics with their meaning, all of them and no other", async () => {
  const rows = [...(page ?? '').matchAll(/^\| `(kprobe_\w+)` \|.*\| (.*) \|$/gm)].map(
    ([, name = '', meaning = '']) => `${name} ${meaning}`,
  )
  expect([...rows].sort()).toEqual([...(await ownMetrics())].sort())
})
