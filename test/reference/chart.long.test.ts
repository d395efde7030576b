import { execFileSync, spawnSync } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { parse, parseAllDocuments } from 'yaml'
import { parseRequest } from '../../src/config/load-config.ts'
import { isObject, type KubeObject } from '../support/reference/api.ts'
import { requireBinaries } from '../support/reference/binaries.ts'
import { ControlPlane } from '../support/reference/control-plane.ts'

/* The chart is deploy/kubernetes in another form: what helm renders is what kubectl kustomize does. */

const DEPLOY = fileURLToPath(new URL('../../deploy', import.meta.url))
const CHART = join(DEPLOY, 'helm/kprobe')
const OVERLAYS = join(DEPLOY, 'kubernetes/overlays')
const KUBEADM = fileURLToPath(new URL('../unit/config/kubeadm-config.yaml', import.meta.url))
const API_SERVER = 'https://192.0.2.1:6443'
const POD_CIDR = '10.244.0.0/16,fd00:10:244::/56'
const RELAY = 'tcp://192.0.2.5:12091@zone-a'
const CLUSTER = ['--set', `apiServer=${API_SERVER}`, '--set', `clusterCIDR={${POD_CIDR}}`]
/** The values that do what an overlay does. */
const VALUES: Readonly<Record<string, readonly string[]>> = {
  nftables: [],
  iptables: ['mode=iptables'],
  ipvs: ['mode=ipvs'],
  canary: ['canary=true'],
  'node-condition': ['nodeCondition.enabled=true'],
  relay: ['relay.enabled=true', `relay.addresses={${RELAY}}`],
  'saved-state': ['savedState.enabled=true'],
}

const { helm, kubectl } = requireBinaries()
const set = (values: readonly string[]) => values.flatMap(value => ['--set', value])

function runHelm(args: readonly string[]) {
  if (helm === undefined) throw new Error('helm is missing: node test/reference/build.mjs')
  return spawnSync(helm, args, { encoding: 'utf8' })
}

function template(args: readonly string[]) {
  return runHelm(['template', 'kprobe', CHART, '--namespace', 'kube-system', ...args])
}

/** By kind and name. */
type Objects = ReadonlyMap<string, KubeObject>

function objectsOf(text: string): Objects {
  const objects = parseAllDocuments(text).flatMap(document => {
    expect(document.errors).toEqual([])
    const object: unknown = document.toJS()
    return isObject(object) ? [object] : []
  })
  const byName = new Map(objects.map(each => [`${each.kind} ${each.metadata.name}`, each]))
  expect(byName.size).toBe(objects.length)
  return byName
}

function render(...values: readonly string[]): Objects {
  const { status, stdout, stderr } = template([...CLUSTER, ...set(values)])
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' })
  return objectsOf(stdout)
}

function refusal(...args: readonly string[]): string {
  const { status, stderr } = template(args)
  expect(status).not.toBe(0)
  return stderr
}

/** A value of an object, undefined where there is none. */
function at(value: unknown, ...path: readonly (string | number)[]): unknown {
  return path.reduce<unknown>(
    (inner, step) =>
      typeof inner === 'object' && inner !== null
        ? Object.entries(inner).find(([name]) => name === String(step))?.[1]
        : undefined,
    value,
  )
}

/** Files of the configuration as what they say, whatever their comments and order. */
function readable(objects: Objects): Readonly<Record<string, unknown>> {
  const read = (object: KubeObject) => {
    if (object.kind !== 'ConfigMap') return object
    const files = Object.entries({ ...Object(object.data) }).map(([name, text]) => [
      name,
      name.endsWith('.conf') ? parse(String(text)) : text,
    ])
    return { ...object, data: Object.fromEntries(files) }
  }
  return Object.fromEntries([...objects].map(([name, object]) => [name, read(object)]))
}

function kustomized(overlay: string): Objects {
  const text = execFileSync(kubectl, ['kustomize', join(OVERLAYS, overlay)], { encoding: 'utf8' })
  return objectsOf(
    text
      .replaceAll('https://REPLACE_ME_API_SERVER:6443', API_SERVER)
      .replaceAll('REPLACE_ME_POD_CIDR', POD_CIDR)
      .replaceAll('tcp://REPLACE_ME_RELAY:12091', RELAY),
  )
}

const DAEMON_SET = 'DaemonSet kprobe'
const POD = ['spec', 'template'] as const
const daemonSet = (objects: Objects) => objects.get(DAEMON_SET)
const container = (objects: Objects) => at(daemonSet(objects), ...POD, 'spec', 'containers', 0)

