import { fork } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { connect, createServer, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { performance } from 'node:perf_hooks'
import { type ApiServer, startApiServer } from '../../src/api/grpc/server.ts'
import { Transfer } from '../../src/api/grpc/transfers.ts'
import { ApiFeed, type ApiState } from '../../src/api/state.ts'
import { systemClock } from '../../src/base/clock.ts'
import { DATA, frame, GREETING_BYTES, GrpcPeer, REQUEST_BYTES } from '../support/api/grpc-peer.ts'
import { endpointObject, largeState, nextState } from '../support/api/states.ts'
import { stateOf } from '../unit/api/views.ts'
import { clusterObjects } from './cluster.ts'
import { goal, median, print } from './report.ts'

const SERVICES = 10_000
const ENDPOINTS_EACH = 10
const CLIENTS = 1_000
const RUNS = 9
const CHANGES = 50
/** Before those that count: a server that runs for days has compiled what it runs. */
const CHANGES_BEFORE = 10
/** Looking is at the server's cost. */
const POLL_MS = 20
const TIMES_A_WRITE = 1.5
const CPU_US = 20
const IDLE_BYTES = 64 * 1024
/** Of `OpItem{Sync: {}}` behind its prefix. */
const SYNC_BYTES = 7

/** What the reader is told to do, and what it says when that is done. */
interface Task {
  readonly kind: 'raw' | 'whole' | 'idle' | 'ask' | 'end'
  readonly path: string
  readonly bytes: number
}

if (process.argv[2] === 'reader') read()
else await measure()

/** A process of its own: its time is not the server's. It counts bytes, and decodes nothing. */
function read(): void {
  const peers: GrpcPeer[] = []
  const buffer = Buffer.alloc(256 * 1024)
  const done = (): void => void process.send?.('done')
  process.on('message', (task: Task) => {
    if (task.kind === 'raw') readRaw(task, buffer, done)
    else if (task.kind === 'whole') readWhole(task, buffer, done)
    else if (task.kind === 'idle') void openAll(task, buffer, peers).then(done)
    else if (task.kind === 'ask') void Promise.all(peers.map(peer => peer.ask(task.bytes))).then(done)
    else process.exit(0)
  })
  process.send?.('ready')
}

function readRaw({ path, bytes }: Task, buffer: Buffer<ArrayBuffer>, done: () => void): void {
  let left = bytes
  const socket: Socket = connect({
    path,
    onread: {
      buffer,
      callback: count => {
        left -= count
        if (left <= 0) {
          done()
          socket.destroy()
        }
        return true
      },
    },
  })
  socket.write('x')
}

function readWhole({ path, bytes }: Task, buffer: Buffer<ArrayBuffer>, done: () => void): void {
  const peer = new GrpcPeer(path, buffer)
  void peer.ask(bytes).then(() => {
    done()
    peer.destroy()
  })
}

async function openAll({ path, bytes }: Task, buffer: Buffer<ArrayBuffer>, peers: GrpcPeer[]): Promise<void> {
  for (const peer of peers.splice(0)) peer.destroy()
  for (let index = 0; index < CLIENTS; index++) {
    const peer = new GrpcPeer(path, buffer)
    peers.push(peer)
    await peer.ask(bytes)
  }
}

async function measure(): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'kprobe-api-bench-'))
  const reader = fork(process.argv[1] ?? '', ['reader'])
  await once(reader, 'message')
  const told = async (kind: Task['kind'], path: string, bytes: number): Promise<void> => {
    const answered = once(reader, 'message')
    reader.send({ kind, path, bytes })
    await answered
  }
  try {
    // First: memory that others gave back would hide what an idle client takes.
    await manyClients(folder, told)
    await wholeState(`${folder}/raw.sock`, `${folder}/api.sock`, told)
  } finally {
    reader.kill()
    rmSync(folder, { recursive: true, force: true })
  }
}

type Told = (kind: Task['kind'], path: string, bytes: number) => Promise<void>

