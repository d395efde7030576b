import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { parseAllDocuments } from 'yaml'
import { clusterObjects } from '../bench/cluster.ts'
import { isObject, type KubeObject } from '../support/reference/api.ts'
import { ControlPlane } from '../support/reference/control-plane.ts'
import { LAB_NODE, namespaceObject } from '../support/reference/lab-node.ts'
import { Forwarder } from '../support/reference/relay.ts'
import { ScenarioCluster } from '../support/reference/scenario-cluster.ts'
import { listedState, Watched, type WatchedOptions } from '../support/reference/watched.ts'
import { loadScenarios } from '../support/scenario.ts'

/* The source `kube` on a real API server: what it tells must be what a plain list says. */

const NODE = 'test-node'
const JSON_TYPE = 'application/json'
const open: Watched[] = []

let plane: ControlPlane
let relay: Forwarder

beforeAll(async () => {
  plane = await ControlPlane.start({ flags: ['--feature-gates=StrictIPCIDRValidation=false'] })
  relay = await Forwarder.start({ listen: { port: 0 }, dial: plane.way })
  await plane.api.put(LAB_NODE)
  await plane.api.put(namespaceObject('ns1'))
})

afterAll(async () => {
  await relay?.close()
  await plane?.stop()
})

afterEach(async () => {
  relay.setFaults({})
  await Promise.all(open.splice(0).map(watched => watched.close()))
  for (const [version, kind] of [
    ['v1', 'Service'],
    ['discovery.k8s.io/v1', 'EndpointSlice'],
  ] as const) {
    const objects = await plane.api.list(version, kind)
    const ours = objects.filter(({ metadata }) => metadata.namespace !== 'default')
    await plane.api.each(ours, ({ metadata: { namespace = '', name } }) =>
      plane.api.remove(version, kind, { namespace, name }),
    )
  }
})

async function watch(options: Partial<WatchedOptions> = {}): Promise<Watched> {
  const kubeconfig = plane.kubeconfig('proxy', { port: relay.port })
  const watched = await Watched.open({ kubeconfig, nodeName: NODE, ...options })
  open.push(watched)
  return watched
}

/** Until it knows what the server knows, and then exactly that. */
async function expectEqual(watched: Watched): Promise<void> {
  let listed = await listedState(plane.api, NODE)
  const isEqual = async (): Promise<boolean> => {
    try {
      expect(watched.state).toEqual(listed.state)
      return watched.synced
    } catch {
      // The server writes objects of its own, such as default/kubernetes.
      listed = await listedState(plane.api, NODE)
      return false
    }
  }
  await watched.until(isEqual).catch(() => undefined)
  const { state, refusals } = listed
  expect(watched.state).toEqual(state)
  expect(watched.refusals.map(({ object }) => object).sort()).toEqual(
    refusals.map(({ object }) => object).sort(),
  )
}

function service(name: string, port = 80): KubeObject {
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { namespace: 'ns1', name },
    spec: { ports: [{ name: 'http', port, protocol: 'TCP' }], selector: { app: name } },
  }
}

function slice(name: string, address: string): KubeObject {
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: { namespace: 'ns1', name: `${name}-a`, labels: { 'kubernetes.io/service-name': name } },
    addressType: 'IPv4',
    endpoints: [{ addresses: [address], nodeName: NODE }],
    ports: [{ name: 'http', port: 80, protocol: 'TCP' }],
  }
}

