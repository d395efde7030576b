import { spawnSync } from 'node:child_process'
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { requireBinaries } from '../support/reference/binaries.ts'

/* What other programs read of us, as they read it: Prometheus the alerts, GitHub the workflows. */

const ROOT = fileURLToPath(new URL('../../', import.meta.url))
const ALERTS = `${ROOT}deploy/helm/kprobe/alerts.yaml`
const WORKFLOWS = `${ROOT}.github/workflows/`
const { checkRules = '', firingAlerts = '', actionlint = '' } = requireBinaries()

let folder: string

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'kprobe-checks-'))
})

afterAll(() => rmSync(folder, { recursive: true, force: true }))

function run(file: string, ...args: readonly string[]) {
  const { status, stdout, stderr } = spawnSync(file, args, { encoding: 'utf8' })
  return { status, output: stdout + stderr }
}

/** A copy of a file in which `from` is `to`. */
function damaged(path: string, from: string, to: string): string {
  const text = readFileSync(path, 'utf8')
  expect(text).toContain(from)
  const copy = join(folder, 'damaged.yml')
  writeFileSync(copy, text.replace(from, to))
  return copy
}

describe.skipIf(checkRules === '')('Prometheus', () => {
  test('takes the alerts', () => {
    expect(run(checkRules, ALERTS)).toEqual({ status: 0, output: '' })
  })

  test.each([
    ['an expression', 'kprobe_ready == 0', 'kprobe_ready == '],
    ['a template', '{{ $labels.instance }} is not ready', '{{ $lable.instance }} is not ready'],
    ['a duration', 'for: 5m', 'for: 5 minutes'],
  ])('would refuse %s that is wrong', (_, from, to) => {
    expect(run(checkRules, damaged(ALERTS, from, to)).status).toBe(1)
  })
})

interface Series {
  readonly labels: Readonly<Record<string, string>>
  /** Every 30 s, until now. */
  readonly values: readonly number[]
}

/** As test/reference/checks/firing has it. */
const NOW_S = 100_000
const SYNC = 'kubeproxy_sync_proxy_rules'

/** What a program at `instance` publishes: each metric with one value throughout. */
function metricsOf(job: string, instance: string, metrics: Readonly<Record<string, number>>): Series[] {
  return Object.entries(metrics).map(([name, value]) => ({
    labels: { __name__: name, job, instance },
    values: [value, value, value],
  }))
}

/** The times of a node, in seconds before now, and the changes that wait there. */
function syncs(job: string, instance: string, [last, queued, pending]: readonly number[]): Series[] {
  return metricsOf(job, instance, {
    [`${SYNC}_last_timestamp_seconds`]: NOW_S - Number(last),
    [`${SYNC}_last_queued_timestamp_seconds`]: NOW_S - Number(queued),
    [`${SYNC}_service_changes_pending`]: 0,
    [`${SYNC}_endpoint_changes_pending`]: Number(pending),
  })
}

/** Metrics that kube-proxy has as well, all beyond the limits of the alerts. */
function troubled(job: string, instance: string): Series[] {
  const buckets = ['50', '60', '+Inf'].map(le => ({
    labels: { __name__: 'kubeproxy_network_programming_duration_seconds_bucket', job, instance, le },
    values: le === '50' ? [0, 0, 0] : [0, 10, 20],
  }))
  const rest = { process_open_fds: 90, process_max_fds: 100, [`${SYNC}_no_local_endpoints_total`]: 1 }
  return [...buckets, ...metricsOf(job, instance, rest), ...syncs(job, instance, [600, 595, 0])]
}

describe.skipIf(firingAlerts === '')('an alert fires', () => {
  const kprobe = (instance: string) => metricsOf('kprobe', instance, { kprobe_build_info: 1 })

  /** The alerts with the nodes that they name. */
  function firing(...series: readonly Series[]): unknown {
    const { status, output } = run(firingAlerts, ALERTS, JSON.stringify(series))
    expect({ status, output: status === 0 ? '' : output }).toEqual({ status: 0, output: '' })
    const found: Readonly<Record<string, readonly { readonly instance?: string }[]>> = JSON.parse(output)
    return Object.fromEntries(
      Object.entries(found).map(([alert, all]) => [alert, all.map(({ instance }) => instance)]),
    )
  }

  test('for kprobe, and not for another program with the same metrics, on this node or another', () => {
    const others = ['a', 'b'].flatMap(node => troubled('kube-proxy', node))
    expect(firing(...kprobe('a'), ...others)).toEqual({})
    expect(firing(...kprobe('a'), ...troubled('kprobe', 'a'), ...others)).toEqual({
      KprobeBehind: ['a'],
      KprobeProgrammingSlow: ['a'],
      KprobeDescriptorsShort: ['a'],
      KprobeNoLocalEndpoints: ['a'],
    })
  })

  test.each([
    ['whose only change came 5 s after the last sync', [600, 595, 0], ['a']],
    ['whose changes keep coming', [600, 3, 5], ['a']],
    ['whose change came while the last sync ran', [600, 605, 1], ['a']],
    ['that has nothing to do', [600, 605, 0], undefined],
    ['that keeps syncing', [10, 1, 5], undefined],
  ])('for a node %s, as it should', (_, times, nodes) => {
    expect(firing(...kprobe('a'), ...syncs('kprobe', 'a', times))).toEqual(
      nodes === undefined ? {} : { KprobeBehind: nodes },
    )
  })

  test('for targets that are down and for none: only these', () => {
    expect(firing()).toEqual({ KprobeAbsent: [undefined] })
    expect(firing(...metricsOf('kprobe', 'a', { up: 0 }))).toEqual({
      KprobeAbsent: [undefined],
      KprobeDown: ['a'],
    })
  })
})

describe.skipIf(actionlint === '')('GitHub', () => {
  // Neither depends on what else this machine has.
  const lint = (path: string) => run(actionlint, '-shellcheck=', '-pyflakes=', '-no-color', path)

  test.each(readdirSync(WORKFLOWS))('takes %s', name => {
    expect(lint(WORKFLOWS + name)).toEqual({ status: 0, output: '' })
  })

  test('would refuse an expression that is wrong', () => {
    const { status, output } = lint(damaged(`${WORKFLOWS}release.yml`, 'matrix.runner', 'matrix.machine'))
    expect(status).toBe(1)
    expect(output).toContain('property "machine" is not defined')
  })
})
