import { execFileSync } from 'node:child_process'
import { afterEach, describe, expect, it } from 'vitest'
import { ip } from '../support/lab/topology.ts'
import { balanced, serviceOf, sliceOf } from '../support/objects.ts'
import { eventually } from '../support/patience.ts'
import { API_ADDRESS } from './api-apart.ts'
import { ApiCapture, type Mode, NOWHERE, PORTS, type Where } from './api-capture.ts'
import { type Cluster, metric } from './cluster.ts'
import { KUBE_PROXY_TABLE } from './foreign-rules.ts'
import { listRuleset } from './kernel.ts'

let rig: ApiCapture
let cluster: Cluster

async function open(where: Where): Promise<void> {
  rig = await ApiCapture.open(where)
  cluster = rig.cluster
}

afterEach(() => rig.close())

/** The table, of kube-proxy or of another proxy, in which the API server is a Service without endpoints. */
function rejecting(table: string): void {
  const rules = KUBE_PROXY_TABLE.replace('table ip kube-proxy', `table ip ${table}`).replace(
    '172.30.0.1 . tcp . 80',
    `${API_ADDRESS} . tcp . ${cluster.server.port}`,
  )
  execFileSync('nft', ['-f', '-'], { input: rules })
}

describe('F131: a Service that asks for the address and port of the API server', () => {
  it.each<readonly [Mode, Where]>([
    ['nftables', 'local'],
    ['iptables', 'local'],
    ['userspace', 'apart'],
  ])(
    'F131: is refused in mode %s, the API server %s, and kprobe goes on following changes',
    async (mode, where) => {
      await open(where)
      const args = [`--proxy-mode=${mode}`, '--allowed-external-cidrs=0.0.0.0/0']
      const daemon = await cluster.running({ args })
      cluster.put(rig.thief())
      expect(await daemon.logged('refused')).toMatchObject([
        {
          object: 'Service ns/thief',
          field: 'spec.externalIPs',
          value: `${API_ADDRESS}:${cluster.server.port}/TCP`,
        },
      ])
      expect(await rig.isOpen()).toBe(true)
      // New connections, of this daemon and of the next one.
      const requests = cluster.server.log.length
      cluster.server.cut()
      cluster.put(serviceOf('next', '172.30.1.7', { externalIPs: ['198.51.100.77'], ports: PORTS }))
      await eventually(() => listRuleset().includes('198.51.100.77'))
      expect(cluster.server.log.length).toBeGreaterThan(requests)
      expect(await metric('kprobe_refusals')).toBe(1)
      await eventually(() => JSON.stringify(cluster.server.store.list('events')).includes(`${API_ADDRESS}:`))
      await daemon.stop()
      const second = await cluster.running({ args })
      await second.caughtUp()
      expect(second.said('bypass')).toEqual([])
      expect(await rig.isOpen()).toBe(true)
    },
  )

  it('F131: as load-balancer ingress is served only while it has a ready endpoint', async () => {
    await open('apart')
    const daemon = await cluster.running()
    const [spec, status] = balanced({ ports: PORTS }, API_ADDRESS)
    const port = cluster.server.port
    const ports = [{ name: 'http', port, protocol: 'TCP' }]
    cluster.put(serviceOf('vip', '172.30.9.9', { ...spec, ports }, status))
    await daemon.logged('refused')
    expect(await rig.isOpen()).toBe(true)
    cluster.put(sliceOf('vip', [API_ADDRESS], { ports: [{ name: 'http', port, protocol: 'TCP' }] }))
    await eventually(() => /frontends[^}]*198\.51\.100\.1 /s.test(listRuleset()))
    expect(await rig.isOpen()).toBe(true)
  })

  it('F131: at an endpoint of default/kubernetes is refused, whatever the kubeconfig says', async () => {
    await open('local')
    const daemon = await cluster.running()
    const slice = sliceOf('kubernetes', ['198.51.100.9'], {
      ports: [{ name: 'https', port: 6443, protocol: 'TCP' }],
    })
    const namespace = 'default'
    const labels = { 'kubernetes.io/service-name': 'kubernetes' }
    const ports = [{ name: 'http', port: 6443, protocol: 'TCP' }]
    cluster.put(serviceOf('thief', '172.30.9.9', { externalIPs: ['198.51.100.9'], ports }))
    await eventually(() => listRuleset().includes('198.51.100.9'))
    cluster.put({ ...slice, metadata: { namespace, name: 'kubernetes', labels } })
    await daemon.logged('refused')
    await eventually(() => !listRuleset().includes('198.51.100.9'))
  })
})

