import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { createServer } from 'node:net'
import { afterEach, expect, it } from 'vitest'
import { API_ADDRESS } from '../faults/api-apart.ts'
import { ApiCapture } from '../faults/api-capture.ts'
import { answers, Cluster, HEALTH_PORT, metric } from '../faults/cluster.ts'
import { crowd } from '../faults/crowd.ts'
import { wide } from '../faults/large-services.ts'
import { ip } from '../support/lab/topology.ts'
import { serviceOf, sliceOf } from '../support/objects.ts'
import { eventually } from '../support/patience.ts'

/* The attacks of docs/threat-model.md in IPVS mode: one of each kind. attack-ipvs-more.test.ts has the others. */

const IPVS = ['--proxy-mode=ipvs']
/** An address that an interface was configured with and the Node object does not list: a bridge's. */
const BRIDGE = '172.17.0.1'

const closing: (() => Promise<void>)[] = []
afterEach(async () => {
  for (const close of closing.splice(0)) await close()
})

async function openCluster(): Promise<Cluster> {
  const cluster = await Cluster.open()
  closing.push(() => cluster.close())
  return cluster
}

function virtualServers(): string {
  return execFileSync('ipvsadm', ['-Sn'], { encoding: 'utf8' })
}

it('F131: IPVS mode: a node whose API server a Service has captured frees itself at the start', async () => {
  const rig = await ApiCapture.open('apart')
  closing.push(() => rig.close())
  const { cluster } = rig
  await rig.captured('ipvs', [rig.thief()])
  expect(execFileSync('ip', ['addr', 'show', 'kube-ipvs0'], { encoding: 'utf8' })).toContain(API_ADDRESS)
  cluster.put(rig.thief())
  const daemon = await cluster.running({ args: IPVS })
  expect(await daemon.logged('removed the address from kube-ipvs0')).toMatchObject([
    { addresses: [API_ADDRESS] },
  ])
  await daemon.logged('refused')
  await eventually(() => rig.isOpen())
  cluster.server.cut()
  cluster.put(serviceOf('next', '172.30.1.7'), sliceOf('next', ['10.0.77.1']))
  await eventually(() => virtualServers().includes('172.30.1.7:80'))
})

it('F132: IPVS mode: 640 idle connections of a local process keep no probe from its answer', async () => {
  const cluster = await openCluster()
  await cluster.running({ args: IPVS })
  const sources = Array.from({ length: 8 }, (_, index) => `127.0.0.${index + 2}`)
  await crowd({ port: HEALTH_PORT, sources, count: 80, returns: 0 })
  for (let probe = 0; probe < 3; probe++)
    for (const path of ['/livez', '/healthz']) await eventually(() => answers(200, path))
  expect(await metric('kprobe_connections_over_share_total', 'server="healthz"')).toBeGreaterThan(0)
})

it('F133: IPVS mode: a Service of 5,000 ports with 1,000 endpoints each is refused, and others are served', async () => {
  const cluster = await openCluster()
  cluster.put(...wide('large', 5_000, 1_000), serviceOf('web', '172.30.1.7'), sliceOf('web', ['10.0.77.1']))
  const daemon = await cluster.running({ args: IPVS, nodeArgs: ['--max-old-space-size=256'] })
  const about = (await daemon.logged('refused')).map(({ object, reason }) => `${object}: ${reason}`)
  expect(about).toEqual([expect.stringMatching(/^Service ns\/large: needs about \d+ MiB/)])
  expect(virtualServers()).toContain('172.30.1.7:80')
  expect(virtualServers()).not.toContain('172.30.200.1:')
})

it('F134: IPVS mode: externalIPs where a process of the node listens are refused, and that process goes on', async () => {
  const cluster = await openCluster()
  ip(['link add docker0 type dummy', 'link set docker0 up', `addr add ${BRIDGE}/16 dev docker0`])
  const server = createServer(socket => socket.end()).listen(8443, BRIDGE)
  closing.push(async () => void server.close())
  await once(server, 'listening')
  const daemon = await cluster.running({ args: IPVS })
  const asking = (port: number) => ({
    externalIPs: [BRIDGE],
    ports: [{ name: 'http', port, protocol: 'TCP' }],
  })
  cluster.put(serviceOf('thief', '172.30.2.1', asking(8443)), serviceOf('fair', '172.30.2.2', asking(8444)))
  cluster.put(sliceOf('fair', ['10.0.77.1']), sliceOf('thief', ['10.0.77.1']))
  await eventually(() => virtualServers().includes(`${BRIDGE}:8444`))
  expect(await daemon.logged('refused')).toMatchObject([
    { object: 'Service ns/thief', value: `${BRIDGE}:8443/TCP`, reason: expect.stringContaining('listens') },
  ])
  expect(virtualServers()).not.toContain(`${BRIDGE}:8443`)
})
