import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { beforeEach, describe, expect, it } from 'vitest'
import { readRequest } from '../../../src/cli/request.ts'
import { FakeIo } from '../../support/fake-io.ts'
import { temporaryFolder } from '../../support/folder.ts'

let folder: string
let io: FakeIo

beforeEach(() => {
  folder = temporaryFolder()
  io = new FakeIo()
})

function read(...argv: readonly string[]) {
  return readRequest(argv, io, { command: 'plan', extra: [] })
}

function configOf(field: string): string {
  const path = join(folder, 'config.yaml')
  const head = 'apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n'
  writeFileSync(path, `${head}${field}\n`)
  return path
}

describe('readRequest', () => {
  it('reads the file that --config names, and tells what it says in vain', async () => {
    const request = await read(`--config=${configOf('clusterCIDRS: 10.0.0.0/8')}`)
    expect(request).toMatchObject({ config: { source: { kind: 'kube' } } })
    expect(io.stderr).toMatch(/^kprobe plan: .*clusterCIDRS/)
  })
})
