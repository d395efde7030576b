import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { API } from '../../../src/api/metrics.ts'
import { runDaemon } from '../../../src/daemon/daemon.ts'
import { grpcClient, WatchClient } from '../../support/api/watch-client.ts'
import { daemonIo } from '../../support/daemon-io.ts'
import { FakeKernel } from '../../support/fake-kernel/kernel.ts'
import { FakeLinks } from '../../support/fake-link/kernel.ts'
import { temporaryFolder } from '../../support/folder.ts'
import { createMetrics } from '../../support/metrics.ts'
import { configFrom } from '../../support/parse-flags.ts'
import { eventually } from '../../support/patience.ts'
import { endpoint, service, slice } from '../model/objects.ts'

let folder: string
let stop: AbortController
let logged: string
let syncs: number
let isBroken: boolean
let running: Promise<number> | undefined

beforeEach(() => {
  folder = temporaryFolder()
  stop = new AbortController()
  logged = ''
  syncs = 0
  isBroken = false
  running = undefined
  describeService('10.1.0.1')
})

afterEach(async () => {
  stop.abort()
  await running
})

function describeService(address: string): void {
  const spec = { ports: [{ port: 80, targetPort: 'web' }] }
  const items = [service('web', spec), slice('s', 'web', [endpoint(address, { hostname: 'web-0' })])]
  writeFileSync(join(folder, 'objects.json'), JSON.stringify({ apiVersion: 'v1', kind: 'List', items }))
}

function start(...flags: string[]): Promise<number> {
  const argv = [`--source=file:${join(folder, 'objects.json')}`, '--hostname-override=here', ...flags]
  const kernel = new FakeKernel()
  running = runDaemon(configFrom(argv), {
    ...daemonIo({ write: line => (logged += line) }),
    signal: stop.signal,
    openTransport: () => kernel.open(),
    openRoute: () => new FakeLinks().open(),
    synced: () => syncs++,
    planned: () => {
      if (isBroken) throw new Error('broken')
    },
  })
  return running
}

it('tells back ends what a daemon programs, target ports and hostnames included', async () => {
  const address = `unix://${join(folder, 'api.sock')}`
  start(`--api=${address}`)
  await eventually(() => logged.includes('back-end API listening'), 'the API')
  const client = grpcClient(address)
  const watch = new WatchClient(client)
  await watch.ask('here')
  await eventually(() => syncs > 0, 'the kernel holds it as well')
  expect([...watch.store.services.keys()]).toEqual(['ns/web'])
  expect([...watch.store.endpoints]).toEqual([['ns/web/10.1.0.1,=8080', expect.stringContaining('web-0')]])
  expect([...watch.store.services.values()][0]).toContain('2\x03web')
  const answered = watch.ask('here')
  describeService('10.1.0.2')
  await answered
  expect([...watch.store.endpoints.keys()]).toEqual(['ns/web/10.1.0.2,=8080'])
  expect(watch.store.complaints).toEqual([])
  client.close()
  stop.abort()
  expect(await running).toBe(0)
})

it('tells them whatever becomes of it in the kernel', async () => {
  isBroken = true
  const address = `unix://${join(folder, 'api.sock')}`
  start('--backend=dry-run', `--api=${address}`)
  await eventually(() => logged.includes('back-end API listening'), 'the API')
  const client = grpcClient(address)
  const watch = new WatchClient(client)
  await watch.ask('here')
  expect([...watch.store.services.keys()]).toEqual(['ns/web'])
  expect(syncs).toBe(0)
  client.close()
})

it('does not start where nobody can listen, and names the flag', async () => {
  expect(await start('--api=unix:///nowhere/at/all.sock')).toBe(1)
  expect(logged).toContain('cannot serve the back-end API')
  expect(logged).toContain('unix:///nowhere/at/all.sock')
})

it('never serves in plain where it was told to serve with TLS', async () => {
  const files = ['cert', 'key', 'client-ca'].map(name => `--api-tls-${name}=${join(folder, name)}`)
  expect(await start('--api=tcp://127.0.0.1:0', ...files)).toBe(1)
  expect(logged).toContain('ENOENT')
  expect(logged).not.toContain('back-end API listening')
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
