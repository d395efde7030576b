import { readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { parseAllDocuments } from 'yaml'
import { isObject, type KubeObject } from '../support/reference/api.ts'
import { ControlPlane } from '../support/reference/control-plane.ts'

/* What we ship is taken by a real API server, which knows every field: nothing unknown, nothing invalid. */

const BASE = fileURLToPath(new URL('../../deploy/kubernetes/base/', import.meta.url))

function documents(file: string): readonly KubeObject[] {
  return parseAllDocuments(readFileSync(BASE + file, 'utf8')).flatMap(document => {
    const object: unknown = document.toJS()
    return isObject(object) && !object.apiVersion.startsWith('kustomize') ? [object] : []
  })
}

const objects = readdirSync(BASE)
  .flatMap(documents)
  .map(object => [`${object.kind} ${object.metadata.name}`, object] as const)

describe('the manifests of deploy/kubernetes/base', () => {
  let plane: ControlPlane

  beforeAll(async () => {
    plane = await ControlPlane.start()
  })

  afterAll(async () => {
    await plane?.stop()
  })

  test('are there', () => {
    expect(objects.map(([name]) => name)).toContain('DaemonSet kprobe')
  })

  test.each(objects)('%s is valid', async (_, object) => {
    await expect(plane.api.check(object)).resolves.toMatchObject({ kind: object.kind })
  })

  test('an unknown field would be found', async () => {
    const [, daemonSet] = objects.find(([name]) => name === 'DaemonSet kprobe') ?? []
    if (daemonSet === undefined) throw new Error('no DaemonSet')
    await expect(
      plane.api.check({ ...daemonSet, spec: { ...Object(daemonSet.spec), replicas: 1 } }),
    ).rejects.toThrow(/unknown field "spec.replicas"/)
  })
})
