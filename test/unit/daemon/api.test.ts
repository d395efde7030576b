import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { API } from '../../../src/api/metrics.ts'
import { grpcClient, WatchClient } from '../../support/api/watch-client.ts'
import { DaemonRun } from '../../support/daemon-run.ts'
import { temporaryFolder } from '../../support/folder.ts'
import { createMetrics } from '../../support/metrics.ts'
import { configFrom } from '../../support/parse-flags.ts'
import { eventually } from '../../support/patience.ts'
import { endpoint, service, slice } from '../model/objects.ts'

let folder: string
let run: DaemonRun
let isBroken: boolean

beforeEach(() => {
  folder = temporaryFolder()
  run = new DaemonRun()
  isBroken = false
  describeService('10.1.0.1')
})

afterEach(() => run.end())

function describeService(address: string): void {
  const spec = { ports: [{ port: 80, targetPort: 'web' }] }
  const items = [service('web', spec), slice('s', 'web', [endpoint(address, { hostname: 'web-0' })])]
  writeFileSync(join(folder, 'objects.json'), JSON.stringify({ apiVersion: 'v1', kind: 'List', items }))
}

function start(...flags: string[]): Promise<number> {
  const argv = [`--source=file:${join(folder, 'objects.json')}`, '--hostname-override=here', ...flags]
  return run.start(configFrom(argv), {
    planned: () => {
      if (isBroken) throw new Error('broken')
    },
  })
}

it('tells back ends what a daemon programs, target ports and hostnames included', async () => {
  const address = `unix://${join(folder, 'api.sock')}`
  void start(`--api=${address}`)
  await eventually(() => run.log.includes('back-end API listening'), 'the API')
  const client = grpcClient(address)
  const watch = new WatchClient(client)
  await watch.ask('here')
  await eventually(() => run.syncs.length > 0, 'the kernel holds it as well')
  expect([...watch.store.services.keys()]).toEqual(['ns/web'])
  expect([...watch.store.endpoints]).toEqual([['ns/web/10.1.0.1,=8080', expect.stringContaining('web-0')]])
  expect([...watch.store.services.values()][0]).toContain('2\x03web')
  const answered = watch.ask('here')
  describeService('10.1.0.2')
  await answered
  expect([...watch.store.endpoints.keys()]).toEqual(['ns/web/10.1.0.2,=8080'])
  expect(watch.store.complaints).toEqual([])
  client.close()
  run.stop.abort()
  expect(await run.running).toBe(0)
})

it('tells them whatever becomes of it in the kernel', async () => {
  isBroken = true
  const address = `unix://${join(folder, 'api.sock')}`
  void start('--backend=dry-run', `--api=${address}`)
  await eventually(() => run.log.includes('back-end API listening'), 'the API')
  const client = grpcClient(address)
  const watch = new WatchClient(client)
  await watch.ask('here')
  expect([...watch.store.services.keys()]).toEqual(['ns/web'])
  expect(run.syncs).toEqual([])
  client.close()
})

it('does not start where nobody can listen, and names the flag', async () => {
  expect(await start('--api=unix:///nowhere/at/all.sock')).toBe(1)
  expect(run.log).toContain('cannot serve the back-end API')
  expect(run.log).toContain('unix:///nowhere/at/all.sock')
})

it('never serves in plain where it was told to serve with TLS', async () => {
  const files = ['cert', 'key', 'client-ca'].map(name => `--api-tls-${name}=${join(folder, name)}`)
  expect(await start('--api=tcp://127.0.0.1:0', ...files)).toBe(1)
  expect(run.log).toContain('ENOENT')
  expect(run.log).not.toContain('back-end API listening')
})

it('has numbers that say how old the state is, and none without an API', async () => {
  const numbers = {
    number: 7,
    services: 3,
    endpoints: 9,
    sinceMs: 1_500,
    silentMs: 250,
    sourceConnected: false,
    trouble: undefined,
    streams: 2,
  }
  const text = await createMetrics({ addMetrics: set => set.add(API, () => numbers) }).text()
  const values = Object.fromEntries(
    [...text.matchAll(/^kprobe_api_(\w+) (\S+)$/gm)].map(([, name, value]) => [name, Number(value)]),
  )
  expect(values).toEqual({
    state_number: 7,
    services: 3,
    endpoints: 9,
    state_age_seconds: 1.5,
    source_silent_seconds: 0.25,
    source_connected: 0,
    streams: 2,
    connections: 0,
    refused: 0,
  })
  expect(await createMetrics().text()).not.toContain('kprobe_api')
})