/** Which kustomize does not have: it restarts pods whose configuration changes. */
function withoutChecksum(objects: Objects): Objects {
  const checksum = at(daemonSet(objects), ...POD, 'metadata', 'annotations')
  expect(checksum).toEqual({ 'checksum/config': expect.stringMatching(/^[0-9a-f]{64}$/) })
  const copy: unknown = JSON.parse(
    JSON.stringify(daemonSet(objects), (name, value) => (name === 'annotations' ? undefined : value)),
  )
  if (!isObject(copy)) throw new Error('no DaemonSet')
  return new Map([...objects, [DAEMON_SET, copy]])
}

function file(objects: Objects, name: string): unknown {
  return parse(String(at(objects.get('ConfigMap kprobe'), 'data', name)))
}

/** As kprobe reads it. */
function parsed(objects: Objects, name: string) {
  const text = String(at(objects.get('ConfigMap kprobe'), 'data', name))
  const sources = { hostName: 'node', env: { POD_CIDR } }
  return parseRequest([`--master=${API_SERVER}`], sources, { path: name, text })
}

describe.skipIf(helm === undefined)('the chart', () => {
  test('has values for every overlay', () => {
    expect(Object.keys(VALUES).sort()).toEqual(readdirSync(OVERLAYS).sort())
  })

  test.each(Object.entries(VALUES))('renders the objects of the overlay %s', (overlay, values) => {
    const chart = readable(withoutChecksum(render(...values)))
    expect(Object.keys(chart).length).toBeGreaterThanOrEqual(7)
    expect(chart).toEqual(readable(kustomized(overlay)))
  })

  test('passes the strict lint of helm', () => {
    const { status, stdout, stderr } = runHelm(['lint', '--strict', CHART, ...CLUSTER])
    expect({ status, output: status === 0 ? '' : stdout + stderr }).toEqual({ status: 0, output: '' })
  })

  test.each(['nftables', 'iptables', 'ipvs', 'userspace'])(
    'gives kprobe files that it takes: %s mode',
    mode => {
      const objects = render(
        `mode=${mode}`,
        'config.nodePortAddresses={primary}',
        'metrics.bindAddress=0.0.0.0:9100',
      )
      for (const name of ['config.conf', 'init.conf']) {
        const text = String(at(objects.get('ConfigMap kprobe'), 'data', name))
        const sources = { hostName: 'node', env: { POD_CIDR } }
        const parsed = parseRequest([`--master=${API_SERVER}`], sources, { path: name, text })
        expect(parsed).toMatchObject({
          kind: 'ok',
          value: { config: { proxyMode: mode }, warnings: [] },
        })
      }
    },
  )

  test.each(['nftables', 'iptables', 'ipvs'])(
    "takes kubeadm's configuration of kube-proxy: %s mode",
    mode => {
      const config: unknown = parse(readFileSync(KUBEADM, 'utf8'))
      const args = (values: object) => [
        ...CLUSTER,
        '--set',
        `mode=${mode}`,
        '--set-json',
        `config=${JSON.stringify(values)}`,
      ]
      const refused = refusal(...args(Object(config)))
      expect(refused.match(/^config\..*/gm)).toEqual([
        'config.clusterCIDR: set the value clusterCIDR instead',
        expect.stringMatching(/^config\.clientConnection\.kubeconfig: leave it out/),
      ])
      const { clusterCIDR, clientConnection, ...left } = Object(config)
      const { status, stdout, stderr } = template(args(left))
      expect({ status, stderr }).toEqual({ status: 0, stderr: '' })
      for (const name of ['config.conf', 'init.conf'])
        expect(parsed(objectsOf(stdout), name)).toMatchObject({
          kind: 'ok',
          value: { config: { proxyMode: mode } },
        })
    },
  )

  test('passes configuration through, false and zero included, and conntrack to the init container alone', () => {
    const objects = render(
      'mode=iptables',
      'config.iptables.localhostNodePorts=false',
      'config.iptables.masqueradeBit=0',
      'config.conntrack.min=1000',
      'config.detectLocalMode=NodeCIDR',
    )
    expect(file(objects, 'config.conf')).toMatchObject({
      iptables: { localhostNodePorts: false, masqueradeBit: 0 },
      conntrack: { min: 0, maxPerCore: 0 },
      detectLocalMode: 'NodeCIDR',
    })
    expect(file(objects, 'init.conf')).toMatchObject({
      mode: 'iptables',
      iptables: { localhostNodePorts: false },
      conntrack: { min: 1000 },
    })
  })

  test('probes and scrapes the ports of the addresses', () => {
    const objects = render('healthz.bindAddress=[::]:20256', 'metrics.bindAddress=0.0.0.0:20249')
    expect(file(objects, 'config.conf')).toMatchObject({
      healthzBindAddress: '[::]:20256',
      metricsBindAddress: '0.0.0.0:20249',
    })
    expect(container(objects)).toMatchObject({
      ports: [
        { name: 'healthz', containerPort: 20_256, hostPort: 20_256 },
        { name: 'metrics', containerPort: 20_249, hostPort: 20_249 },
      ],
      livenessProbe: { httpGet: { port: 20_256 } },
      readinessProbe: { httpGet: { port: 20_256 } },
    })
  })

  test('pins an image by its digest', () => {
    const digest = `sha256:${'0123456789abcdef'.repeat(4)}`
    const image = 'registry.example/kprobe'
    expect(at(container(render(`image.repository=${image}`, 'image.tag=v2')), 'image')).toBe(`${image}:v2`)
    expect(at(container(render(`image.repository=${image}`, `image.digest=${digest}`)), 'image')).toBe(
      `${image}@${digest}`,
    )
  })

  test.each([
    ['apiServer=https://api.example', 'apiServer=https://[fd00::1]:6443/'],
    ['clusterCIDR={0.0.0.0/0,::/0}', 'clusterCIDR={255.255.255.255/32,1:2:3:4:5:6:7:8/128}'],
    ['healthz.bindAddress=[fd00::1]:65535', 'metrics.bindAddress=[::]:1'],
    ['nodeSelector.kubernetes\\.io/os=linux', 'savedState.path=/var/lib/a/b..c'],
  ])('takes %s and %s', (...values) => {
    expect(render(...values).has(DAEMON_SET)).toBe(true)
  })

  test('treats null as empty where nothing may be said', () => {
    const names = [
      'resources',
      'updateStrategy',
      'podLabels',
      'podAnnotations',
      'nodeSelector',
      'tolerations',
    ]
    const objects = render(...[...names, 'priorityClassName', 'extraArgs'].map(name => `${name}=null`))
    expect(JSON.stringify([...objects])).not.toContain('null')
    expect(Object.keys({ ...Object(at(daemonSet(objects), 'spec')) })).toEqual(['selector', 'template'])
    expect(container(objects)).not.toHaveProperty('resources')
  })

  test('takes requests and limits from the table of docs/sizing.md', () => {
    const of = (...values: readonly string[]) => at(container(render(...values)), 'resources')
    expect(of('sizing.services=2000', 'sizing.endpoints=15000', 'sizing.changesPerSecond=20')).toEqual({
      requests: { cpu: '40m', memory: '128Mi' },
      limits: { memory: '512Mi' },
    })
    expect(of('sizing.services=30000', 'sizing.changesPerSecond=1', 'mode=iptables')).toEqual({
      requests: { cpu: '125m', memory: '288Mi' },
      limits: { memory: '640Mi' },
    })
    const { status, stderr } = template([...CLUSTER, '--set', 'sizing.services=90000'])
    expect([status, stderr]).toEqual([1, expect.stringContaining('sizing: docs/sizing.md has no row')])
  })

  test('has no fields of a rolling update when updates wait for a deletion', () => {
    const strategy = (...values: readonly string[]) =>
      at(daemonSet(render(...values)), 'spec', 'updateStrategy')
    expect(strategy('updateStrategy.type=OnDelete')).toEqual({ type: 'OnDelete' })
    expect(strategy('updateStrategy.rollingUpdate.maxUnavailable=1')).toEqual({
      type: 'RollingUpdate',
      rollingUpdate: { maxUnavailable: 1 },
    })
  })

  test('keeps texts that look like other types', () => {
    const { status, stdout } = template([...CLUSTER, '--namespace', '123', '--set', 'image.tag=v1'])
    expect(status).toBe(0)
    for (const object of objectsOf(stdout).values())
      if (object.metadata.namespace !== undefined) expect(object.metadata.namespace).toBe('123')
  })

  test('restarts the pods for a changed configuration, and for nothing else', () => {
    const checksum = (...values: readonly string[]) =>
      at(daemonSet(render(...values)), ...POD, 'metadata', 'annotations', 'checksum/config')
    expect(checksum('canary=true')).toBe(checksum())
    expect(checksum('config.nodePortAddresses={all}')).not.toBe(checksum())
  })
})

