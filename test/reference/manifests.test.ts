import { readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { parseAllDocuments } from 'yaml'
import { isObject, type KubeObject, objectPath } from '../support/reference/api.ts'
import { ControlPlane } from '../support/reference/control-plane.ts'

/* What we ship is taken by a real API server, which knows every field: nothing unknown, nothing invalid. */

const FOLDERS = ['base', 'components/relay'].map(name =>
  fileURLToPath(new URL(`../../deploy/kubernetes/${name}/`, import.meta.url)),
)
const EXAMPLES = fileURLToPath(new URL('../../deploy/examples/', import.meta.url))

function documents(path: string): readonly KubeObject[] {
  return parseAllDocuments(readFileSync(path, 'utf8')).flatMap(document => {
    const object: unknown = document.toJS()
    if (isList(object)) return object.items.filter(isObject)
    return isObject(object) && !object.apiVersion.startsWith('kustomize') ? [object] : []
  })
}

function isList(value: unknown): value is { readonly items: readonly unknown[] } {
  return typeof value === 'object' && value !== null && 'items' in value && Array.isArray(value.items)
}

const objects = FOLDERS.flatMap(folder => readdirSync(folder).flatMap(file => documents(folder + file))).map(
  object => [`${object.kind} ${object.metadata.name}`, object] as const,
)

describe('the manifests of deploy/kubernetes', () => {
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

describe('deploy/examples', () => {
  const files = readdirSync(EXAMPLES, { recursive: true })
    .map(String)
    .filter(name => /\.(ya?ml|json)$/.test(name))
    .sort()
  let plane: ControlPlane

  beforeAll(async () => {
    // kubeadm's range, which the examples use, and one beside it.
    plane = await ControlPlane.start({ serviceCidrs: '10.96.0.0/12,fd00:10:96::/112' })
  })

  afterAll(async () => {
    await plane?.stop()
  })

  /** Of an object that every cluster has: the Service kubernetes. */
  async function change(object: KubeObject): Promise<unknown> {
    const path = `${objectPath(object)}?dryRun=All&fieldValidation=Strict`
    const type = 'application/strategic-merge-patch+json'
    return (await plane.api.send('PATCH', path, object, type)).body
  }

  test.each(files)('%s applies to a cluster, with no unknown field', async file => {
    for (const object of documents(EXAMPLES + file)) {
      if (object.kind === 'Namespace') await plane.api.put(object)
      const name = `${object.kind} ${object.metadata.namespace ?? ''}/${object.metadata.name}`
      const refused = await plane.api.check(object).catch((error: Error) => error.message)
      const isThere = typeof refused === 'string' && refused.includes('409')
      const answer = isThere ? await change(object) : refused
      expect({ name, answer }).toMatchObject({ name, answer: { kind: object.kind } })
    }
  })
})
