import { execFileSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { buildSync } from 'esbuild'
import { expect, it } from 'vitest'
import { freePorts } from '../../support/reference/ports.ts'

/**
 * Health checks of 60 Services in a process that may have few descriptors; then those that listen go, so that others get
 * their turn. Time runs fifty times as fast.
 */
const PROGRAM = `
const ports = process.argv.slice(2).map(Number)
import { systemClock } from './src/base/clock.ts'
import { PersistentMap } from './src/base/collections.ts'
import { ServiceHealth } from './src/telemetry/service-health.ts'
const clock = {
  ...systemClock,
  nowMs: () => 50 * systemClock.nowMs(),
  after: (delayMs, run) => systemClock.after(delayMs / 50, run),
}
const listening = []
const failures = new Set()
const report = news => {
  if (news.kind === 'listening') listening.push(news.service)
  if (news.kind === 'failed') failures.add(news.error.code)
}
const health = new ServiceHealth({ clock, healthy: () => true, listenersMax: 1000, connectionsMax: 100, report })
const names = ports.map((_, at) => 'ns/s' + at)
const service = name => ({ service: name, clusterIps: [], ports: [], refusals: [], healthCheck: { port: ports[names.indexOf(name)], local: { IPv4: 1 } } })
const nodePorts = { IPv4: { kind: 'only', ips: ['\\x7f\\x00\\x00\\x01'] }, IPv6: { kind: 'all' } }
const all = PersistentMap.from(names.map(name => [name, service(name)]))
health.update({ services: all, nodePorts })
const wait = ms => new Promise(done => setTimeout(done, ms))
const until = async isSo => { for (let look = 0; look < 200 && !isSo(); look++) await wait(50) }
await until(() => health.counts.failed > 0 && listening.length + health.counts.failed === 60)
const first = [...listening]
health.update({ services: all.with(first.map(name => [name, undefined])), nodePorts })
await until(() => listening.length === 60)
console.log(JSON.stringify({ first: first.length, all: new Set(listening).size, failures: [...failures] }))
process.exit(0)
`

it('F91: ServiceHealth says when descriptors run out, and goes on when there are some', async () => {
  const { outputFiles } = buildSync({
    stdin: {
      contents: PROGRAM,
      loader: 'ts',
      resolveDir: fileURLToPath(new URL('../../../', import.meta.url)),
    },
    bundle: true,
    write: false,
    platform: 'node',
    format: 'esm',
  })
  const limited = 'ulimit -n 64; exec "$0" --input-type=module - "$@"'
  const argv = ['-c', limited, process.execPath, ...(await freePorts(60)).map(String)]
  const found = JSON.parse(execFileSync('sh', argv, { input: outputFiles[0]?.text, encoding: 'utf8' }))
  expect(found.first).toBeGreaterThan(0)
  expect(found.first).toBeLessThan(60)
  expect(found).toMatchObject({ all: 60, failures: ['EMFILE'] })
})
