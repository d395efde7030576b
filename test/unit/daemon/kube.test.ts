import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { systemClock } from '../../../src/base/clock.ts'
import type { Config } from '../../../src/config/config.ts'
import { openClient } from '../../../src/daemon/open.ts'
import { ApiError, type ApiRequest } from '../../../src/source/kube/api-client.ts'
import { clusterOf, serviceOf } from '../../support/apiserver/generator.ts'
import { ApiServer } from '../../support/apiserver/http-server.ts'
import { keyOf } from '../../support/apiserver/store.ts'
import { DaemonRun } from '../../support/daemon-run.ts'
import { temporaryFolder } from '../../support/folder.ts'
import { configFrom } from '../../support/parse-flags.ts'

let server: ApiServer
let folder: string
let run: DaemonRun
/** A path that the server never answers, and the requests for it. */
let silent: string | undefined
let asked: number

beforeEach(async () => {
  folder = temporaryFolder()
  server = await ApiServer.start()
  for (const { resource, object } of clusterOf({ services: 20, endpointsPerService: 3, nodes: 3 }))
    server.store.create(resource, object)
  run = new DaemonRun()
  silent = undefined
  asked = 0
})

afterEach(async () => {
  await run.end()
  await server.close()
})

function configOf(...flags: string[]): Config {
  const path = join(folder, 'kubeconfig')
  writeFileSync(path, server.kubeconfig())
  const argv = ['--source=kube', `--kubeconfig=${path}`, '--hostname-override=node-1', ...flags]
  return configFrom(argv)
}

function start(...flags: string[]): Promise<number> {
  return run.start(configOf(...flags), {
    openClient: async config => {
      const warn = (text: string) => void run.logged.push(`${text}\n`)
      const client = await openClient(config, { clock: systemClock, env: {}, warn })
      const send = (request: ApiRequest) =>
        request.path === silent ? unanswered(request) : client.send(request)
      return { server: client.server, send, close: () => client.close() }
    },
  })
}

/** Ends only with its signal. */
function unanswered({ signal }: ApiRequest): Promise<never> {
  asked++
  return new Promise((_, reject) =>
    signal.addEventListener('abort', () => reject(new ApiError('aborted', 'aborted'))),
  )
}

const until = (condition: () => boolean | Promise<boolean>, what: string) => run.until(condition, what)

async function services(name?: string): Promise<string[]> {
  return [...new Set((await run.rows(name)).map(({ service }) => service))].sort()
}

/** With a slice that has the labels that the controller gives it. */
function headlessService(proxy: string): void {
  const labels = { 'service.kubernetes.io/service-proxy-name': proxy }
  const metadata = { namespace: 'ns1', name: 'headless', labels }
  const ports = [{ name: 'http', port: 80, protocol: 'TCP' }]
  server.store.create('services', {
    apiVersion: 'v1',
    kind: 'Service',
    metadata,
    spec: { clusterIP: 'None', clusterIPs: ['None'], externalIPs: ['198.51.100.6'], ports },
  })
  const own = { 'kubernetes.io/service-name': 'headless', 'service.kubernetes.io/headless': '' }
  server.store.create('endpointslices', {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: { namespace: 'ns1', name: 'headless-a', labels: { ...labels, ...own } },
    addressType: 'IPv4',
    endpoints: [{ addresses: ['10.1.0.1'], conditions: { ready: true } }],
    ports,
  })
}

describe('runDaemon with the API server', () => {
  it('programs what the server tells once, and ends with 0', async () => {
    expect(await start('--once')).toBe(0)
    expect(await services()).toHaveLength(20)
  })

  it('keeps up with changes, and tells the cluster that it has begun', async () => {
    void start()
    await until(() => run.syncs.length > 0, 'first sync')
    const [first] = server.store.list('services')
    server.store.delete('services', first === undefined ? '' : keyOf(first))
    await until(async () => (await services()).length === 19, 'the deletion')
    server.store.create('services', serviceOf(77, {}))
    await until(async () => (await services()).length === 20, 'the creation')
    await until(() => server.log.some(({ method }) => method === 'POST'), 'the event')
    expect(server.log.filter(({ method }) => method === 'POST').map(({ path }) => path)).toEqual([
      '/apis/events.k8s.io/v1/namespaces/default/events',
    ])
  })

  it('serves, under a name, the Services with that label, headless ones with external IPs among them', async () => {
    headlessService('mesh')
    expect(await start('--once', '--service-proxy-name=mesh')).toBe(0)
    expect(await services('kube-proxy-mesh')).toEqual(['ns1/headless:http'])
    const asked = decodeURIComponent(server.log.map(({ path, query }) => `${path}?${query}`).join('\n'))
    expect(asked).toContain('labelSelector=service.kubernetes.io/service-proxy-name=mesh')
    expect(await start('--once')).toBe(0)
    expect(await services()).toHaveLength(20)
    expect(await services('kube-proxy-mesh')).toEqual(['ns1/headless:http'])
  })

  it('changes nothing while the server is away, and catches up when it is back', async () => {
    void start()
    await until(() => run.syncs.length > 0, 'first sync')
    const generation = run.kernel.generation
    await server.refuse()
    await until(() => run.logged.some(line => line.startsWith('W')), 'the complaint')
    expect(run.kernel.generation).toBe(generation)
    const [first] = server.store.list('services')
    server.store.delete('services', first === undefined ? '' : keyOf(first))
    await server.listen()
    await until(async () => (await services()).length === 19, 'the deletion')
  })

  it('ends with 1 and the reason when it should sync once and nobody answers', async () => {
    const config = configOf('--once')
    await server.refuse()
    expect(config.once).toBe(true)
    expect(await start('--once')).toBe(1)
    expect(run.log).toContain('ECONNREFUSED')
  })

  it('plans with --backend=dry-run, and writes neither to the kernel nor to the cluster', async () => {
    const { generation } = run.kernel
    void start('--backend=dry-run')
    await until(() => run.planned > 0 && run.syncs.length > 0, 'the plan')
    run.stop.abort()
    await run.running
    expect(run.kernel.generation).toBe(generation)
    expect(server.log.filter(({ method }) => method !== 'GET')).toEqual([])
  })

  it('serves on when a new way to the API server cannot be opened, and takes the next one', async () => {
    void start()
    await until(() => run.syncs.length > 0, 'first sync')
    await run.reconfigure?.({ ...configOf(), client: { ...configOf().client, kubeconfig: '/nonexistent' } })
    expect(run.log).toContain('cannot apply the whole new configuration')
    server.store.create('services', serviceOf(77, {}))
    await until(async () => (await services()).length === 21, 'the creation')
    const connections = server.accepted
    await run.reconfigure?.(configOf('--kube-api-qps=50'))
    await until(() => server.accepted > connections, 'another connection')
  })

  it.each([
    ['the write of the node condition', '/api/v1/nodes/node-1', ['--node-condition']],
    ['an event', '/apis/events.k8s.io/v1/namespaces/default/events', []],
  ])('ends while the API server leaves %s unanswered', async (_, path, flags) => {
    silent = path
    const end = start(...flags)
    await until(() => asked > 0, 'the request')
    run.stop.abort()
    expect(await end).toBe(0)
  })
})
