import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { connect, createServer, type Socket } from 'node:net'
import { performance } from 'node:perf_hooks'
import { systemClock } from '../../src/base/clock.ts'
import { createNftClient } from '../../src/kernel/nft/client.ts'
import { UserspacePlane } from '../../src/modes/userspace/plane.ts'
import { DEFAULT_USERSPACE_OPTIONS } from '../../src/modes/userspace/settings.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { createPipeline, type Pipeline, pipelineOf } from './pipeline.ts'
import { median, print } from './report.ts'

const NODE_IP = '192.168.0.2'
const CLUSTER_IP = '10.96.0.1'
const PORT = 8_080
const RUNS = 3
const BYTES = 256 << 20
const CONNECTIONS = 2_000
const AT_ONCE = 32
const CHUNK = Buffer.alloc(256 * 1024)

type Mode = 'nothing' | 'nftables' | 'userspace'

interface Figures {
  readonly bytesPerS: number
  readonly connectionsPerS: number
}

const [role, mode] = process.argv.slice(2)
if (role === 'serve') serve()
else if (role === 'relay') await relay(mode === 'userspace' ? 'userspace' : 'nftables')
else if (role === 'client') await measure(mode ?? '')
else await compare()

/** The endpoint: sends as fast as it may to who asks for bytes, and closes on everyone else. */
function serve(): void {
  const server = createServer(socket => {
    socket.on('error', () => undefined)
    socket.once('data', first => {
      if (String(first) === 'bytes') pour(socket, BYTES)
      else socket.end('x')
    })
  })
  server.listen({ port: PORT, host: NODE_IP, backlog: 4_096 }, () => console.log('ready'))
}

function pour(socket: Socket, left: number): void {
  let rest = left
  const more = (): void => {
    while (rest > 0) {
      rest -= CHUNK.length
      if (rest <= 0) socket.end(CHUNK)
      else if (!socket.write(CHUNK)) return
    }
  }
  socket.on('drain', more)
  more()
}

/** A process that programs the mode and stays: the relay is in it. */
async function relay(which: 'nftables' | 'userspace'): Promise<void> {
  const pipeline = which === 'nftables' ? createPipeline() : createUserspacePipeline()
  await pipeline.load(objects())
  console.log('ready')
  process.stdin.resume()
  await once(process.stdin, 'end')
  await pipeline.cleanup()
  await pipeline.stop()
  process.exit(0)
}

function createUserspacePipeline(): Pipeline {
  const client = createNftClient({
    transport: openNetlink({ protocol: NETLINK_NETFILTER }),
    clock: systemClock,
  })
  const plane = new UserspacePlane({ client, clock: systemClock, options: DEFAULT_USERSPACE_OPTIONS })
  plane.startRelaying()
  return pipelineOf(plane, () => client.close())
}

function objects(): readonly object[] {
  const metadata = { namespace: 'ns', name: 'web' }
  return [
    {
      apiVersion: 'v1',
      kind: 'Node',
      metadata: { name: 'node-0' },
      status: { addresses: [{ type: 'InternalIP', address: NODE_IP }] },
    },
    {
      apiVersion: 'v1',
      kind: 'Service',
      metadata,
      spec: { clusterIP: CLUSTER_IP, ports: [{ port: 80, protocol: 'TCP' }] },
    },
    {
      apiVersion: 'discovery.k8s.io/v1',
      kind: 'EndpointSlice',
      metadata: { namespace: 'ns', name: 'web-a', labels: { 'kubernetes.io/service-name': 'web' } },
      addressType: 'IPv4',
      endpoints: [{ addresses: [NODE_IP], conditions: { ready: true } }],
      ports: [{ name: '', port: PORT, protocol: 'TCP' }],
    },
  ]
}

