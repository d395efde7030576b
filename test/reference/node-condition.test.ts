import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { parseAllDocuments } from 'yaml'
import { type Daemon, Daemons } from '../support/daemon.ts'
import { eventually } from '../support/patience.ts'
import { NODE_NAME } from '../support/pipeline.ts'
import { isObject, type KubeObject } from '../support/reference/api.ts'
import { ControlPlane, type User } from '../support/reference/control-plane.ts'

/* The condition of --node-condition at a real API server, with the rights of kube-proxy and with those of the component. */

const RBAC = fileURLToPath(
  new URL('../../deploy/kubernetes/components/node-condition/rbac.yaml', import.meta.url),
)
const TYPE = 'ServiceProxyReady'
const NODE: KubeObject = {
  apiVersion: 'v1',
  kind: 'Node',
  metadata: { name: NODE_NAME },
  status: {
    addresses: [{ type: 'InternalIP', address: '192.168.0.2' }],
    conditions: [{ type: 'Ready', status: 'True', reason: 'KubeletReady', message: 'of kubelet' }],
  },
}

interface Condition {
  readonly type: string
  readonly status: string
  readonly reason: string
  readonly lastTransitionTime: string
}

const daemons = new Daemons()
let plane: ControlPlane

beforeAll(async () => {
  plane = await ControlPlane.start()
  await plane.api.put(NODE)
})

afterEach(() => daemons.end())

afterAll(async () => {
  await plane?.stop()
})

function start(user: User, ...args: readonly string[]): Daemon {
  const source = { kind: 'kube', kubeconfig: plane.kubeconfig(user) } as const
  return daemons.start({ source, args: ['--node-condition', ...args] })
}

function isCondition(value: unknown): value is Condition {
  return typeof value === 'object' && value !== null && 'type' in value && 'lastTransitionTime' in value
}

async function conditions(): Promise<readonly Condition[]> {
  const { status } = await plane.api.get('v1', 'Node', { name: NODE_NAME })
  const list: unknown =
    typeof status === 'object' && status !== null && 'conditions' in status && status.conditions
  return Array.isArray(list) ? list.filter(isCondition) : []
}

async function condition(): Promise<Condition | undefined> {
  return (await conditions()).find(({ type }) => type === TYPE)
}

/** What the component gives to its ServiceAccount, for kube-proxy's user. */
async function grant(): Promise<void> {
  for (const document of parseAllDocuments(readFileSync(RBAC, 'utf8'))) {
    const object: unknown = document.toJS()
    if (!isObject(object)) throw new Error('not an object')
    const subjects = [{ kind: 'User', name: 'system:kube-proxy', apiGroup: 'rbac.authorization.k8s.io' }]
    await plane.api.put(object.kind === 'ClusterRoleBinding' ? { ...object, subjects } : object)
  }
}

test("kube-proxy's rights are not enough: one line says so, and Services are served", async () => {
  const daemon = start('proxy')
  await daemon.synced()
  expect((await daemon.logged('cannot set the node condition'))[0]?.msg).toMatch(
    /nodes "[^"]+" is forbidden: User "system:kube-proxy" cannot patch resource "nodes\/status"/,
  )
  expect(await condition()).toBeUndefined()
})

test('the rights of the component are enough, also while the daemon runs; other conditions stay', async () => {
  const daemon = start('proxy')
  await daemon.logged('cannot set the node condition')
  await grant()
  await daemon.logged('node condition set')
  expect(await condition()).toMatchObject({ status: 'True', reason: 'Programmed' })
  expect((await conditions()).map(({ type }) => type)).toContain('Ready')
  expect(daemon.said('cannot set the node condition')).toHaveLength(1)
})

test('a restart writes nothing: the condition and the time of its last change stay', async () => {
  const before = await condition()
  const daemon = start('proxy', '--metrics-bind-address=127.0.0.1:10249')
  await daemon.synced()
  await daemon.stop()
  const after = start('proxy')
  await after.synced()
  await new Promise(resolve => setTimeout(resolve, 1_000))
  await after.caughtUp()
  expect(after.said('node condition set')).toEqual([])
  expect(await condition()).toEqual(before)
})

test('a Node that is made anew gets the condition anew', async () => {
  const daemon = start('proxy')
  await daemon.synced()
  await plane.api.remove('v1', 'Node', { name: NODE_NAME })
  // A write of the status that follows would replace the condition.
  const { status: _, ...bare } = NODE
  await plane.api.put(bare)
  await daemon.logged('node condition set')
  await eventually(async () => (await condition())?.status === 'True')
})

test('another type is another condition', async () => {
  const type = 'example.com/ProxyReady'
  const daemon = start('proxy', `--node-condition=${type}`)
  await daemon.logged('node condition set')
  expect((await conditions()).find(each => each.type === type)).toMatchObject({ status: 'True' })
})
