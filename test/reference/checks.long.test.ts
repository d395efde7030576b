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
const { checkRules = '', actionlint = '' } = requireBinaries()

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
