import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import * as k8s from '@kubernetes/client-node'
import { describe, expect, it } from 'vitest'
import { parseAllDocuments, parse as parseYaml } from 'yaml'
import { fieldOf, listAt } from '../../../src/base/plain-data.ts'
import { runCommand } from '../../../src/commands.ts'
import type { Environment } from '../../../src/config/config-document.ts'
import { RELAY_FLAGS } from '../../../src/config/flags.ts'
import { parseRequest } from '../../../src/config/load-config.ts'
import { FakeIo } from '../../support/fake-io.ts'
import { temporaryFolder } from '../../support/folder.ts'

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
  path.reduce<unknown>((at, step) => fieldOf(at, String(step)), value)

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
      { apiGroups: ['events.k8s.io'], resources: ['events'], verbs: ['create'] },
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
    for (const file of ['base', 'components/relay'])
      expect(documents(`${file}/kustomization.yaml`)[0]?.images).toEqual([
        { name: 'kprobe', newTag: version },
      ])
  })

  it('are all listed, and the overlays lead to them', () => {
    expect(documents('base/kustomization.yaml')[0]?.resources).toEqual(expect.arrayContaining(base))
    for (const overlay of readdirSync(join(KUBERNETES, 'overlays'))) {
      const [kustomization] = documents(`overlays/${overlay}/kustomization.yaml`)
      expect(kustomization?.resources).toEqual(['../../base'])
      for (const patch of listAt(kustomization, 'patches')) {
        const [object] = documents(`overlays/${overlay}/${String(text(patch, 'path'))}`)
        expect(complaints(object, `V1${String(object?.kind)}`, 'patch')).toEqual([])
        expect(text(object, 'metadata', 'name')).toBe(text(only('DaemonSet'), 'metadata', 'name'))
      }
    }
  })
})

const VALUES: Readonly<Record<string, string>> = {
  API_SERVER: 'https://192.0.2.1:6443',
  NODE_NAME: 'node-1',
  NODE_ZONE: 'zone-a',
  RELAYS: 'tcp://192.0.2.5:12091@zone-a,tcp://192.0.2.6:12091@zone-b',
}

/** As kubelet replaces them. */
function withValues(flag: string): string {
  return flag.replace(
    /\$\((\w+)\)/g,
    (_, name) => VALUES[String(name)] ?? expect.fail(`no value for ${name}`),
  )
}

/** A DaemonSet after the JSON patches of a component, which only append. */
function patched(component: string): Json {
  const copy: Json = JSON.parse(JSON.stringify(only('DaemonSet')))
  for (const patch of listAt(documents(`components/${component}/kustomization.yaml`)[0], 'patches')) {
    expect(text(patch, 'target')).toEqual({ kind: 'DaemonSet', name: text(copy, 'metadata', 'name') })
    const operations: unknown = parseYaml(String(text(patch, 'patch')))
    for (const operation of Array.isArray(operations) ? operations : []) {
      const path = String(text(operation, 'path')).split('/').slice(1)
      expect([text(operation, 'op'), path.pop()]).toEqual(['add', '-'])
      const list = text(copy, ...path)
      if (!Array.isArray(list)) throw new Error(`${path.join('/')}: no list`)
      list.push(text(operation, 'value'))
    }
  }
  return copy
}

