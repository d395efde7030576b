import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { command } from '../../../src/api/command.ts'
import { ApiServer } from '../../support/apiserver/http-server.ts'
import { FakeIo } from '../../support/fake-io.ts'
import { temporaryFolder } from '../../support/folder.ts'
import { eventually } from '../../support/patience.ts'
import { endpoint, service, slice } from '../model/objects.ts'

let server: ApiServer
let folder: string
let stop: AbortController
let io: FakeIo

beforeEach(async () => {
  folder = temporaryFolder()
  stop = new AbortController()
  server = await ApiServer.start()
  const spec = { clusterIPs: ['10.96.0.1'], ports: [{ port: 80, protocol: 'TCP', targetPort: 'web' }] }
  const metadata = { labels: { app: 'web' }, annotations: { note: 'x' } }
  server.store.create('services', service('web', spec, { metadata }))
  const endpoints = [endpoint('10.1.0.1', { hostname: 'web-0' })]
  const ports = [{ name: '', port: 8080, protocol: 'TCP' }]
  server.store.create('endpointslices', slice('s', 'web', endpoints, { ports }))
  writeFileSync(join(folder, 'kubeconfig'), server.kubeconfig())
})

afterEach(async () => {
  stop.abort()
  await server.close()
})

function api(...argv: string[]): Promise<number> {
  io = new FakeIo({ signal: stop.signal })
  return command.run(['--source=kube', `--kubeconfig=${join(folder, 'kubeconfig')}`, ...argv], io)
}

it.each(['application/json', 'application/vnd.kubernetes.protobuf'])(
  'reads what back ends are told from the API server in %s',
  async type => {
    expect(await api('--print', `--kube-api-content-type=${type}`)).toBe(0)
    expect(JSON.parse(io.stdout)).toMatchObject({
      Service: {
        Ports: [{ Protocol: 1, Port: 80, TargetPortName: 'web' }],
        Labels: { app: 'web' },
        Annotations: { note: 'x' },
      },
      Endpoints: [{ Hostname: 'web-0', IPs: { V4: ['10.1.0.1'] }, PortOverrides: [{ Port: 8080 }] }],
    })
  },
)

it('goes on with what it knows while the API server is away', async () => {
  const watching = api('--print', '--watch')
  await eventually(() => io.stdout.includes('\n\n'), 'the first state')
  await server.close()
  await new Promise(done => setTimeout(done, 200))
  expect(io.stdout.split('\n').filter(line => line !== '')).toHaveLength(1)
  stop.abort()
  expect(await watching).toBe(0)
})
