import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { createServer } from 'node:net'
import { afterEach, expect, it } from 'vitest'
import { API_ADDRESS } from '../faults/api-apart.ts'
import { ApiCapture, NOWHERE, type Where } from '../faults/api-capture.ts'
import { Cluster } from '../faults/cluster.ts'
import { ip } from '../support/lab/topology.ts'
import { serviceOf, sliceOf } from '../support/objects.ts'
import { eventually } from '../support/patience.ts'

/* The attacks of docs/threat-model.md that end otherwise in IPVS mode: on an address that kube-ipvs0 has. */

const IPVS = ['--proxy-mode=ipvs']
const CHAINS = '--ipvs-rules=iptables'
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

it.each<readonly [Where, readonly string[], readonly string[]]>([
  ['local', [CHAINS], [...IPVS, CHAINS]],
  ['apart', [], ['--proxy-mode=nftables']],
])(
  'F131: IPVS mode captured the API server, %s, a Service with an endpoint that refuses %j: a daemon with %j frees the node',
  async (where, before, args) => {
    const rig = await ApiCapture.open(where)
    closing.push(() => rig.close())
    const { cluster } = rig
    ip([`addr add ${NOWHERE}/32 dev lo`])
    const ports = [{ name: 'http', port: 6443, protocol: 'TCP' }]
    const thief = [rig.thief(), sliceOf('thief', [NOWHERE], { ports })]
    await rig.captured('ipvs', thief, before)
    cluster.put(...thief)
    const daemon = await cluster.running({ args })
    await daemon.logged('refused')
    await eventually(() => rig.isOpen())
    await daemon.caughtUp()
    const bound = daemon.said('removed the address').flatMap(({ addresses }) => addresses)
    // An address that another device has is never bound.
    expect(bound).toEqual(where === 'apart' ? [API_ADDRESS] : [])
  },
)

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
