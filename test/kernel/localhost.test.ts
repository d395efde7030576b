import { createSocket, type Socket as UdpSocket } from 'node:dgram'
import { once } from 'node:events'
import { renameSync, writeFileSync } from 'node:fs'
import { connect, createServer, type Server, type Socket } from 'node:net'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest'
import { type Ended, runInProcess, tool } from '../support/command.ts'
import { type Daemon, Daemons } from '../support/daemon.ts'
import { outcomesOf } from '../support/draws.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { eventually } from '../support/patience.ts'
import { CLUSTER_CIDR, NODE_NAME } from '../support/pipeline.ts'

/* KEP-6032: node ports at localhost in nftables mode, with a daemon, and clients and endpoints in one network namespace. */

const NODE_IPS = ['192.168.0.2', '2001:db8::2']
/** The endpoints of each family: the first one is on this node. */
const PODS = { IPv4: ['10.180.0.1', '10.180.1.1'], IPv6: ['fd00:10::1', 'fd00:10::1:1'] } as const
const LOCALHOST = { IPv4: '127.0.0.1', IPv6: '::1' } as const
type Family = keyof typeof PODS

const daemons = new Daemons()
const servers: { close(): unknown }[] = []
const sockets = new Set<Socket>()
const kprobe = (...args: readonly string[]): Promise<Ended> => runInProcess(args)

beforeAll(async () => {
  freshNetns()
  tool('ip', 'link', 'set', 'lo', 'up')
  for (const ip of [...NODE_IPS, ...PODS.IPv4, ...PODS.IPv6])
    tool('ip', 'addr', 'add', ip, 'dev', 'lo', ...(ip.includes(':') ? ['nodad'] : []))
  for (const pod of [...PODS.IPv4, ...PODS.IPv6]) {
    servers.push(await tcpServer(pod, 8080), await udpServer(pod, 8080))
  }
})

afterEach(async () => {
  for (const socket of sockets) socket.destroy()
  await daemons.end()
  tool('nft', 'flush', 'ruleset')
})

afterAll(() => {
  for (const server of servers) server.close()
})

/** Says its name to each client, and then each line again. */
async function tcpServer(host: string, port: number): Promise<Server> {
  const server = createServer(socket => {
    socket.on('error', () => undefined)
    socket.write(host)
    socket.on('data', data => socket.write(data))
    socket.on('end', () => socket.end())
  })
  server.listen({ host, port, ipv6Only: true })
  await once(server, 'listening')
  return server
}

async function udpServer(address: string, port: number): Promise<UdpSocket> {
  const socket = createSocket(address.includes(':') ? { type: 'udp6', ipv6Only: true } : { type: 'udp4' })
  socket.on('message', (_, from) => socket.send(address, from.port, from.address))
  socket.bind({ address, port })
  await once(socket, 'listening')
  return socket
}

function client(host: string, port: number): Socket {
  const socket = connect({ host, port })
  sockets.add(socket.on('error', () => undefined).once('close', () => sockets.delete(socket)))
  return socket
}

/** The name of the endpoint, or the error. */
async function askTcp(host: string, port: number): Promise<string> {
  const socket = client(host, port)
  const error = once(socket, 'close').then(() => 'closed')
  try {
    return String(await Promise.race([once(socket, 'data').then(([data]) => String(data)), error]))
  } catch (thrown) {
    return codeOf(thrown)
  } finally {
    socket.destroy()
  }
}

async function askUdp(host: string, port: number): Promise<string> {
  const socket = createSocket(host.includes(':') ? 'udp6' : 'udp4')
  try {
    socket.connect(port, host)
    await once(socket, 'connect')
    socket.send('name')
    return String((await once(socket, 'message'))[0])
  } catch (thrown) {
    return codeOf(thrown)
  } finally {
    socket.close()
  }
}

function codeOf(thrown: unknown): string {
  return thrown instanceof Error && 'code' in thrown ? String(thrown.code) : String(thrown)
}

const ASK = { TCP: askTcp, UDP: askUdp } as const
type Protocol = keyof typeof ASK

/** All endpoints that clients reach, sorted: as many as there may be, and any other. */
function reached(protocol: Protocol, host: string, port: number): Promise<readonly string[]> {
  return outcomesOf(() => ASK[protocol](host, port), PODS.IPv4.length)
}

interface Web {
  readonly nodePort: number
  readonly policy?: 'Cluster' | 'Local'
  /** Endpoints of PODS, by their place. */
  readonly pods?: readonly number[]
  readonly affinity?: boolean
}