describe('the components', () => {
  const components = readdirSync(join(KUBERNETES, 'components'))

  it.each(components)('%s gives a DaemonSet that the API knows, whose flags kprobe takes', component => {
    const daemonSet = patched(component)
    expect(daemonSet).not.toEqual(only('DaemonSet'))
    expect(complaints(daemonSet, 'V1DaemonSet', 'DaemonSet')).toEqual([])
    const container = text(daemonSet, 'spec', 'template', 'spec', 'containers', 0)
    const [, ...flags] = listAt(container, 'args').map(String)
    const [map] = documents('base/config.yaml')
    const argv = flags.map(withValues)
    const parsed = parse(String(text(map, 'data', 'config.conf')), argv, { POD_CIDR: '10.9.0.0/16' })
    expect(parsed).toMatchObject({ kind: 'ok', value: { warnings: [] } })
  })

  it.each(components)('%s has an overlay, and only resources that the API knows', component => {
    const [overlay] = documents(`overlays/${component}/kustomization.yaml`)
    expect(overlay?.components).toEqual([`../../components/${component}`])
    for (const file of listAt(documents(`components/${component}/kustomization.yaml`)[0], 'resources'))
      for (const object of documents(`components/${component}/${String(file)}`))
        expect(complaints(object, `V1${String(object.kind)}`, String(object.kind))).toEqual([])
  })

  it('saved-state mounts the folder of its flag, and the node keeps it', () => {
    const spec = text(patched('saved-state'), 'spec', 'template', 'spec')
    expect(text(spec, 'containers', 0, 'volumeMounts')).toContainEqual({
      name: 'state',
      mountPath: '/var/lib/kprobe-state',
    })
    expect(text(spec, 'containers', 0, 'args')).toContain('--state-dir=/var/lib/kprobe-state')
    expect(text(spec, 'volumes')).toContainEqual({
      name: 'state',
      hostPath: { path: '/var/lib/kprobe-state', type: 'DirectoryOrCreate' },
    })
  })

  describe('relay', () => {
    const parts = documents('components/relay/relay.yaml')
    const ofKind = (kind: string) => parts.find(each => each.kind === kind)
    const pod = text(ofKind('Deployment'), 'spec', 'template', 'spec')
    const relay = text(pod, 'containers', 0)
    const args = (of: unknown) => listAt(of, 'args').map(each => withValues(String(each)))

    it('runs kprobe relay with flags that it takes, for the ServiceAccount of the nodes', async () => {
      const [map] = documents('base/config.yaml')
      const folder = temporaryFolder()
      const kubeconfig = join(folder, 'kubeconfig')
      writeFileSync(kubeconfig, String(text(map, 'data', 'kubeconfig.conf')))
      const argv = args(relay).map(arg => arg.replace('/var/lib/kprobe/kubeconfig.conf', kubeconfig))
      const io = new FakeIo({ signal: AbortSignal.abort() })
      const code = await runCommand(argv, io)
      // Its certificate is not here: everything before is right.
      expect([code, io.stderr]).toEqual([1, expect.stringMatching(/^kprobe relay: --api-tls-cert: ENOENT/)])
      const [account] = objects.filter(each => each.kind === 'ServiceAccount')
      const name = `${String(text(account, 'metadata', 'namespace'))}/${String(text(account, 'metadata', 'name'))}`
      expect(args(relay)).toContain(`--token-service-accounts=${name}`)
    })

    it('has no capability and no root, and reads its key by its group', () => {
      expect(text(relay, 'securityContext')).toEqual({
        runAsNonRoot: true,
        runAsUser: 65532,
        runAsGroup: 65532,
        allowPrivilegeEscalation: false,
        readOnlyRootFilesystem: true,
        capabilities: { drop: ['ALL'] },
        seccompProfile: { type: 'RuntimeDefault' },
      })
      expect(text(pod, 'securityContext')).toEqual({ fsGroup: 65532 })
      expect(text(pod, 'volumes', 1, 'secret', 'defaultMode')).toBe(0o440)
    })

    it('reads, reviews tokens, and has no other right', () => {
      const role = documents('components/relay/rbac.yaml').find(each => each.kind === 'ClusterRole')
      const rights = listAt(role, 'rules').map(
        rule => `${String(text(rule, 'resources'))}: ${String(text(rule, 'verbs'))}`,
      )
      expect(rights).toEqual([
        'services,nodes: list,watch',
        'endpointslices: list,watch',
        'servicecidrs: list,watch',
        'tokenreviews: create',
      ])
    })

    it('needs no Service and no network of pods to be found, and no ready node to start', () => {
      expect(pod).toMatchObject({
        hostNetwork: true,
        dnsPolicy: 'Default',
        tolerations: [{ operator: 'Exists' }],
      })
      const daemonSet = patched('relay')
      const container = text(daemonSet, 'spec', 'template', 'spec', 'containers', 0)
      expect(args(container)).toContain('--relay-fallback=kube')
      const volumes = listAt(text(daemonSet, 'spec', 'template', 'spec'), 'volumes')
      const volume = volumes.find(each => text(each, 'name') === 'relay')
      expect(text(volume, 'projected', 'sources', 1, 'configMap', 'optional')).toBe(true)
      const audience = text(volume, 'projected', 'sources', 0, 'serviceAccountToken', 'audience')
      expect(RELAY_FLAGS.find(({ name }) => name === 'token-audience')?.default).toBe(audience)
    })

    it('selects its own pods everywhere, at the ports of its flags', () => {
      const own = { 'k8s-app': 'kprobe-relay' }
      expect(text(ofKind('Deployment'), 'spec', 'template', 'metadata', 'labels')).toEqual(own)
      expect(text(ofKind('Service'), 'spec', 'selector')).toEqual(own)
      for (const [kind, field] of [
        ['Deployment', 'selector'],
        ['PodDisruptionBudget', 'selector'],
        ['NetworkPolicy', 'podSelector'],
      ] as const)
        expect(text(ofKind(kind), 'spec', field)).toEqual({ matchLabels: own })
      const portsOf = (of: unknown, field: string) => listAt(of, 'ports').map(each => text(each, field))
      const ports = args(relay)
        .flatMap(flag => /^--(?:listen|metrics-bind-address)=.*:(\d+)$/.exec(flag)?.[1] ?? [])
        .map(Number)
      expect(portsOf(relay, 'containerPort')).toEqual(ports)
      expect(portsOf(text(ofKind('Service'), 'spec'), 'port')).toEqual(ports)
      expect(portsOf(text(ofKind('NetworkPolicy'), 'spec', 'ingress', 0), 'port')).toEqual(ports)
      expect(text(relay, 'readinessProbe', 'httpGet')).toEqual({ path: '/readyz', port: ports[1] })
    })
  })

  it('node-condition asks for one verb more', () => {
    const [role] = documents('components/node-condition/rbac.yaml')
    expect(role?.rules).toEqual([{ apiGroups: [''], resources: ['nodes/status'], verbs: ['patch'] }])
  })
})

describe('the unit of systemd', () => {
  const unit = readFileSync(join(KUBERNETES, '../systemd/kprobe.service'), 'utf8')
  const settings = (name: string) =>
    [...unit.matchAll(new RegExp(`^${name}=(.*)$`, 'gm'))].map(([, value = '']) => value)

  it('lets V8 ask for protection keys, and refuses system calls without ending the process', () => {
    const [allowed = '', ...denied] = settings('SystemCallFilter')
    expect(allowed.split(' ')).toEqual(['@system-service', '@pkey'])
    expect(denied).toEqual(['~@privileged @resources'])
    expect(settings('SystemCallErrorNumber')).toEqual(['EPERM'])
  })

  it('gives the daemon CAP_NET_ADMIN and nothing else', () => {
    expect(settings('CapabilityBoundingSet')).toEqual(['CAP_NET_ADMIN'])
    expect(settings('AmbientCapabilities')).toEqual(['CAP_NET_ADMIN'])
    expect(settings('NoNewPrivileges')).toEqual(['yes'])
  })
})