async function wholeState(rawPath: string, path: string, told: Told): Promise<void> {
  const state = stateOf([...clusterObjects({ services: SERVICES, endpoints: ENDPOINTS_EACH })])
  const blocks = blocksOf(state)
  const bytes = bytesAnew(state)
  const raw = createServer(socket =>
    socket.on('error', () => undefined).once('data', () => pour(socket, blocks)),
  )
  raw.listen({ path: rawPath })
  await once(raw, 'listening')
  const written = await times(() => told('raw', rawPath, bytes - SYNC_BYTES))
  const waiting = await firstClients(path, state, () => told('whole', path, bytes))
  const first: number[] = []
  for (let run = 0; run < RUNS; run++) {
    const server = await serve(newFeed(), path, state)
    await pause()
    first.push(...(await times(() => told('whole', path, bytes), 1)))
    await server.close()
  }
  const server = await serve(newFeed(), path, state)
  const next = await times(() => told('whole', path, bytes))
  await server.close()
  const changed = await afterChanges(path, state, told)
  raw.close()
  const row = (what: string, its: readonly number[]): Readonly<Record<string, string>> => ({
    what,
    'median ms': median(its).toFixed(1),
    'best ms': Math.min(...its).toFixed(1),
    'x a write': (median(its) / median(written)).toFixed(2),
  })
  print(`${SERVICES} Services x ${ENDPOINTS_EACH}, ${bytes} bytes of messages, to a new client`, [
    row('the bytes in blocks of 64 KiB to a unix socket', written),
    row('one that waits when the first state comes', waiting),
    row('the first client of a server', first),
    row('the next one', next),
    row('the first one after a change', changed),
  ])
  console.log(`waiting for the first state ${goal(median(waiting) / median(written), TIMES_A_WRITE)}`)
  console.log(`first client of a server ${goal(median(first) / median(written), TIMES_A_WRITE)}`)
  console.log(`first client after a change ${goal(median(changed) / median(written), TIMES_A_WRITE)}`)
  console.log(`next client ${goal(median(next) / median(written), TIMES_A_WRITE)}`)
}

/** Each run: a client asks a server that has no state yet; milliseconds from the state on. */
async function firstClients(
  path: string,
  state: ApiState,
  ask: () => Promise<void>,
): Promise<readonly number[]> {
  const all: number[] = []
  for (let run = 0; run < RUNS; run++) {
    const feed = newFeed()
    const server = await serve(feed, path)
    const told = ask()
    while (server.counts().waiting < 1) await new Promise(resolve => setTimeout(resolve, 5))
    const startMs = performance.now()
    feed.offer(state)
    await told
    all.push(performance.now() - startMs)
    await server.close()
  }
  return all
}

/** Each run: one endpoint changes, and then a client comes that has nothing. */
async function afterChanges(path: string, start: ApiState, told: Told): Promise<readonly number[]> {
  const feed = newFeed()
  const server = await serve(feed, path, start)
  const [key = ''] = start.endpoints.keys()
  let state = start
  const anew = bytesAnew(start)
  await told('whole', path, anew)
  const all: number[] = []
  for (let run = 0; run < RUNS; run++) {
    state = nextState(state, { endpoints: [[key, endpointObject(key, 1_000 + run)]] })
    feed.offer(state)
    // What is behind the earlier state is one message.
    const more = Transfer.between(start, state).bytes - SYNC_BYTES
    all.push(...(await times(() => told('whole', path, anew + more), 1)))
  }
  await server.close()
  return all
}

function bytesAnew(state: ApiState): number {
  return blocksOf(state).reduce((sum, block) => sum + block.length, SYNC_BYTES)
}

async function serve(feed: ApiFeed, path: string, state?: ApiState): Promise<ApiServer> {
  if (state !== undefined) feed.offer(state)
  return startApiServer({
    feed,
    address: `unix://${path}`,
    nodeName: 'node',
    clock: systemClock,
    failed: error => console.error(error),
  })
}

function blocksOf(state: ApiState): readonly Buffer[] {
  const transfer = Transfer.whole(state)
  const blocks: Buffer[] = []
  for (let block = transfer.block(0); block !== undefined; block = transfer.block(blocks.length))
    blocks.push(block.frames)
  return blocks
}

function pour(socket: Socket, blocks: readonly Buffer[]): void {
  let index = 0
  const more = (): void => {
    for (let block = blocks[index]; block !== undefined; block = blocks[index]) {
      index++
      if (!socket.write(block)) return
    }
  }
  socket.on('drain', more)
  more()
}

async function times(run: () => Promise<void>, runs = RUNS): Promise<readonly number[]> {
  const all: number[] = []
  for (let index = 0; index < runs; index++) {
    const startMs = performance.now()
    await run()
    all.push(performance.now() - startMs)
    await pause()
  }
  return all
}

