import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest'
import { openClusterClient } from '../../src/inspect/nodes/cluster-client.ts'
import { command } from '../../src/inspect/nodes/nodes.ts'
import { FakeIo } from '../support/fake-io.ts'
import { kubeconfigText } from '../support/kubeconfig.ts'
import { BARE_USER, ControlPlane } from '../support/reference/control-plane.ts'
import { LAB_NODE } from '../support/reference/lab-node.ts'

/* `kprobe nodes` with client-node at a real API server, and kubeconfigs of each kind that it accepts here. */

const PODS = '/api/v1/namespaces/kube-system/pods'
const NOBODY = { user: '', groups: [] as readonly string[], uid: '' }

let plane: ControlPlane

beforeAll(async () => {
  plane = await ControlPlane.start()
  await plane.api.put(LAB_NODE)
  await plane.api.put({
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { namespace: 'kube-system', name: 'kprobe-x', labels: { 'k8s-app': 'kprobe' } },
    spec: {
      nodeName: LAB_NODE.metadata.name,
      automountServiceAccountToken: false,
      containers: [{ name: 'kprobe', image: 'kprobe' }],
    },
  })
})
afterAll(() => plane?.stop())

function written(name: string, text: string, mode = 0o600): string {
  const path = join(plane.folder, name)
  writeFileSync(path, text, { mode })
  return path
}

function kubeconfig(name: string, user: Partial<Parameters<typeof kubeconfigText>[0]>): string {
  const server = `https://127.0.0.1:${plane.port}`
  return written(name, kubeconfigText({ server, caFile: plane.certificate, ...user }))
}

async function statusWith(kubeconfigs: readonly string[], impersonation = NOBODY): Promise<string> {
  const client = await openClusterClient({
    kubeconfigs,
    context: undefined,
    impersonation,
    env: {},
    warn: () => undefined,
  })
  try {
    const { kind } = await client.get(PODS, { signal: new AbortController().signal, timeoutMs: 20_000 })
    return String(kind)
  } catch (error) {
    return error instanceof Error ? error.message : String(error)
  } finally {
    client.close()
  }
}

describe('kprobe nodes and a kube-apiserver', () => {
  it('understand each other with a token, a file of a token, a plugin, and two files', async () => {
    const token = plane.token('admin')
    const credential = {
      apiVersion: 'client.authentication.k8s.io/v1',
      kind: 'ExecCredential',
      status: { token },
    }
    const plugin = written('plugin', `#!/bin/sh\necho '${JSON.stringify(credential)}'\n`, 0o700)
    const tokenFile = written('token', `${token}\n`)
    const half = JSON.parse(
      kubeconfigText({ server: `https://127.0.0.1:${plane.port}`, caFile: plane.certificate }),
    )
    const first = written('first', JSON.stringify({ ...half, users: [] }))
    const second = written('second', JSON.stringify({ users: [{ name: 'test', user: { token } }] }))
    expect(await statusWith([kubeconfig('with-token', { token })])).toBe('PodList')
    expect(await statusWith([kubeconfig('with-file', { tokenFile })])).toBe('PodList')
    expect(await statusWith([kubeconfig('with-plugin', { exec: { command: plugin } })])).toBe('PodList')
    expect(await statusWith([join(plane.folder, 'missing'), first, second])).toBe('PodList')
  })

  it('refuse a wrong token and the identity that --as names, by the words of the server, without the token', async () => {
    const wrong = await statusWith([kubeconfig('wrong', { token: 'secret-that-is-wrong' })])
    expect(wrong).toContain('401')
    expect(wrong).not.toContain('secret-that-is-wrong')
    const admin = kubeconfig('as', { token: plane.token('admin') })
    expect(await statusWith([admin], { ...NOBODY, user: BARE_USER })).toMatch(
      new RegExp(`^status 403: .*User "${BARE_USER}" cannot list resource "pods"`),
    )
    const groups = ['first', 'system:masters']
    expect(await statusWith([admin], { user: BARE_USER, groups, uid: '7' })).toBe('PodList')
  })

  it('say which node does not answer: its kubelet is away', async () => {
    vi.stubEnv('KUBECONFIG', kubeconfig('command', { token: plane.token('admin') }))
    const io = new FakeIo()
    const code = await command.run(['status', '-n', 'kube-system'], io)
    vi.unstubAllEnvs()
    expect(code).not.toBe(0)
    expect(io.stdout + io.stderr).toContain(LAB_NODE.metadata.name)
    expect(io.stdout + io.stderr).not.toContain(plane.token('admin'))
  })
})
