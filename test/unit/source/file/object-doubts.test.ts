import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import * as k8s from '@kubernetes/client-node'
import { describe, expect, it } from 'vitest'
import { systemClock } from '../../../../src/base/clock.ts'
import { isJson } from '../../../../src/model/fields.ts'
import { parseObject } from '../../../../src/model/parse.ts'
import { API_FIELDS, type ApiFields, unknownIn } from '../../../../src/source/file/object-doubts.ts'
import { readObjects } from '../../../../src/source/file/read-objects.ts'
import { EXAMPLES } from '../../../support/daemon.ts'
import { loadScenarios } from '../../../support/scenario.ts'

interface ApiType {
  getAttributeTypeMap(): readonly { readonly baseName: string; readonly type: string }[]
}

const TYPES: Readonly<Record<string, unknown>> = { ...k8s }

function isApiType(value: unknown): value is ApiType {
  return typeof value === 'function' && 'getAttributeTypeMap' in value
}

/** Paths of all fields of a type of the official client: `spec.ports.port`. */
function fieldsOfType(type: string, prefix = ''): string[] {
  const api = TYPES[type.replace(/^Array<(.*)>$/, '$1')]
  if (!isApiType(api)) return []
  return api
    .getAttributeTypeMap()
    .flatMap(({ baseName, type: below }) => [
      `${prefix}${baseName}`,
      ...fieldsOfType(below, `${prefix}${baseName}.`),
    ])
}

function fieldsOfTable(fields: ApiFields, prefix = ''): string[] {
  return Object.entries(fields).flatMap(([name, below]) => [
    `${prefix}${name}`,
    ...(below === true ? [] : fieldsOfTable(below, `${prefix}${name}.`)),
  ])
}

function doubtsOf(object: unknown): string[] {
  if (!isJson(object)) throw new Error('not an object')
  return [...unknownIn(object)]
}

describe('API_FIELDS', () => {
  // The official client for Node.js is two minor versions older than the API that kprobe follows.
  const NEWER: readonly string[] = ['status.declaredFeatures']

  it.each(['Service', 'EndpointSlice', 'Node', 'ServiceCIDR'])('has the fields of V1%s', kind => {
    const table = fieldsOfTable(API_FIELDS[kind]?.fields ?? {})
    const official = fieldsOfType(`V1${kind}`)
    const isBelowLeaf = (name: string) =>
      table.some(leaf => name.startsWith(`${leaf}.`) && !table.some(other => other.startsWith(`${leaf}.`)))
    expect(official.length).toBeGreaterThan(20)
    expect(table.filter(name => !NEWER.includes(name)).sort()).toEqual(
      official.filter(name => !isBelowLeaf(name)).sort(),
    )
  })
})

describe('unknownIn', () => {
  it('finds nothing in the objects of all scenarios but what one of them has on purpose', () => {
    const doubts = loadScenarios().flatMap(({ file, steps }) =>
      steps.flatMap(({ objects }) => objects.flatMap(doubtsOf).map(text => `${file}: ${text}`)),
    )
    expect(doubts).toEqual([
      'odd-yaml.yaml: Service ns1/web: unknown field spec.ports[0].unknownField ignored',
      'odd-yaml.yaml: EndpointSlice ns1/web-a: unknown field ports[0].targetPort ignored',
      'odd-yaml.yaml: EndpointSlice ns1/web-a: unknown field ports[0].unknownField ignored',
    ])
  })

  it('finds nothing in the examples, other kinds among them', async () => {
    const files = readdirSync(EXAMPLES, { recursive: true, encoding: 'utf8' }).filter(name =>
      /\.(yaml|json)$/.test(name),
    )
    expect(files.length).toBeGreaterThan(4)
    const options = { parseObject, clock: systemClock }
    for (const file of files)
      expect((await readObjects(join(EXAMPLES, file), options)).warnings, file).toEqual([])
  })

  it.each([
    [{ kind: 'Servce' }, 'ignored: Servce shop/web is of an unknown kind; did you mean Service?'],
    [{ kind: 'service' }, 'ignored: service shop/web is of an unknown kind; did you mean Service?'],
    [{ kind: 'Svc' }, /^ignored: Svc shop\/web is of an unknown kind; kprobe reads Service, /],
    [{ kind: 'Svc', apiVersion: undefined }, /^ignored: Svc shop\/web is of an unknown kind; /],
    [{ kind: 'Endpoints' }, 'ignored: Endpoints shop/web; kprobe reads EndpointSlices instead'],
    [{ kind: 'Nod' }, 'ignored: Nod shop/web is of an unknown kind; did you mean Node?'],
    [
      { kind: 'Service', apiVersion: undefined },
      'ignored: Service shop/web has no apiVersion; kprobe reads Service of v1',
    ],
    [
      { kind: 'EndpointSlice' },
      'ignored: EndpointSlice shop/web has apiVersion v1; kprobe reads EndpointSlice of discovery.k8s.io/v1',
    ],
    [{ kind: undefined }, /^ignored: an object without a kind; kprobe reads Service, /],
  ])('says of %j what is wrong with it', (change, text) => {
    const object = { apiVersion: 'v1', metadata: { namespace: 'shop', name: 'web' }, ...change }
    expect(doubtsOf(object)).toEqual([expect.stringMatching(text)])
  })

  it('leaves kinds of others alone', () => {
    for (const kind of ['Role', 'Pod', 'Secret', 'ServiceAccount', 'Deployment', 'Lease', 'Ingress'])
      expect(doubtsOf({ apiVersion: 'v1', kind })).toEqual([])
    expect(doubtsOf({ apiVersion: 'serving.knative.dev/v1', kind: 'Service' })).toEqual([])
    expect(doubtsOf({ apiVersion: 'example.com/v1', kind: 'Services' })).toEqual([])
  })

  it('names unknown fields by their path, also those of a list itself', () => {
    const metadata = { name: 'web', namespace: 'shop', label: {} }
    const spec = { ports: [{ port: 80 }, { port: 81, protocl: 'UDP', x: 1 }], clusterIp: '10.0.0.1' }
    expect(doubtsOf({ apiVersion: 'v1', kind: 'Service', metadata, spec, constructor: 1 })).toEqual([
      'Service shop/web: unknown field metadata.label ignored; did you mean labels?',
      'Service shop/web: unknown field spec.ports[1].protocl ignored; did you mean protocol?',
      'Service shop/web: unknown field spec.ports[1].x ignored',
      'Service shop/web: unknown field spec.clusterIp ignored; did you mean clusterIP?',
      'Service shop/web: unknown field constructor ignored',
    ])
    expect(doubtsOf({ apiVersion: 'v1', kind: 'List', itmes: [] })).toEqual([
      'List: unknown field itmes ignored; did you mean items?',
    ])
  })
})
