import { execFile } from 'node:child_process'
import { createSocket, type Socket } from 'node:dgram'
import { once } from 'node:events'
import { connect, createServer, type Server } from 'node:net'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { COMMAND, type Daemon } from '../support/daemon.ts'
import { ip } from '../support/lab/topology.ts'
import { serviceOf, sliceOf } from '../support/objects.ts'
import { eventually, patientMs } from '../support/patience.ts'
import { CLUSTER_CIDR, NODE_NAME } from '../support/pipeline.ts'
import { Cluster, HEALTH_PORT } from './cluster.ts'
import { listRuleset } from './kernel.ts'

/** An address that an interface was configured with and the Node object does not list: a bridge's. */
const BRIDGE = '172.17.0.1'
/** An address as keepalived puts it onto an interface. */
const VIP = '192.168.0.50'
const ENDPOINT = '10.0.77.1'

const cluster = Cluster.ofEachTest()
let daemon: Daemon
const servers: (Server | Socket)[] = []

beforeEach(async () => {
  await cluster.open({ packets: true })
  ip([
    'link add docker0 type veth peer name container0',
    'link set docker0 up',
    `addr add ${BRIDGE}/16 dev docker0`,
  ])
  ip([`addr add ${VIP}/32 dev ext0`])
})

afterEach(async () => {
  for (const server of servers.splice(0)) server.close()
})

/** A process of the node listens there, and says hello. */
async function listen(host: string, port: number): Promise<Server> {
  const server = createServer(socket => socket.end('the node'))
  servers.push(server)
  server.listen(port, host)
  await once(server, 'listening')
  return server
}

/** What a process of the node hears at an address: the greeting, or the error. */
function heard(host: string, port: number): Promise<string> {
  return new Promise(resolve => {
    const socket = connect({ host, port, timeout: patientMs() })
    socket.once('timeout', () => socket.destroy(new Error('nothing was heard')))
    socket.once('data', data => {
      socket.destroy()
      resolve(String(data))
    })
    socket.once('error', error => resolve('code' in error ? String(error.code) : error.message))
  })
}

/** A Service with an external address, without endpoints unless told otherwise. */
function ask(name: string, address: string, port: number, protocol = 'TCP'): object {
  const number = Number(/\d+/.exec(name)?.[0])
  const ports = [{ name: 'http', port, protocol }]
  return serviceOf(name, `172.30.2.${number}`, { externalIPs: [address], ports })
}

async function refused(name: string, value: string, reason: string): Promise<void> {
  const facts = { object: `Service ns/${name}`, field: 'spec.externalIPs', value }
  await daemon.until(() => daemon.said('refused').some(({ object }) => object === facts.object))
  const records = daemon.said('refused').filter(({ object }) => object === facts.object)
  expect(records).toMatchObject([{ ...facts, reason: expect.stringContaining(reason) }])
}