describe.each([
  ['protobuf', undefined],
  ['JSON', JSON_TYPE],
] as const)('by %s', (_, contentType) => {
  const options = contentType === undefined ? {} : { contentType }

  test('what is there, comes, changes and goes is told', async () => {
    await plane.api.create(service('first'))
    await plane.api.create(slice('first', '10.180.0.1'))
    const watched = await watch(options)
    await expectEqual(watched)
    await plane.api.create(service('second'))
    await plane.api.create(slice('second', '10.180.0.2'))
    await plane.api.put(service('first', 81))
    await expectEqual(watched)
    await plane.api.remove('v1', 'Service', { namespace: 'ns1', name: 'first' })
    await expectEqual(watched)
    expect(watched.deleted).toEqual(['Service ns1/first'])
    expect(watched.problems).toEqual([])
  })

  test('the objects of all scenarios are read as a list in JSON says them', async () => {
    const cluster = new ScenarioCluster(plane.api)
    const watched = await watch(options)
    for (const { file, steps } of loadScenarios()) {
      for (const step of steps) {
        if ((await cluster.apply(step)) !== undefined) break
        await expectEqual(watched).catch(error => {
          throw new Error(`${file}, ${step.title}: ${error}`)
        })
      }
      await cluster.clear()
    }
    expect(watched.problems).toEqual([])
  })
})

test('two thousand Services are listed and watched', async () => {
  const objects = [...clusterObjects({ services: 2_256, endpoints: 3 })].filter(isObject).map(moved)
  const halves = [objects.slice(512, 2_512), objects.slice(2_512)] as const
  await plane.api.each(
    Array.from({ length: 50 }, (_, index) => `ns-${index}`),
    name => plane.api.put(namespaceObject(name)),
  )
  await plane.api.each(halves[0], object => plane.api.create(object))
  const watched = await watch()
  await watched.until(() => watched.synced)
  await plane.api.each(halves[1], object => plane.api.create(object))
  await expectEqual(watched)
  expect(watched.state.size).toBeGreaterThanOrEqual(4_000)
})

/** Into the lab's range of cluster addresses, with identities from the API server. */
function moved(object: KubeObject): KubeObject {
  const { uid, resourceVersion, ...metadata } = object.metadata
  const spec = JSON.parse(JSON.stringify(object.spec ?? null).replaceAll('"10.96.', '"172.30.'))
  return { ...object, metadata, ...(spec === null ? {} : { spec }) }
}

test('a restart of the API server takes nothing away', async () => {
  await plane.api.create(service('stays'))
  const watched = await watch()
  await expectEqual(watched)
  await plane.stopServer()
  await watched.until(() => watched.problems.length > 0)
  expect(watched.state.has('Service ns1/stays')).toBe(true)
  await plane.startServer()
  await plane.api.create(service('came-later'))
  await expectEqual(watched)
  expect(watched.deleted).toEqual([])
  // The server knows no roles yet in its first moments, and says 403.
  await watched.until(() => watched.status.trouble === undefined, 60_000)
})

test('a compaction during an outage leads to a new list', async () => {
  for (const name of ['stays', 'goes']) await plane.api.create(service(name))
  const watched = await watch()
  await expectEqual(watched)
  relay.setFaults({ refuse: true })
  relay.cut()
  await plane.api.remove('v1', 'Service', { namespace: 'ns1', name: 'goes' })
  await plane.api.create(service('comes'))
  await plane.compact()
  // Its cache of events would still answer from before the compaction.
  await plane.stopServer('SIGKILL')
  await plane.startServer()
  relay.setFaults({})
  await expectEqual(watched)
  expect(watched.deleted).toEqual(['Service ns1/goes'])
  const reasons = watched.observations.flatMap(one =>
    one.kind === 'listed' && one.resource === 'services' ? [one.reason] : [],
  )
  expect(reasons.length).toBeGreaterThan(1)
})

test.each([
  ['cut', 400],
  ['stalled', 0],
] as const)('a list that is %s comes in the end', async (kind, bytes) => {
  await plane.api.create(service('there'))
  relay.setFaults(kind === 'cut' ? { truncateAfterBytes: bytes } : { stall: true })
  const watched = await watch()
  await sleep(300)
  expect(watched.synced).toBe(false)
  relay.setFaults({})
  await expectEqual(watched)
})

