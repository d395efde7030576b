import { expect, it } from 'vitest'
import { flagzText, statuszText } from '../../../src/telemetry/debug-pages.ts'

it('lists flags by name, a line each', () => {
  const lines = flagzText(
    new Map([
      ['v', '2'],
      ['cluster-cidr', ''],
      ['feature-gates', 'AllAlpha=false'],
    ]),
  ).split('\n')
  expect(lines.slice(0, 2)).toEqual(['', 'kube-proxy flagz'])
  expect(lines.slice(4)).toEqual(['cluster-cidr=', 'feature-gates=AllAlpha=false', 'v=2', ''])
})

it('tells since when the process runs, and what else there is', () => {
  const startedWallMs = Date.UTC(2026, 10, 21, 10, 0, 0)
  const wallMs = startedWallMs + (26 * 3600 + 62) * 1000
  const text = statuszText({ startedWallMs, version: '0.1.0' }, { wallMs, paths: ['/healthz', '/metrics'] })
  expect(text).toContain('\nStarted: Sat, 21 Nov 2026 10:00:00 GMT\nUp: 26 hr 01 min 02 sec\n')
  expect(text).toContain('\nBinary version: 0.1.0\nPaths: /healthz /metrics\n')
})
