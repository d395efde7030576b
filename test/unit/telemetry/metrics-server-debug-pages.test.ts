import { expect, it } from 'vitest'
import { flagzText, statuszText } from '../../../src/telemetry/metrics-server.ts'
import { endpoint, node, service, slice, tableOf } from '../model/objects.ts'

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

it('/statusz says since when the process runs, in which mode, what it programmed and when', () => {
  const startedWallMs = Date.UTC(2026, 10, 21, 10, 0, 0)
  const wallMs = startedWallMs + (26 * 3600 + 62) * 1000
  const process = { startedWallMs, version: '0.1.0 (commit abc)', nodeName: 'node-1' }
  const paths = ['/healthz', '/metrics']
  const now = { wallMs, paths, mode: 'ipvs', ready: true, lastSync: { IPv4: '2026-11-21T10:00:01Z' } }
  const table = tableOf([
    node(),
    service('web'),
    slice('web-1', 'web', [endpoint('10.1.0.1'), endpoint('10.1.0.2')]),
  ])
  const text = statuszText(process, { ...now, table })
  expect(text).toContain('\nStarted: Sat, 21 Nov 2026 10:00:00 GMT\nUp: 26 hr 01 min 02 sec\n')
  expect(text).toContain('\nBinary version: 0.1.0 (commit abc)\nPaths: /healthz /metrics\nNode: node-1\n')
  expect(text).toContain(
    '\nProxy mode: ipvs\nProgrammed: 1 Service, 1 port, 2 endpoints\nLast sync: IPv4 2026-11-21T10:00:01Z\nReady: yes\n',
  )
  expect(text).not.toContain('Stale')
  expect(statuszText(process, { ...now, table, staleSeconds: 42 })).toContain(
    '\nStale: the saved state is served; the API server confirmed it 42 s ago\nReady: yes\n',
  )
  expect(text).not.toContain('Relayed')
  const relaying = { ...table, forwardedAtLocalhost: ['IPv4', 'IPv6'] } as const
  expect(statuszText(process, { ...now, table: relaying })).toContain(
    '\nRelayed: node ports at localhost, IPv4 and IPv6\n',
  )
  const before = statuszText(process, { ...now, table: undefined, ready: false })
  expect(before).toContain('\nProgrammed: nothing yet\n')
  expect(before).toContain('\nReady: no (see /healthz)\n')
})