/** One flow, then many connections of one byte each. */
async function measure(host: string): Promise<void> {
  const port = host === NODE_IP ? PORT : 80
  const bytesPerS = await throughput(host, port)
  const start = performance.now()
  let left = CONNECTIONS
  const worker = async (): Promise<void> => {
    while (left-- > 0) await exchange(host, port)
  }
  await Promise.all(Array.from({ length: AT_ONCE }, worker))
  const connectionsPerS = (CONNECTIONS / (performance.now() - start)) * 1000
  const figures: Figures = { bytesPerS, connectionsPerS }
  console.log(JSON.stringify(figures))
}

async function throughput(host: string, port: number): Promise<number> {
  const socket = connect({ host, port })
  socket.write('bytes')
  const start = performance.now()
  let bytes = 0
  socket.on('data', data => {
    bytes += data.length
  })
  await once(socket, 'end')
  if (bytes !== BYTES) throw new Error(`${bytes} bytes arrived of ${BYTES}`)
  socket.end()
  return (bytes / (performance.now() - start)) * 1000
}

async function exchange(host: string, port: number): Promise<void> {
  const socket = connect({ host, port })
  socket.end('one')
  socket.resume()
  await once(socket, 'close')
  if (socket.bytesRead !== 1) throw new Error(`${socket.bytesRead} bytes of an answer of one`)
}

async function compare(): Promise<void> {
  for (const line of [
    'link set lo up',
    'link add ext0 type veth peer name ext1',
    'link set ext0 up',
    'link set ext1 up',
    `addr add ${NODE_IP}/24 dev ext0`,
    'route add default via 192.168.0.1 dev ext0',
  ])
    execFileSync('ip', line.split(' '))
  const server = await start(['serve'])
  const results = new Map<Mode, Figures[]>()
  // In turns, so that whatever else the machine does meets all of them.
  for (let run = 0; run < RUNS; run++)
    for (const which of ['nothing', 'nftables', 'userspace'] as const)
      results.set(which, [...(results.get(which) ?? []), await measured(which)])
  server.kill()
  await once(server, 'exit')
  const figures = (which: Mode): Figures => {
    const runs = results.get(which) ?? []
    return {
      bytesPerS: median(runs.map(({ bytesPerS }) => bytesPerS)),
      connectionsPerS: median(runs.map(({ connectionsPerS }) => connectionsPerS)),
    }
  }
  const kernel = figures('nftables')
  const rows = (['nothing', 'nftables', 'userspace'] as const).map(which => {
    const { bytesPerS, connectionsPerS } = figures(which)
    return {
      between: which,
      'MiB/s of one flow': (bytesPerS / 2 ** 20).toFixed(0),
      'of nftables': (bytesPerS / kernel.bytesPerS).toFixed(2),
      'connections/s': connectionsPerS.toFixed(0),
      'of nftables ': (connectionsPerS / kernel.connectionsPerS).toFixed(2),
    }
  })
  print(
    `one flow of ${BYTES / 2 ** 20} MiB, and ${CONNECTIONS} connections, ${AT_ONCE} at once: medians of ${RUNS}`,
    rows,
  )
}

async function measured(which: Mode): Promise<Figures> {
  if (which === 'nothing') return await clientOf(NODE_IP)
  const proxy = await start(['relay', which])
  const figures = await clientOf(CLUSTER_IP)
  proxy.stdin.end()
  await once(proxy, 'exit')
  return figures
}

async function clientOf(host: string): Promise<Figures> {
  const child = spawn(process.execPath, [bundle(), 'client', host], { stdio: ['ignore', 'pipe', 'inherit'] })
  let text = ''
  child.stdout.on('data', data => {
    text += String(data)
  })
  const [code] = await once(child, 'close')
  if (code !== 0) throw new Error(`the client of ${host} failed`)
  return JSON.parse(text)
}

/** Once it says that it is ready. */
async function start(args: readonly string[]) {
  const child = spawn(process.execPath, [bundle(), ...args], { stdio: ['pipe', 'pipe', 'inherit'] })
  await once(child.stdout, 'data')
  return child
}

function bundle(): string {
  const file = process.env.KPROBE_BENCH_BUNDLE
  if (file === undefined) throw new Error('start benchmarks with: npm run bench')
  return file
}
