import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import { createLog } from '../../../src/base/log.ts'
import { fileSource, kubeSource, runDataplane } from '../../../src/library/index.ts'
import type { Source } from '../../../src/source/source.ts'
import { ApiServer } from '../../support/apiserver/http-server.ts'
import { FakePlane } from '../../support/fake-plane.ts'
import { temporaryFolder } from '../../support/folder.ts'

const NAME = 'mine'

function service(name: string, labels: object = {}): object {
  const spec = { clusterIP: 'None', externalIPs: ['198.51.100.1'], ports: [] }
  return { apiVersion: 'v1', kind: 'Service', metadata: { namespace: 'ns', name, labels }, spec }
}

const OWN = service('own', { 'service.kubernetes.io/service-proxy-name': NAME })
const OTHERS = service('others')
const SLICE = {
  apiVersion: 'discovery.k8s.io/v1',
  kind: 'EndpointSlice',
  metadata: {
    namespace: 'ns',
    name: 'own-a',
    labels: { 'kubernetes.io/service-name': 'own', 'service.kubernetes.io/headless': '' },
  },
  addressType: 'IPv4',
  endpoints: [{ addresses: ['10.0.0.1'], nodeName: 'node-1' }],
  ports: [],
}

/** A plane that writes down the addresses of endpoints. */
class Endpoints extends FakePlane {
  override readonly name = `test-sources-${process.pid}-${Math.random()}`
  readonly wholes = new Map<string, string>()

  override *render(...[table, options]: Parameters<FakePlane['render']>): ReturnType<FakePlane['render']> {
    for (const [key, { wholes = [] }] of table.services.entries())
      this.wholes.set(
        key,
        wholes.flatMap(({ cluster }) => cluster.map(({ ip, local }) => `${ip.length} ${local}`)).join(),
      )
    return yield* super.render(table, options)
  }
}

async function served(source: Source): Promise<ReadonlyMap<string, string>> {
  const plane = new Endpoints()
  const log = createLog({ format: 'text', verbosity: 0, destination: { write: () => undefined } })
  await runDataplane({ source, plane, log, nodeName: 'node-1', serviceProxyName: NAME, once: true })
  return plane.wholes
}

/** Names of the Nodes that a source tells before it has told everything. */
async function nodesTold(source: Source): Promise<readonly string[]> {
  const told: string[] = []
  let synced = (): void => undefined
  const isSynced = new Promise<void>(resolve => {
    synced = resolve
  })
  await source.start({
    async events(batch) {
      for (const event of batch)
        if (event.kind === 'Node' && event.value !== undefined) told.push(event.value.name)
    },
    synced: () => synced(),
    refusals: () => undefined,
    problem: () => undefined,
  })
  await isSynced
  await source.stop()
  return told
}

const NODES = ['node-1', 'node-2'].map(name => ({ apiVersion: 'v1', kind: 'Node', metadata: { name } }))

test('fileSource delivers headless Services of the name with their endpoints', async () => {
  const path = join(temporaryFolder(), 'objects.json')
  writeFileSync(path, JSON.stringify({ apiVersion: 'v1', kind: 'List', items: [OWN, OTHERS, SLICE] }))
  const source = fileSource({ path, nodeName: 'Node-1', serviceProxyName: NAME })
  expect([...(await served(source))]).toEqual([['ns/own', '4 true']])
})

test('both sources deliver one Node, however its name is written', async () => {
  const path = join(temporaryFolder(), 'nodes.json')
  writeFileSync(path, JSON.stringify({ apiVersion: 'v1', kind: 'List', items: NODES }))
  expect(await nodesTold(fileSource({ path, nodeName: 'Node-1' }))).toEqual(['node-1'])
  const server = await ApiServer.start()
  onTestFinished(() => server.close())
  for (const object of NODES) server.store.put('nodes', object)
  const kubeconfig = join(temporaryFolder(), 'kubeconfig')
  writeFileSync(kubeconfig, server.kubeconfig({}))
  expect(await nodesTold(kubeSource({ kubeconfig, nodeName: 'NODE-2' }))).toEqual(['node-2'])
})

test('kubeSource delivers the same from an API server, and closes its connections', async () => {
  const server = await ApiServer.start()
  onTestFinished(() => server.close())
  for (const object of [OWN, OTHERS]) server.store.put('services', { ...object })
  server.store.put('endpointslices', SLICE)
  const kubeconfig = join(temporaryFolder(), 'kubeconfig')
  writeFileSync(kubeconfig, server.kubeconfig({}))
  const source = kubeSource({ kubeconfig, nodeName: 'node-1', serviceProxyName: NAME })
  expect(source.status.missing).toEqual(['a connection'])
  expect([...(await served(source))]).toEqual([['ns/own', '4 true']])
  const paths = server.log.map(entry => JSON.stringify(entry))
  expect(paths.some(text => text.includes('service-proxy-name'))).toBe(true)
})

test('a kubeconfig that is not there ends the run before it began', async () => {
  const source = kubeSource({ kubeconfig: join(temporaryFolder(), 'nothing'), nodeName: 'node-1' })
  await expect(served(source)).rejects.toThrow('nothing')
})