describe('F131: a node whose rules capture the API server already', () => {
  it.each<readonly [Mode, Where, 'without endpoints' | 'with an endpoint that refuses']>([
    ['nftables', 'local', 'without endpoints'],
    ['nftables', 'apart', 'with an endpoint that refuses'],
    ['iptables', 'apart', 'with an endpoint that refuses'],
    ['userspace', 'apart', 'without endpoints'],
  ])(
    'F131: frees itself at the start: mode %s, the API server %s, a Service %s',
    async (mode, where, how) => {
      await open(where)
      const ports = [{ name: 'http', port: 6443, protocol: 'TCP' }]
      ip([`addr add ${NOWHERE}/32 dev lo`])
      const slices = how === 'without endpoints' ? [] : [sliceOf('thief', [NOWHERE], { ports })]
      await rig.captured(mode, [rig.thief(), ...slices])
      cluster.put(rig.thief(), ...slices)
      const daemon = await cluster.running({ args: [`--proxy-mode=${mode}`] })
      await daemon.logged('reached the API server by bypassing')
      expect(await rig.isOpen()).toBe(true)
      await eventually(() => !listRuleset().includes('kprobe-api'))
      cluster.server.cut()
      cluster.put(serviceOf('next', '172.30.1.7', { externalIPs: ['198.51.100.77'], ports: PORTS }))
      await eventually(() => listRuleset().includes('198.51.100.77'))
    },
  )

  it.each<Where>(['apart', 'local'])(
    'F131: frees itself of rules of kube-proxy that reject new connections, the API server %s',
    async where => {
      await open(where)
      rejecting('kube-proxy')
      expect(await rig.isOpen()).toBe(false)
      const daemon = await cluster.running()
      await daemon.logged('reached the API server by bypassing')
      expect(await rig.isOpen()).toBe(true)
      await eventually(() => !listRuleset().includes('kprobe-api'))
    },
  )

  it('F131: follows changes past rules that another proxy keeps', async () => {
    await open('apart')
    rejecting('other-proxy')
    const daemon = await cluster.running()
    await daemon.logged('still capture it')
    const requests = cluster.server.log.length
    cluster.server.cut()
    cluster.put(serviceOf('next', '172.30.1.7', { externalIPs: ['198.51.100.77'], ports: PORTS }))
    await eventually(() => listRuleset().includes('198.51.100.77'))
    expect(cluster.server.log.length).toBeGreaterThan(requests)
    expect(await rig.isOpen()).toBe(false)
    await daemon.stop()
    expect(listRuleset()).not.toContain('kprobe-api')
  })

  it('F131: leaves the rules to other processes, which may need them for a ClusterIP', async () => {
    const clusterIp = '172.30.9.1'
    await open('apart')
    const name = { name: 'https', protocol: 'TCP' }
    await rig.programmed('nftables', [
      serviceOf('api', clusterIp, { ports: [{ ...name, port: 443 }] }),
      sliceOf('api', [API_ADDRESS], { ports: [{ ...name, port: cluster.server.port }] }),
    ])
    // Past the rules, nobody answers at the ClusterIP.
    ip([`route add ${clusterIp}/32 dev api0`])
    cluster.configure({ server: `https://${clusterIp}`, tlsServerName: 'not-its-name' })
    const daemon = cluster.daemon({ args: ['--v=2'] })
    await daemon.logged('bypasses the Service rules')
    const during = listRuleset()
    expect(await rig.isOpen(clusterIp, 443)).toBe(true)
    expect(during).toContain('kprobe-api')
  })
})
