import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import * as k8s from '@kubernetes/client-node'
import { describe, expect, it } from 'vitest'
import { parseAllDocuments } from 'yaml'
import type { Environment } from '../../../src/config/config-file.ts'
import { parseRequest } from '../../../src/config/load-config.ts'

const KUBERNETES = fileURLToPath(new URL('../../../deploy/kubernetes', import.meta.url))

type Json = Readonly<Record<string, unknown>>

/** The API's own types, as the generated client describes them. */
interface ApiType {
  getAttributeTypeMap(): readonly {
    readonly name: string
    readonly baseName: string
    readonly type: string
  }[]
}

const TYPES: Readonly<Record<string, unknown>> = { ...k8s }
const PLAIN = /^(string|number|boolean|any|Date|object|IntOrString|\{ \[key: string\]: .*)$/

function isApiType(value: unknown): value is ApiType {
  return typeof value === 'function' && 'getAttributeTypeMap' in value
}

function isJson(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** Fields that the API does not know, and values of another type, with their paths. */
function complaints(value: unknown, type: string, path: string): string[] {
  const item = /^Array<(.*)>$/.exec(type)?.[1]
  if (item !== undefined) {
    if (!Array.isArray(value)) return [`${path}: not a list`]
    return value.flatMap((each, index) => complaints(each, item, `${path}[${index}]`))
  }
  if (type === 'string' || type === 'number' || type === 'boolean')
    return typeof value === type ? [] : [`${path}: ${JSON.stringify(value)} is not a ${type}`]
  if (PLAIN.test(type)) return []
  const api = TYPES[type]
  if (!isApiType(api)) return [`${path}: no type ${type}`]
  if (!isJson(value)) return [`${path}: not an object`]
  const fields = new Map(api.getAttributeTypeMap().map(each => [each.baseName, each.type]))
  return Object.entries(value).flatMap(([name, field]) => {
    const of = fields.get(name)
    return of === undefined
      ? [`${path}.${name}: no such field of ${type}`]
      : complaints(field, of, `${path}.${name}`)
  })
}

function documents(path: string): Json[] {
  return parseAllDocuments(readFileSync(join(KUBERNETES, path), 'utf8')).map(each => {
    expect(each.errors).toEqual([])
    const value: unknown = each.toJS()
    if (!isJson(value)) throw new Error(`${path}: not an object`)
    return value
  })
}

const base = readdirSync(join(KUBERNETES, 'base')).filter(name => name !== 'kustomization.yaml')
const objects = base.flatMap(name => documents(`base/${name}`))

/** By kind; of two, the first. */
function only(kind: string): Json {
  const [found] = objects.filter(each => each.kind === kind)
  if (found === undefined) throw new Error(`no ${kind}`)
  return found
}

function parse(config: string, argv: readonly string[], env: Environment) {
  return parseRequest(argv, { hostName: 'node', env }, { path: 'config.conf', text: config })
}

const text = (value: unknown, ...path: readonly (string | number)[]): unknown =>
  path.reduce<unknown>(
    (at, step) => (Array.isArray(at) ? at[Number(step)] : isJson(at) ? at[String(step)] : undefined),
    value,
  )

describe('the manifests', () => {
  it.each(objects.map(each => [`${each.kind} ${String(text(each, 'metadata', 'name'))}`, each] as const))(
    '%s has only fields that the API knows, of their types',
    (_, object) => {
      expect(complaints(object, `V1${String(object.kind)}`, String(object.kind))).toEqual([])
    },
  )

  it('would notice a field that does not exist, and a value of another type', () => {
    const bad = { apiVersion: 'v1', kind: 'ServiceAccount', metadata: { name: 7 }, secret: [] }
    expect(complaints(bad, 'V1ServiceAccount', 'it')).toEqual([
      'it.metadata.name: 7 is not a string',
      'it.secret: no such field of V1ServiceAccount',
    ])
  })

  it('give the daemon NET_ADMIN and nothing else', () => {
    const container = text(only('DaemonSet'), 'spec', 'template', 'spec', 'containers', 0)
    expect(text(container, 'securityContext')).toMatchObject({
      allowPrivilegeEscalation: false,
      readOnlyRootFilesystem: true,
      capabilities: { drop: ['ALL'], add: ['NET_ADMIN'] },
      seccompProfile: { type: 'RuntimeDefault' },
    })
  })

  it('ask for no more than reading Services, and telling of them', () => {
    const rules = text(only('ClusterRole'), 'rules')
    expect(rules).toEqual([
      { apiGroups: ['networking.k8s.io'], resources: ['servicecidrs'], verbs: ['list', 'watch'] },
      { apiGroups: ['events.k8s.io'], resources: ['events'], verbs: ['create', 'patch', 'update'] },
    ])
  })

  it('take the API server and the pod range from one ConfigMap, in every overlay', () => {
    const cluster = objects.find(each => text(each, 'metadata', 'name') === 'kprobe-cluster')
    const data = text(cluster, 'data')
    if (!isJson(data)) throw new Error('no data')
    expect(Object.keys(data)).toEqual(['API_SERVER', 'POD_CIDR'])
    const container = text(only('DaemonSet'), 'spec', 'template', 'spec', 'containers', 0)
    expect(text(container, 'envFrom')).toEqual([{ configMapRef: { name: 'kprobe-cluster' } }])
    expect(text(container, 'args')).toContain('--master=$(API_SERVER)')
    for (const file of ['base/config.yaml', 'overlays/ipvs/config.yaml', 'overlays/iptables/config.yaml']) {
      const [map] = documents(file)
      const config = String(text(map, 'data', 'config.conf'))
      expect(parse(config, ['--master=https://192.0.2.1:6443'], { POD_CIDR: '10.9.0.0/16' })).toMatchObject({
        kind: 'ok',
        value: { config: { client: { master: 'https://192.0.2.1:6443' } } },
      })
      const left = parse(config, [`--master=${String(data.API_SERVER)}`], { POD_CIDR: String(data.POD_CIDR) })
      const told = left.kind === 'errors' ? left.errors.map(each => `${each.path}: ${each.message}`) : []
      expect(told.join('\n')).toContain('--master: REPLACE_ME_API_SERVER is a placeholder')
      expect(told.join('\n')).toMatch(/^config\.conf:\d+: .*REPLACE_ME_POD_CIDR is a placeholder/m)
    }
  })

  it('name the image that npm run image builds without --tag', () => {
    const { version } = JSON.parse(readFileSync(join(KUBERNETES, '../../package.json'), 'utf8'))
    const pod = text(only('DaemonSet'), 'spec', 'template', 'spec')
    const images = ['initContainers', 'containers'].map(list => text(pod, list, 0, 'image'))
    expect(images).toEqual(['kprobe', 'kprobe'])
    expect(documents('base/kustomization.yaml')[0]?.images).toEqual([{ name: 'kprobe', newTag: version }])
  })

  it('are all listed, and the overlays lead to them', () => {
    expect(documents('base/kustomization.yaml')[0]?.resources).toEqual(expect.arrayContaining(base))
    for (const overlay of readdirSync(join(KUBERNETES, 'overlays'))) {
      const [kustomization] = documents(`overlays/${overlay}/kustomization.yaml`)
      expect(kustomization?.resources).toEqual(['../../base'])
      const patches = text(kustomization, 'patches')
      for (const patch of Array.isArray(patches) ? patches : []) {
        const [object] = documents(`overlays/${overlay}/${String(text(patch, 'path'))}`)
        expect(complaints(object, `V1${String(object?.kind)}`, 'patch')).toEqual([])
        expect(text(object, 'metadata', 'name')).toBe(text(only('DaemonSet'), 'metadata', 'name'))
      }
    }
  })
})