describe('F134: externalIPs at an address of the node that the Node object does not list', () => {
  it('F134: are refused where a process of the node listens, at that address or at all of them', async () => {
    await listen(BRIDGE, 8443)
    await listen('0.0.0.0', 7000)
    await listen('::', 7002)
    const udp = createSocket('udp4')
    servers.push(udp)
    udp.bind(5353, BRIDGE)
    await once(udp, 'listening')
    daemon = await cluster.running()
    cluster.put(ask('s1', BRIDGE, 8443), ask('s2', BRIDGE, 7000), ask('s3', BRIDGE, 5353, 'UDP'))
    cluster.put(ask('s7', BRIDGE, 7002))
    await refused('s1', `${BRIDGE}:8443/TCP`, 'a process of this node listens there')
    await refused('s2', `${BRIDGE}:7000/TCP`, 'a process of this node listens there')
    await refused('s3', `${BRIDGE}:5353/UDP`, 'a process of this node listens there')
    await refused('s7', `${BRIDGE}:7002/TCP`, 'a process of this node listens there')
    expect(await heard(BRIDGE, 8443)).toBe('the node')
    expect(await heard(BRIDGE, 7000)).toBe('the node')
    await eventually(() => JSON.stringify(cluster.server.store.list('events')).includes(`${BRIDGE}:8443`))
    // The same ports of the other protocol, and other ports, are free; kprobe's own sockets refuse no Service.
    cluster.put(ask('s4', BRIDGE, 7001), ask('s5', BRIDGE, 5353), ask('s6', BRIDGE, HEALTH_PORT))
    await eventually(async () => (await heard(BRIDGE, 7001)) === 'ECONNREFUSED')
    for (const port of [7001, 5353, HEALTH_PORT])
      await eventually(() => new RegExp(`172\\.17\\.0\\.1 \\. tcp \\. ${port} `).test(listRuleset()))
    await daemon.caughtUp()
    expect(daemon.said('refused')).toHaveLength(4)
  })

  it('F134: are served at a VIP, though a process listens at all addresses, and refused where it listens at the VIP', async () => {
    await listen('0.0.0.0', 7000)
    await listen(VIP, 7001)
    daemon = await cluster.running()
    cluster.put(ask('s1', VIP, 7000), sliceOf('s1', [ENDPOINT]), ask('s2', VIP, 7001))
    await refused('s2', `${VIP}:7001/TCP`, 'a process of this node listens there')
    const flow = {
      from: 'outside',
      source: '203.0.113.5',
      protocol: 'TCP',
      destination: VIP,
      port: 7000,
    } as const
    await eventually(async () => (await cluster.lab.trace([flow]))[0]?.verdict === 'DNAT')
    expect(await heard(VIP, 7001)).toBe('the node')
    await daemon.caughtUp()
    expect(daemon.said('refused')).toHaveLength(1)
  })

  it('F134: stay with the Service that has them, and are served at the next full resync after a process has gone', async () => {
    const args = ['--sync-period=1s', '--min-sync-period=0s']
    const server = await listen(BRIDGE, 9001)
    daemon = await cluster.running({ args })
    cluster.put(ask('s1', BRIDGE, 9000), ask('s2', BRIDGE, 9001), ask('s3', VIP, 9002))
    await refused('s2', `${BRIDGE}:9001/TCP`, 'a process of this node listens there')
    const isServed = (address: string, port: number): boolean =>
      listRuleset().includes(`${address} . tcp . ${port} `)
    await eventually(() => isServed(BRIDGE, 9000) && isServed(VIP, 9002))
    await listen('0.0.0.0', 9000)
    await listen(VIP, 9002)
    server.close()
    // A full resync has looked.
    await eventually(() => isServed(BRIDGE, 9001))
    await daemon.caughtUp()
    expect(daemon.said('refused')).toHaveLength(1)
    expect([isServed(BRIDGE, 9000), isServed(VIP, 9002)]).toEqual([true, true])
    expect(await heard(BRIDGE, 9000)).toBe('ECONNREFUSED')
  })

  it('F134: are the same for commands, which leave the sockets of the daemon out as well', async () => {
    await listen(BRIDGE, 8443)
    daemon = await cluster.running()
    cluster.put(ask('s1', BRIDGE, HEALTH_PORT), ask('s2', BRIDGE, 8443))
    await refused('s2', `${BRIDGE}:8443/TCP`, 'a process of this node listens there')
    await eventually(() => listRuleset().includes(`${BRIDGE} . tcp . ${HEALTH_PORT} `))
    const flags = [`--kubeconfig=${cluster.kubeconfig}`, `--hostname-override=${NODE_NAME}`]
    const args = [COMMAND, 'verify', '--source=kube', ...flags, `--cluster-cidr=${CLUSTER_CIDR}`]
    const output = await new Promise<string>(resolve => {
      execFile(process.execPath, args, (_, out, err) => resolve(out + err))
    })
    expect(output).toContain('agree;')
  })
})
