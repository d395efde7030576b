import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer as createHttp2, type ServerHttp2Stream } from 'node:http2'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { systemClock } from '../../src/base/clock.ts'
import { keepYoungGenerationSmall } from '../../src/daemon/engine.ts'
import type { Collection } from '../../src/relay/collection.ts'
import type { Entry } from '../../src/relay/frames.ts'
import { discovery } from '../../src/relay/schema.ts'
import { type RelayServer, startRelayServer } from '../../src/relay/server.ts'
import { RelayState } from '../../src/relay/state.ts'
import { RELAYED } from '../../src/relay/types.ts'
import { encodeMessage } from '../../src/wire/protobuf/encoder.ts'
import { encodeObject } from '../support/apiserver/encode-protobuf.ts'
import { sliceOf } from '../support/apiserver/generator.ts'
import { nowMs, type ReadersReport, type ReadersTask, serveReaders } from './relay-readers.ts'
import { childResult, goal, print, quantile } from './report.ts'

/*
 * One relay with readers in another process, over a unix socket: what a change costs for each reader, when the last reader has
 * it, what the first state and a restart cost; and beside it, what node:http2 alone costs for the same octets. The relay is
 * filled by hand: the API server's part is that of `npm run bench -- kube`. Each measurement has a process of its own.
 */

const READERS = listOf('KPROBE_READERS', [2_000, 5_000])
const FIRST_READERS = listOf('KPROBE_FIRST_READERS', [2_000])
const FIRST_OBJECTS = Number(process.env.KPROBE_FIRST_OBJECTS ?? 10_000)
const OBJECTS = Number(process.env.KPROBE_OBJECTS ?? 1_000)
const ENDPOINTS = 10
const PER_SECOND = 100
const SECONDS = Number(process.env.KPROBE_SECONDS ?? 20)
const ACCEPTS = process.env.KPROBE_ACCEPTS === 'identity' ? 'identity' : 'gzip'
const TYPE = RELAYED.EndpointSlice.typeUrl
/** Readers that come before the memory of the others is measured, so that what a process has once is not divided among them. */
const WARM = 500

function listOf(name: string, standard: readonly number[]): readonly number[] {
  return process.env[name]?.split(',').map(Number) ?? standard
}

interface Steady {
  readonly cpuUs: number
  readonly tookMs: number
  readonly changes: number
  readonly readerBytes: number
  readonly waits: readonly number[]
  readonly rounds: number
  readonly roundBytes: number
  readonly readersCpuMs: number
  readonly openMs: number
  readonly firstBytes: number
  readonly resumeMs: number
  readonly resumeBytes: number
}

interface First {
  readonly tookMs: number
  readonly cpuUs: number
  readonly bytes: number
  readonly grownBytes: number
  /** What is still there afterwards, while all readers are connected. */
  readonly keptBytes: number
  readonly stateBytes: number
}

interface Floor {
  readonly cpuUs: number
  readonly readerBytes: number
}