let serial = 0

function objects(
  name: string,
  { nodePort, policy = 'Cluster', pods = [0, 1], affinity }: Web,
): readonly object[] {
  const at = ++serial
  const clusterIPs = [`172.30.0.${at}`, `fd00:172:30::${at}`]
  const ports = [
    { name: 'tcp', port: 80, protocol: 'TCP', nodePort },
    { name: 'udp', port: 80, protocol: 'UDP', nodePort },
  ]
  const slices = (['IPv4', 'IPv6'] as const).map(addressType => ({
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      namespace: 'ns',
      name: `${name}-${addressType.toLowerCase()}`,
      labels: { 'kubernetes.io/service-name': name },
    },
    addressType,
    endpoints: pods.map(pod => ({
      addresses: [PODS[addressType][pod]],
      nodeName: pod === 0 ? NODE_NAME : 'other-node',
      conditions: { ready: true },
    })),
    ports: ports.map(({ name: portName, protocol }) => ({ name: portName, protocol, port: 8080 })),
  }))
  return [
    {
      apiVersion: 'v1',
      kind: 'Service',
      metadata: { namespace: 'ns', name },
      spec: {
        type: 'NodePort',
        externalTrafficPolicy: policy,
        ...(affinity === true ? { sessionAffinity: 'ClientIP' } : {}),
        clusterIP: clusterIPs[0],
        clusterIPs,
        ipFamilies: ['IPv4', 'IPv6'],
        ports,
      },
    },
    ...slices,
  ]
}

const NODE = {
  apiVersion: 'v1',
  kind: 'Node',
  metadata: { name: NODE_NAME },
  status: { addresses: NODE_IPS.map(address => ({ type: 'InternalIP', address })) },
}

function write(file: string, value: unknown): void {
  writeFileSync(`${file}.new`, JSON.stringify(value))
  renameSync(`${file}.new`, file)
}

class Site {
  readonly objects: string
  readonly config: string

  constructor() {
    const folder = daemons.folder()
    this.objects = join(folder, 'objects.json')
    this.config = join(folder, 'config.yaml')
    this.configure(['primary', 'localhost'])
  }

  put(...items: readonly object[]): void {
    write(this.objects, { apiVersion: 'v1', kind: 'List', items: [NODE, ...items] })
  }

  configure(nodePortAddresses: readonly string[], mode = 'nftables'): void {
    write(this.config, {
      apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
      kind: 'KubeProxyConfiguration',
      mode,
      clusterCIDR: CLUSTER_CIDR,
      hostnameOverride: NODE_NAME,
      nodePortAddresses,
    })
  }

  run(): Promise<Daemon> {
    return daemons.running({ source: this.objects, args: [`--config=${this.config}`] })
  }

  get flags(): readonly string[] {
    return [`--source=file:${this.objects}`, `--config=${this.config}`]
  }
}

async function metric(name: string): Promise<readonly string[]> {
  const text = await (await fetch('http://127.0.0.1:10249/metrics')).text()
  return text.split('\n').filter(line => line.startsWith(name))
}

const LISTENERS = 'kubeproxy_nftables_localhost_nodeport_listeners'

it.each<[Family, Protocol]>([
  ['IPv4', 'TCP'],
  ['IPv4', 'UDP'],
  ['IPv6', 'TCP'],
  ['IPv6', 'UDP'],
])(
  'reaches every endpoint, and those of this node alone with policy Local: %s, %s',
  async (family, protocol) => {
    const site = new Site()
    site.put(
      ...objects('web', { nodePort: 30_080 }),
      ...objects('local', { nodePort: 30_081, policy: 'Local' }),
      ...objects('elsewhere', { nodePort: 30_082, policy: 'Local', pods: [1] }),
      ...objects('nobody', { nodePort: 30_083, pods: [] }),
      ...objects('sticky', { nodePort: 30_084, affinity: true }),
    )
    await site.run()
    const host = LOCALHOST[family]
    const [here, there] = PODS[family]
    expect(await reached(protocol, host, 30_080)).toEqual([here, there].toSorted())
    expect(await reached(protocol, host, 30_081)).toEqual([here])
    expect(await reached(protocol, host, 30_082)).toEqual(['ECONNREFUSED'])
    expect(await reached(protocol, host, 30_083)).toEqual(['ECONNREFUSED'])
    expect(await reached(protocol, host, 30_084)).toHaveLength(1)
    // The Node's own address takes the way through the kernel, as before.
    const nodeIp = NODE_IPS[family === 'IPv4' ? 0 : 1] ?? ''
    expect(await reached(protocol, nodeIp, 30_081)).toEqual([here, there].toSorted())
    expect(await metric(LISTENERS)).toEqual([
      `${LISTENERS}{ip_family="IPv4"} 6`,
      `${LISTENERS}{ip_family="IPv6"} 6`,
    ])
  },
)