test('a streamed list that Kubernetes 1.37 compresses, and its watch, arrive in fewer bytes', async context => {
  const { body } = await plane.api.send('GET', '/version')
  if (Number(Object(body).minor) < 37) return context.skip('WatchListCompression is of 1.37')
  const endpoints = Array.from({ length: 200 }, (_, index) => ({
    addresses: [`10.181.0.${index}`],
    nodeName: NODE,
  }))
  const names = Array.from({ length: 30 }, (_, index) => `s${index}`)
  await plane.api.each(names, name => plane.api.create({ ...slice(name, ''), endpoints }))
  const before = relay.receivedBytes
  const watched = await watch()
  await expectEqual(watched)
  const listed = watched.observations.flatMap(one => (one.kind === 'listed' ? [one.bytes] : []))
  const bytes = listed.reduce((sum, each) => sum + each, 0)
  expect(relay.receivedBytes - before).toBeLessThan(bytes / 2)
  await plane.api.put(slice('s7', '10.181.1.1'))
  await expectEqual(watched)
  expect(watched.problems).toEqual([])
})

describe('with a service account', () => {
  const MANIFEST = fileURLToPath(new URL('../../deploy/kubernetes/base/rbac.yaml', import.meta.url))
  const ACCOUNT = { namespace: 'kube-system', name: 'kprobe' }

  /** Valid as long as the secret exists. */
  async function tokenBoundTo(secret: string): Promise<string> {
    const path = `/api/v1/namespaces/${ACCOUNT.namespace}`
    const made = await plane.api.send('POST', `${path}/secrets`, { metadata: { name: secret } })
    const uid = isObject(made.body) ? made.body.metadata.uid : undefined
    const boundObjectRef = { apiVersion: 'v1', kind: 'Secret', name: secret, uid }
    const spec = { expirationSeconds: 3600, boundObjectRef }
    const { body } = await plane.api.send('POST', `${path}/serviceaccounts/${ACCOUNT.name}/token`, { spec })
    const status = isObject(body) ? body.status : undefined
    return String(status !== null && typeof status === 'object' && 'token' in status ? status.token : '')
  }

  async function applyRoles(): Promise<void> {
    for (const document of parseAllDocuments(readFileSync(MANIFEST, 'utf8'))) {
      const object: unknown = document.toJS()
      if (isObject(object)) await plane.api.put(object)
    }
  }

  test('our roles and nothing else are enough', async () => {
    await plane.api.put({ apiVersion: 'v1', kind: 'ServiceAccount', metadata: ACCOUNT })
    const tokenFile = join(plane.folder, 'token-roles')
    writeFileSync(tokenFile, await tokenBoundTo('roles'))
    const watched = await watch({ kubeconfig: plane.kubeconfig('bare', { port: relay.port, tokenFile }) })
    await watched.until(() => watched.problems.length > 0)
    expect(watched.problems.map(({ text }) => text).join()).toMatch(/403|forbidden/i)
    expect(watched.synced).toBe(false)
    await applyRoles()
    await watched.until(() => watched.synced)
    // That one was told once that it may do without ServiceCIDRs; who comes now has all rights.
    const next = await watch({ kubeconfig: plane.kubeconfig('bare', { port: relay.port, tokenFile }) })
    await expectEqual(next)
    expect(next.status).toMatchObject({ missing: [], trouble: undefined })
    expect(next.problems).toEqual([])
  })

  test('a renewed token is read when the one before is refused', async () => {
    await applyRoles()
    const tokenFile = join(plane.folder, 'token-rotation')
    const before = await tokenBoundTo('before')
    writeFileSync(tokenFile, before)
    const watched = await watch({ kubeconfig: plane.kubeconfig('bare', { port: relay.port, tokenFile }) })
    await expectEqual(watched)
    writeFileSync(tokenFile, await tokenBoundTo('after'))
    await plane.api.send('DELETE', `/api/v1/namespaces/${ACCOUNT.namespace}/secrets/before`)
    // The server remembers for some seconds that a token was good.
    await watched.until(async () => (await plane.statusWith(before)) === 401, 40_000)
    relay.cut()
    await plane.api.create(service('with-the-new-token'))
    await expectEqual(watched)
  })
})