class ReaderProcess {
  readonly #folder = mkdtempSync(join(tmpdir(), 'kprobe-bench-'))
  readonly path = join(this.#folder, 'relay.sock')
  readonly #child: ChildProcess = fork(process.argv[1] ?? '', ['readers'], { execArgv: process.execArgv })
  readonly #gone = new AbortController()
  readonly ready = once(this.#child, 'message')

  constructor() {
    this.#child.once('exit', () => this.#gone.abort())
  }

  async ask(kind: ReadersTask['kind'], readers = 0, revision = 0): Promise<ReadersReport> {
    const task: ReadersTask = { kind, readers, revision, path: this.path, typeUrl: TYPE, accepts: ACCEPTS }
    this.#child.send(task)
    const [report] = await once(this.#child, 'message', { signal: this.#gone.signal })
    return report
  }

  end(): void {
    this.#child.kill()
    rmSync(this.#folder, { recursive: true })
  }
}

async function steady(count: number): Promise<Steady> {
  const readers = new ReaderProcess()
  await readers.ready
  const relay = new Forwarder(OBJECTS)
  let server = await relay.listen(readers.path)
  await readers.ask('open', WARM)
  const warmBytes = await rss()
  const beganMs = nowMs()
  const first = await readers.ask('open', count - WARM)
  const openMs = nowMs() - beganMs
  const readerBytes = ((await rss()) - warmBytes) / (count - WARM)
  await readers.ask('report')
  const { made, cpuUs, tookMs } = await relay.change(async revision => {
    await readers.ask('settle', 0, revision)
  })
  const { heard, bytes, cpuMs } = await readers.ask('report')
  await server.close()
  server = await relay.listen(readers.path)
  const resumeMs = nowMs()
  const resumed = await readers.ask('resume', count)
  const tookResumeMs = nowMs() - resumeMs
  const waits = latencies(made, heard, count)
  readers.end()
  return {
    cpuUs,
    tookMs,
    changes: made.length,
    readerBytes,
    waits,
    rounds: heard.length,
    roundBytes: (bytes - first.bytes) / heard.length / count,
    readersCpuMs: cpuMs,
    openMs,
    firstBytes: first.bytes / count,
    resumeMs: tookResumeMs,
    resumeBytes: resumed.bytes,
  }
}

async function firstState(count: number): Promise<First> {
  const readers = new ReaderProcess()
  await readers.ready
  const relay = new Forwarder(FIRST_OBJECTS)
  await relay.listen(readers.path)
  const before = await rss()
  let most = before
  const watch = setInterval(() => {
    most = Math.max(most, process.memoryUsage.rss())
  }, 20)
  const [beganMs, cpu] = [nowMs(), process.cpuUsage()]
  const { bytes } = await readers.ask('open', count)
  const tookMs = nowMs() - beganMs
  const { user, system } = process.cpuUsage(cpu)
  clearInterval(watch)
  const keptBytes = (await rss()) - before
  readers.end()
  const grownBytes = most - before
  return { tookMs, cpuUs: user + system, bytes, grownBytes, keptBytes, stateBytes: relay.stateBytes }
}

/** node:http2 alone: a stream for each reader, and so many octets in so many rounds. */
async function floor(count: number, roundBytes: number, rounds: number, tookMs: number): Promise<Floor> {
  const readers = new ReaderProcess()
  await readers.ready
  const streams: ServerHttp2Stream[] = []
  const frame = Buffer.from(new Forwarder(1).frame(Math.round(roundBytes)))
  const http = createHttp2()
  http.on('stream', stream => {
    stream.on('error', () => undefined)
    stream.on('data', () => undefined)
    stream.respond({ ':status': 200, 'content-type': 'application/grpc' }, { waitForTrailers: true })
    stream.write(frame)
    streams.push(stream)
  })
  const listener = createServer(socket => http.emit('connection', socket))
  listener.listen({ path: readers.path, backlog: 8_192 })
  await once(listener, 'listening')
  await readers.ask('open', WARM)
  const warmBytes = await rss()
  await readers.ask('open', count - WARM)
  const readerBytes = ((await rss()) - warmBytes) / (count - WARM)
  const cpu = process.cpuUsage()
  const beganMs = nowMs()
  for (let round = 1; round <= rounds; round++) {
    for (const stream of streams) stream.write(frame)
    await sleep(Math.max(1, (round * tookMs) / rounds - (nowMs() - beganMs)))
  }
  await sleep(1_000)
  const { user, system } = process.cpuUsage(cpu)
  readers.end()
  return { cpuUs: user + system, readerBytes }
}

function measure(): void {
  const unit = (value: number, name: string): string => `${value.toFixed(1)} ${name}`
  const row = (what: string, value: number, name: string, most?: number, least?: number) => ({
    what,
    value: unit(value, name),
    goal: most === undefined ? '' : goal(value, most),
    'node:http2 alone': least === undefined ? '' : unit(least, name),
  })
  for (const readers of READERS) {
    const its = childResult<Steady>(['steady', String(readers)])
    const numbers = [readers, its.roundBytes, its.rounds, its.tookMs].map(String)
    const least = childResult<Floor>(['floor', ...numbers])
    const perChange = (cpuUs: number) => cpuUs / readers / its.changes
    print(
      `${readers} readers (${ACCEPTS}), ${PER_SECOND} changes/s, ${OBJECTS} slices of ${ENDPOINTS} endpoints`,
      [
        row('CPU of the relay, a reader and change', perChange(its.cpuUs), 'us', 2.5, perChange(least.cpuUs)),
        row(
          'CPU of the relay, a reader and round',
          its.cpuUs / readers / its.rounds,
          'us',
          undefined,
          least.cpuUs / readers / its.rounds,
        ),
        row(
          'CPU of the relay',
          its.cpuUs / its.tookMs / 10,
          '%',
          (readers * 2.5 * PER_SECOND) / 1e4,
          least.cpuUs / its.tookMs / 10,
        ),
        row('CPU of the process of the readers', (its.readersCpuMs / its.tookMs) * 100, '%'),
        row('rounds', (its.rounds * 1_000) / its.tookMs, '/s'),
        row('bytes of a round', its.roundBytes, 'B'),
        row('memory a reader', its.readerBytes / 1024, 'KiB', 30, least.readerBytes / 1024),
        row('change to the last reader, p50', quantile(its.waits, 0.5), 'ms'),
        row('change to the last reader, p99', quantile(its.waits, 0.99), 'ms', 250),
        row('first state to all', its.openMs, 'ms'),
        row('bytes of the first state, a reader', its.firstBytes, 'B'),
        row('resume of all after a restart of the server', its.resumeMs, 'ms', 2_000),
        row('bytes of the resume of all', its.resumeBytes / 1024, 'KiB', 2_048),
      ],
    )
  }
  for (const readers of FIRST_READERS) {
    const its = childResult<First>(['first', String(readers)])
    const spareBytes = its.grownBytes - its.keptBytes
    print(`first state of ${FIRST_OBJECTS} slices of ${ENDPOINTS} endpoints to ${readers} readers at once`, [
      row('time', its.tookMs, 'ms', 10_000),
      row('CPU of the relay', its.cpuUs / 1e3, 'ms'),
      row('bytes, a reader', its.bytes / readers / 1024, 'KiB'),
      row('the state itself', its.stateBytes / 1024, 'KiB'),
      row('memory of the relay above that before', its.grownBytes / 1024, 'KiB'),
      row('the same without what readers hold afterwards', spareBytes / 1024, 'KiB', its.stateBytes / 1024),
    ])
  }
}

interface Made {
  readonly revision: number
  readonly ms: number
}

/** A relay whose collection is filled by hand. */
class Forwarder {
  readonly state = new RelayState({ clock: systemClock, proxyName: '' })
  readonly #collection: Collection
  #revision = 1_000
  stateBytes = 0
  readonly #objects: number

  constructor(objects: number) {
    const { EndpointSlice: collection } = this.state.collections
    this.#collection = collection
    this.#objects = objects
    this.state.heardMs = () => systemClock.nowMs()
    this.state.identify('00000000-0000-4000-8000-000000000000')
    for (let index = 0; index < objects; index++) {
      const { name, entry } = this.#encoded(index)
      collection.put(name, entry)
      this.stateBytes += entry.resource.length
    }
    collection.seal(String(this.#revision))
  }

  listen(path: string): Promise<RelayServer> {
    return startRelayServer({
      state: this.state,
      address: `unix://${path}`,
      clock: systemClock,
      connectionsMax: 20_000,
      failed: error => console.error(error),
    })
  }

  /** A message of about so many bytes. */
  frame(bytes: number): Buffer {
    const removed = ['x'.repeat(Math.max(1, bytes - 100))]
    const next = this.#collection.framesFor('c1', [], removed).next()
    return next.done === true ? Buffer.alloc(0) : next.value.plain
  }

  /** `settled` waits until all readers have a revision. */
  async change(settled: (revision: number) => Promise<void>): Promise<{
    readonly made: readonly Made[]
    readonly cpuUs: number
    readonly tookMs: number
  }> {
    const made: Made[] = []
    // Before: a relay passes on what the API server has encoded.
    const changes = Array.from({ length: PER_SECOND * SECONDS }, (_, index) =>
      this.#encoded(index % this.#objects),
    )
    const before = process.cpuUsage()
    const beganMs = nowMs()
    while (made.length < changes.length) {
      const due = Math.min(changes.length, ((nowMs() - beganMs) / 1_000) * PER_SECOND)
      for (const { name, entry } of changes.slice(made.length, Math.floor(due))) {
        this.#collection.put(name, entry)
        made.push({ revision: Number(entry.version), ms: nowMs() })
        this.#collection.seal(entry.version)
      }
      await sleep(1)
    }
    const tookMs = nowMs() - beganMs
    await settled(this.#revision)
    const { user, system } = process.cpuUsage(before)
    return { made, cpuUs: user + system, tookMs }
  }

  #encoded(index: number): { readonly name: string; readonly entry: Entry } {
    const version = String(++this.#revision)
    const pods = Array.from({ length: ENDPOINTS }, (_, slot) => this.#revision * ENDPOINTS + slot)
    const object = sliceOf(index, { number: 0, pods })
    const name = `namespace/slice-${index}`
    const resource = encodeMessage(discovery.Resource, {
      version,
      resource: { type_url: TYPE, value: encodeObject(object) },
      name,
    })
    return { name, entry: { version, resource } }
  }
}

/** Milliseconds from each change until the last reader had it. */
function latencies(made: readonly Made[], heard: ReadersReport['heard'], readers: number): readonly number[] {
  const by = [...heard].sort((a, b) => a[0] - b[0])
  const missing = by.filter(([, , count]) => count !== readers)
  if (missing.length > 0) throw new Error(`not all readers heard of ${missing.join(' ')}`)
  return made.flatMap(({ revision, ms }) => {
    const its = by.find(([at]) => at >= revision)
    return its === undefined ? [] : [its[1] - ms]
  })
}

async function rss(): Promise<number> {
  for (let time = 0; time < 3; time++) {
    globalThis.gc?.()
    await sleep(300)
  }
  return process.memoryUsage.rss()
}

async function perform(what: string | undefined, numbers: readonly number[]): Promise<void> {
  const [readers = 0, bytes = 0, rounds = 0, tookMs = 0] = numbers
  const results = {
    steady: () => steady(readers),
    first: () => firstState(readers),
    floor: () => floor(readers, bytes, rounds, tookMs),
  }
  if (what !== 'steady' && what !== 'first' && what !== 'floor') throw new Error(`unknown part ${what}`)
  console.log(JSON.stringify(await results[what]()))
  process.exit(0)
}

if (process.argv[2] === 'readers') serveReaders()
else if (process.argv[2] === undefined) measure()
else {
  // As `kprobe relay` does; the floor too.
  keepYoungGenerationSmall()
  await perform(process.argv[2], process.argv.slice(3).map(Number))
}
