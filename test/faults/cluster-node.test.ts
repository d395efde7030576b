import { writeFileSync } from 'node:fs'
import { beforeEach, describe, expect, it } from 'vitest'
import type { Flow } from '../support/lab/lab.ts'
import { ip } from '../support/lab/topology.ts'
import { endpoint, serviceOf, sliceOf } from '../support/objects.ts'
import { eventually } from '../support/patience.ts'
import { NODE_NAME } from '../support/pipeline.ts'
import { answers, ask, askSocket, Cluster, METRICS_PORT, metric, node } from './cluster.ts'
import { generation, listRuleset } from './kernel.ts'
import { service, services } from './objects.ts'

const [VIP, NODE] = ['172.30.1.1', '192.168.0.2']
const [A, B] = ['10.0.5.1', '10.0.5.2']
const ZONE = 'topology.kubernetes.io/zone'

const cluster = Cluster.ofEachTest()

beforeEach(() => cluster.open({ packets: true }))

/** Where new connections to this address go: endpoints, or the verdict. */
async function reached(destination: string, change: Partial<Flow> = {}): Promise<string> {
  await cluster.converged()
  const flow: Flow = {
    from: 'outside',
    source: '203.0.113.5',
    protocol: 'TCP',
    destination,
    port: 80,
    ...change,
  }
  const [outcome] = await cluster.lab.trace([flow])
  return outcome?.verdict === 'DNAT'
    ? [...outcome.endpoints.keys()].sort().join(' ')
    : String(outcome?.verdict)
}

it('F41: hostile texts stay texts, and secrets beside our fields are nowhere to be seen', async () => {
  const secret = 'canary-3f9c2b7e'
  const hostile = 'x"; flush ruleset; #\u001b[2J\n{{.Secret}}'
  const [object, slice] = [serviceOf('web', VIP), sliceOf('web', [A])]
  const annotations = { 'kubectl.kubernetes.io/last-applied-configuration': secret, [hostile]: hostile }
  const metadata = { ...Object(object).metadata, annotations, labels: { secret, hostile } }
  cluster.put({ ...object, metadata }, { ...slice, metadata: { ...Object(slice).metadata, annotations } })
  const ports = [
    { name: hostile, port: 81, protocol: 'TCP' },
    { name: 'http', port: 80, protocol: 'TCP' },
  ]
  cluster.put(serviceOf('odd', '172.30.1.2', { ports }), serviceOf(hostile, '172.30.1.3'))
  const socket = cluster.file('admin')
  const daemon = await cluster.running({
    args: ['-v=5', `--admin-socket=${socket}`],
  })
  expect(await reached(VIP)).toBe(`${A}:8080`)
  await daemon.logged('refused')
  const pages = await Promise.all(
    ['/state', '/plan', '/receipts', '/config', '/snapshot'].map(path => askSocket(socket, path)),
  )
  pages.push(await ask('/metrics', METRICS_PORT), await ask('/healthz'))
  await daemon.stop()
  const sent = JSON.stringify(cluster.server.store.list('events'))
  const seen = [
    ...pages.map(({ body }) => body),
    JSON.stringify(daemon.records),
    daemon.out,
    listRuleset(),
    sent,
  ].join('\n')
  expect(seen).not.toContain(secret)
  expect(seen).not.toContain('\u001b')
  expect(daemon.strayLines).toEqual([])
})