describe.skipIf(helm === undefined)('the chart refuses', () => {
  test('placeholders, all in one error', () => {
    const said = refusal('--set', 'image.repository=REPLACE_ME_REGISTRY/kprobe')
    expect(said).toContain('apiServer: REPLACE_ME_API_SERVER is a placeholder')
    expect(said).toContain('clusterCIDR: REPLACE_ME_POD_CIDR is a placeholder')
    expect(said).toContain('image: REPLACE_ME_REGISTRY is a placeholder')
    expect(said).not.toContain('is not a')
  })

  test.each([
    ['apiServer=192.0.2.1', 'apiServer: "192.0.2.1" is not a URL'],
    ['clusterCIDR=10.244.0.0', 'clusterCIDR: "10.244.0.0" is not a range'],
    ['clusterCIDR=', 'clusterCIDR: empty'],
    ['mode=ebpf', "value must be one of 'nftables', 'iptables', 'ipvs', 'userspace'"],
    ['canaries=true', "additional properties 'canaries' not allowed"],
    ['savedState.folder=/a', "additional properties 'folder' not allowed"],
    ['config.nodePortAdresses={all}', "additional properties 'nodePortAdresses' not allowed"],
    ['config.ipvs.schedular=rr', "additional properties 'schedular' not allowed"],
    ['config.mode=ipvs', 'config.mode: set the value mode instead'],
    ['config.stateDir=/a', 'config.stateDir: set the value savedState instead'],
    ['config.clientConnection.kubeconfig=/a', 'config.clientConnection.kubeconfig: leave it out'],
    ['config.hostnameOverride=a', 'config.hostnameOverride: leave it out'],
    ['healthz.bindAddress=127.0.0.1:10256', 'healthz.bindAddress: kubelet does not reach 127.0.0.1:10256'],
    ['healthz.bindAddress=0.0.0.0', 'healthz.bindAddress: "0.0.0.0" is not ADDRESS:PORT'],
    ['metrics.podMonitor.enabled=true', 'metrics.podMonitor: Prometheus does not reach 127.0.0.1'],
    ['relay.enabled=true', 'relay.addresses: empty'],
    ['relay.addresses={192.0.2.5:12091}', 'relay.addresses: "192.0.2.5:12091" is not an address'],
    [
      'relay.addresses={tcp://192.0.2.5:12091@a b}',
      'relay.addresses: "tcp://192.0.2.5:12091@a b" is not an address',
    ],
    ['relay.addresses={tcp://REPLACE_ME:1}', 'relay: REPLACE_ME is a placeholder'],
    ['extraArgs={--master=REPLACE_ME_URL}', 'extraArgs: REPLACE_ME_URL is a placeholder'],
    ['apiServer=https://192.0.2.1:6443" evil', 'apiServer: "https://192.0.2.1:6443\\" evil" is not a URL'],
    ['apiServer=https://999.1.1.1:6443', 'apiServer: "https://999.1.1.1:6443" is not a URL'],
    ['apiServer=https://api.example:99999', 'apiServer: "https://api.example:99999" is not a URL'],
    ['clusterCIDR=10.244.0.0/99', 'clusterCIDR: "10.244.0.0/99" is not a range'],
    ['clusterCIDR=10.244.0.256/16', 'clusterCIDR: "10.244.0.256/16" is not a range'],
    ['clusterCIDR=fd00::/129', 'clusterCIDR: "fd00::/129" is not a range'],
    ['healthz.bindAddress=0.0.0.0:0', 'healthz.bindAddress: "0.0.0.0:0" is not ADDRESS:PORT'],
    ['healthz.bindAddress=0.0.0.0:99999', 'healthz.bindAddress: "0.0.0.0:99999" is not ADDRESS:PORT'],
    ['metrics.bindAddress=999.1.1.1:10249', 'metrics.bindAddress: "999.1.1.1:10249" is not ADDRESS:PORT'],
    [
      'healthz.bindAddress=0.0.0.0:10249',
      'healthz.bindAddress: metrics.bindAddress has the same port, 10249',
    ],
    ['nodeCondition.type=a: b # c', "at '/nodeCondition/type': 'a: b # c' does not match pattern"],
    ['nodeCondition.type=Ready', 'nodeCondition.type: kubelet or a cloud controller sets Ready'],
    ['priorityClassName=a: b', "at '/priorityClassName': 'a: b' does not match pattern"],
    ['savedState.path=/etc', 'savedState.path: "/etc" is not a folder below /var/lib/'],
    ['savedState.path=/var/lib/', 'savedState.path: "/var/lib/" is not a folder below /var/lib/'],
    ['savedState.path=/var/lib/a/../../..', 'savedState.path: "/var/lib/a/../../.." is not a folder'],
    ['savedState.path=/run/kprobe', 'savedState.path: "/run/kprobe" is not a folder below /var/lib/'],
    ['savedState.path=/var/lib/kprobe', 'savedState.path: "/var/lib/kprobe" belongs to the configuration'],
    ['podAnnotations.checksum/config=a', 'podAnnotations.checksum/config: leave it out; the chart sets it'],
    ['podLabels.k8s-app=a', 'podLabels.k8s-app: leave it out; the chart sets it to kprobe'],
    [
      'nodeSelector.kubernetes\\.io/os=a',
      'nodeSelector.kubernetes.io/os: leave it out; the chart sets it to linux',
    ],
    ['updateStrategy.rollingUpdate.maxUnavailable=all', "'all' does not match pattern"],
    ['metrics.prometheusRule.runbookBase=https://a/ # b', "'https://a/ # b' does not match pattern"],
    ['config=null', "at '': missing property 'config'"],
    ['metrics=null', "at '': missing property 'metrics'"],
    ['metrics.podMonitor=null', "at '/metrics': missing property 'podMonitor'"],
    ['savedState.path=null', "at '/savedState': missing property 'path'"],
  ])('%s', (value, message) => {
    expect(refusal(...CLUSTER, '--set', value)).toContain(message)
  })
})