it('F44: follows nodePortAddresses of the watched file, and leaves open connections alone', async () => {
  const site = new Site()
  site.configure(['primary'])
  site.put(...objects('web', { nodePort: 30_080, pods: [0] }))
  await site.run()
  expect(await askTcp('127.0.0.1', 30_080)).toBe('ECONNREFUSED')
  expect(await metric('kubeproxy_nftables_localhost')).toEqual([])
  site.configure(['primary', '127.0.0.0/8'])
  await eventually(async () => (await askTcp('127.0.0.1', 30_080)) === '10.180.0.1', {})
  expect(await askTcp('::1', 30_080)).toBe('ECONNREFUSED')
  const lasting = client('127.0.0.1', 30_080)
  expect(String((await once(lasting, 'data'))[0])).toBe('10.180.0.1')
  site.configure(['all'])
  await eventually(async () => (await askTcp('127.0.0.1', 30_080)) === 'ECONNREFUSED', {})
  lasting.write('still here')
  expect(String((await once(lasting, 'data'))[0])).toBe('still here')
})

it('closes its ports for another mode, and opens them when it comes back', async () => {
  const site = new Site()
  site.put(...objects('web', { nodePort: 30_080, pods: [0] }))
  const daemon = await site.run()
  const lasting = client('127.0.0.1', 30_080)
  expect(String((await once(lasting, 'data'))[0])).toBe('10.180.0.1')
  site.configure(['primary', 'localhost'], 'userspace')
  await daemon.logged('switched from nftables to userspace')
  await eventually(async () => (await askTcp('127.0.0.1', 30_080)) === 'ECONNREFUSED', {})
  expect(await askTcp('192.168.0.2', 30_080)).toBe('10.180.0.1')
  lasting.write('still here')
  expect(String((await once(lasting, 'data'))[0])).toBe('still here')
  site.configure(['primary', 'localhost'])
  await eventually(async () => (await askTcp('127.0.0.1', 30_080)) === '10.180.0.1', {})
})

it('F165: shows who relays to whom, and that nobody does once the daemon has gone', async () => {
  const site = new Site()
  site.put(...objects('web', { nodePort: 30_080, pods: [0] }))
  const daemon = await site.run()
  const row = String.raw`ns/web:tcp +NodePort +127\.0\.0\.1:30080/TCP +relayed at 127\.0\.0\.1:30080 to 10\.180\.0\.1:8080`
  expect((await kprobe('dump')).out).toMatch(new RegExp(`^${row}$`, 'm'))
  const explain = ['explain', ...site.flags, '--from=127.0.0.1', '--to=127.0.0.1:30080']
  const explained = await kprobe(...explain)
  expect(explained).toMatchObject({ code: 0 })
  expect(explained.out).toMatch(/^served: always 10\.180\.0\.1:8080/)
  expect(explained.out).toMatch(/^Source address: one of the node$/m)
  expect(explained.out).toContain('Carried by the daemon, which listens at 127.0.0.1:30080\n')
  for (const command of ['plan', 'verify'])
    expect((await kprobe(command, ...site.flags)).code, command).toBe(0)
  const doctor = async () => (await kprobe('doctor', ...site.flags)).out
  expect(await doctor()).toMatch(/packets reach all \d+ frontends/)
  const generation = tool('nft', '-a', 'list', 'table', 'ip', 'kube-proxy')
  await daemon.stop('SIGTERM')
  expect(await askTcp('127.0.0.1', 30_080)).toBe('ECONNREFUSED')
  const gone = 'NOT RELAYED: no process listens at 127.0.0.1:30080'
  expect((await kprobe('dump')).out).toContain(gone)
  expect(await doctor()).toContain(gone)
  const after = await kprobe(...explain)
  expect(after.out).toContain('no process listens at 127.0.0.1:30080')
  expect(after.code).toBe(3)
  // The next daemon finds its rules, changes nothing of them, and opens the listeners.
  const next = await site.run()
  expect(await askTcp('127.0.0.1', 30_080)).toBe('10.180.0.1')
  expect(tool('nft', '-a', 'list', 'table', 'ip', 'kube-proxy')).toBe(generation)
  await next.stop('SIGTERM')
})