describe('F43: the Node', () => {
  const nodePort = {
    type: 'NodePort',
    ports: [{ name: 'http', port: 80, protocol: 'TCP', nodePort: 30_080 }],
  }
  const onNode = { port: 30_080 }

  beforeEach(() => cluster.put(serviceOf('web', VIP, nodePort), sliceOf('web', [A])))

  it('F43: of another name is a warning that names it and those that exist, until it comes', async () => {
    cluster.remove(node())
    cluster.put({ apiVersion: 'v1', kind: 'Node', metadata: { name: 'another-node' } })
    const daemon = await cluster.running()
    expect(await daemon.logged('Node not found')).toMatchObject([
      { level: 'warn', node: NODE_NAME, nameFrom: '--hostname-override', nodes: ['another-node'] },
    ])
    expect(await daemon.logged('first sync complete')).toMatchObject([{ nodePorts: { IPv4: [], IPv6: [] } }])
    expect(await reached(NODE, onNode)).toBe('PASS')
    expect(JSON.parse((await ask('/healthz')).body)).toMatchObject({
      nodeEligible: false,
      healthy: true,
      reason: 'the Node object of this machine was not found; --hostname-override sets its name',
    })
    expect(await metric('kprobe_node_known')).toBe(0)
    cluster.put(node())
    expect(await reached(NODE, onNode)).toBe(`${A}:8080`)
    await daemon.logged('Node found')
    expect(await metric('kprobe_node_known')).toBe(1)
  })

  it('F43: whose address changes takes its NodePorts with it, without a restart', async () => {
    await cluster.running()
    expect(await reached(NODE, onNode)).toBe(`${A}:8080`)
    cluster.put(node({ ips: ['192.168.1.2'] }))
    expect(await reached('192.168.1.2', onNode)).toBe(`${A}:8080`)
    expect(await reached(NODE, onNode)).toBe('PASS')
  })

  it('F43: whose zone is told late has hints read anew', async () => {
    const hinted = (address: string, zone: string) => ({
      ...endpoint(address),
      zone,
      hints: { forZones: [{ name: zone }] },
    })
    cluster.put(sliceOf('web', [hinted(A, 'one'), hinted(B, 'two')]))
    await cluster.running()
    expect(await reached(VIP)).toBe(`${A}:8080 ${B}:8080`)
    cluster.put(node({ labels: { [ZONE]: 'two' } }))
    await eventually(async () => (await reached(VIP)) === `${B}:8080`)
  })

  it('F43: that is tainted for removal fails /healthz alone, until it is not', async () => {
    await cluster.running()
    await eventually(() => answers(200, '/healthz'))
    const before = await generation()
    cluster.put(node({ spec: { taints: [{ key: 'ToBeDeletedByClusterAutoscaler', effect: 'NoSchedule' }] } }))
    await eventually(() => answers(503, '/healthz'))
    expect(await ask('/livez')).toMatchObject({ code: 200 })
    expect(await reached(VIP)).toBe(`${A}:8080`)
    expect(await generation()).toBe(before)
    cluster.put(node())
    await eventually(() => answers(200, '/healthz'))
  })

  it('F43, F66: addresses that come and go 50 times a second never close a NodePort that is there', async () => {
    const daemon = await cluster.running({ args: ['--nodeport-addresses=192.168.0.0/24'] })
    for (let round = 0; round < 50; round++) {
      ip([`addr add 192.168.0.${10 + (round % 50)}/32 dev ext0`])
      if (round % 2 === 0) ip([`addr del 192.168.0.${10 + (round % 50)}/32 dev ext0`])
      expect(listRuleset()).toContain(NODE)
    }
    const flow = {
      from: 'outside',
      source: '203.0.113.5',
      protocol: 'TCP',
      destination: NODE,
      ...onNode,
    } as const
    await eventually(async () => (await cluster.lab.trace([flow]))[0]?.endpoints.has(`${A}:8080`) ?? false)
    await daemon.caughtUp()
    expect(daemon.said('cannot read the addresses')).toEqual([])
  })
})

describe('F44: the configuration file', () => {
  function write(change: object): string {
    const path = cluster.file('config.yaml')
    const clientConnection = { kubeconfig: cluster.kubeconfig }
    const kind = { apiVersion: 'kubeproxy.config.k8s.io/v1alpha1', kind: 'KubeProxyConfiguration' }
    writeFileSync(
      path,
      JSON.stringify({
        ...kind,
        hostnameOverride: NODE_NAME,
        clientConnection,
        clusterCIDR: '10.0.0.0/8,fd00:10::/64',
        ...change,
      }),
    )
    return path
  }

  it('F44: that turns bad while it is used leaves the one from before, and that is right again is used', async () => {
    cluster.put(...services(3))
    const daemon = await cluster.running({ args: [`--config=${write({})}`] })
    const before = listRuleset()
    write({ nftables: { masqueradeAll: 'perhaps' } })
    await daemon.logged('the last valid configuration stays in use', 1, 30_000)
    expect(listRuleset()).toBe(before)
    cluster.put(...service(9))
    await cluster.converged()
    write({ nftables: { masqueradeAll: true } })
    await daemon.logged('configuration applied', 1, 30_000)
    await eventually(() => listRuleset() !== before)
    expect(daemon.hasExited).toBe(false)
  })
})