describe.skipIf(helm === undefined)('monitoring', () => {
  const alerts: { readonly groups: readonly { readonly rules: readonly object[] }[] } = parse(
    readFileSync(join(CHART, 'alerts.yaml'), 'utf8'),
  )

  test('is off by default', () => {
    expect([...render().keys()].filter(name => /Monitor|Rule /.test(name))).toEqual([])
  })

  test('has the alerts of the file', () => {
    const rule = render('metrics.prometheusRule.enabled=true').get('PrometheusRule kprobe')
    expect(rule?.spec).toEqual(alerts)
  })

  test('leads to runbooks where they are read', () => {
    const base = 'https://git.example/kprobe'
    const objects = render(
      'metrics.prometheusRule.enabled=true',
      `metrics.prometheusRule.runbookBase=${base}/`,
    )
    const rules = at(objects.get('PrometheusRule kprobe'), 'spec', 'groups', 0, 'rules')
    expect(at(rules, 0, 'annotations', 'runbook_url')).toBe(`${base}/docs/alerts.md#kprobedown`)
    expect(JSON.stringify(rules).split(`${base}/docs/alerts.md#`)).toHaveLength(
      (alerts.groups[0]?.rules.length ?? 0) + 1,
    )
  })

  test('scrapes the port of the metrics, of the pods of the DaemonSet', () => {
    const objects = render(
      'metrics.podMonitor.enabled=true',
      'metrics.podMonitor.labels.release=prometheus',
      'metrics.bindAddress=0.0.0.0:10249',
    )
    const monitor = objects.get('PodMonitor kprobe')
    expect(monitor?.metadata.labels).toEqual({ 'k8s-app': 'kprobe', release: 'prometheus' })
    expect(at(monitor, 'spec', 'selector')).toEqual(at(daemonSet(objects), 'spec', 'selector'))
    const port = at(monitor, 'spec', 'podMetricsEndpoints', 0, 'port')
    expect(at(container(objects), 'ports', 1, 'name')).toBe(port)
  })
})

describe.skipIf(helm === undefined)('an API server', () => {
  let plane: ControlPlane

  beforeAll(async () => {
    plane = await ControlPlane.start()
  })

  afterAll(async () => {
    await plane?.stop()
  })

  test('takes what the chart renders with every value set', async () => {
    const objects = render(
      ...Object.values(VALUES).flat(),
      'image.pullPolicy=Always',
      'image.pullSecrets[0].name=registry',
      'extraArgs={-v=2}',
      'nodeSelector.disk=ssd',
      'affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey=zone',
      'podAnnotations.a=b',
      'podLabels.c=d',
      'nodeCondition.type=ProxyReady',
    )
    expect(objects.size).toBeGreaterThanOrEqual(9)
    for (const object of objects.values())
      await expect(plane.api.check(object)).resolves.toMatchObject({ kind: object.kind })
    expect(at(container(objects), 'args')).toEqual(
      expect.arrayContaining(['--node-condition=ProxyReady', '-v=2']),
    )
    expect(at(daemonSet(objects), ...POD, 'spec', 'nodeSelector')).toEqual({
      'kubernetes.io/os': 'linux',
      'kprobe.io/proxy': 'kprobe',
      disk: 'ssd',
    })
  })
})