function pause(): Promise<void> {
  return new Promise(resolve => setTimeout(resolve, 50))
}

function newFeed(): ApiFeed {
  return new ApiFeed({ clock: systemClock, source: () => undefined })
}

async function manyClients(folder: string, told: Told): Promise<void> {
  const feed = newFeed()
  let state = largeState(100, ENDPOINTS_EACH)
  const path = `${folder}/many.sock`
  const server = await serve(feed, path, state)
  const whole = bytesAnew(state)
  const before = settled()
  await told('idle', path, whole)
  const idle = (settled() - before) / CLIENTS
  const [key = ''] = state.endpoints.keys()
  let number = 1_000
  let bytes = 0
  const ours = await cpuOfChanges(path, told, {
    waiting: () => server.counts().waiting,
    change() {
      const next = nextState(state, { endpoints: [[key, endpointObject(key, number++)]] })
      bytes = Transfer.between(state, next).bytes
      state = next
      return { bytes, tell: () => feed.offer(next) }
    },
  })
  await server.close()
  const plain = await plainServer(`${folder}/plain.sock`, bytes, told)
  const row = (what: string, { answers, each }: Cpu): Readonly<Record<string, string>> => ({
    what,
    'CPU µs per client, answers, median': median(answers).toFixed(1),
    best: Math.min(...answers).toFixed(1),
    'with the requests': each.toFixed(1),
    'x plain': (each / plain.each).toFixed(2),
  })
  print(`one endpoint changed, ${CLIENTS} clients, each with a connection of its own`, [
    row('the same bytes from a plain server, which reads and writes', plain),
    row('the API', ours),
  ])
  console.log(`CPU ${goal(ours.each, CPU_US)}`)
  console.log(`${idle.toFixed(0)} bytes per idle client ${goal(idle, IDLE_BYTES)}`)
}

/** Microseconds of this process per client and change: from the change on, and with the next requests. */
interface Cpu {
  readonly answers: readonly number[]
  readonly each: number
}

interface Changing {
  /** Clients that have asked for the next change. */
  waiting(): number
  /** What each of them will be told, in bytes of messages, and how. */
  change(): { readonly bytes: number; readonly tell: () => void }
}

async function cpuOfChanges(path: string, told: Told, its: Changing): Promise<Cpu> {
  const cpuUs = (since: NodeJS.CpuUsage): number => {
    const { user, system } = process.cpuUsage(since)
    return (user + system) / CLIENTS
  }
  const answers: number[] = []
  let each = 0
  for (let round = 0; round < CHANGES_BEFORE + CHANGES; round++) {
    const { bytes, tell } = its.change()
    const cycle = process.cpuUsage()
    const asked = told('ask', path, bytes)
    // Every request is there, and waits.
    while (its.waiting() < CLIENTS) await new Promise(resolve => setTimeout(resolve, POLL_MS))
    const start = process.cpuUsage()
    tell()
    await asked
    if (round < CHANGES_BEFORE) continue
    answers.push(cpuUs(start))
    each += cpuUs(cycle) / CHANGES
  }
  return { answers, each }
}

/** The floor of Node.js: reads of the same size, one write of the same size for each, and nothing is made of either. */
async function plainServer(path: string, bytes: number, told: Told): Promise<Cpu> {
  const answer = frame(DATA, 0, 1, Buffer.alloc(bytes))
  const waiting: Socket[] = []
  let isTelling = true
  const server = createServer(socket => {
    let heard = -GREETING_BYTES
    socket.on('error', () => undefined)
    socket.on('data', chunk => {
      heard += chunk.length
      if (heard < REQUEST_BYTES) return
      heard = 0
      if (isTelling) socket.write(answer)
      else waiting.push(socket)
    })
  })
  server.listen({ path })
  await once(server, 'listening')
  await told('idle', path, bytes)
  isTelling = false
  const tell = (): void => {
    for (const socket of waiting.splice(0)) socket.write(answer)
  }
  const cpu = await cpuOfChanges(path, told, {
    waiting: () => waiting.length,
    change: () => ({ bytes, tell }),
  })
  server.close()
  return cpu
}

/** Resident bytes once nothing is left to collect. */
function settled(): number {
  for (let round = 0; round < 3; round++) globalThis.gc?.()
  return process.memoryUsage().rss
}
