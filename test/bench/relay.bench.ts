import { fork } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseApiAddress } from '../../src/api/grpc/address.ts'
import { framed } from '../../src/api/grpc/rpc.ts'
import { systemClock } from '../../src/base/clock.ts'
import type { Collection } from '../../src/relay/collection.ts'
import { Http2Link, type RelayCall } from '../../src/relay/connection.ts'
import { discovery } from '../../src/relay/schema.ts'
import { type RelayServer, startRelayServer } from '../../src/relay/server.ts'
import { RelayState } from '../../src/relay/state.ts'
import { DELTA_METHOD, METADATA, RELAYED_TYPES } from '../../src/relay/types.ts'
import { decodeMessage } from '../../src/wire/protobuf/decoder.ts'
import { encodeMessage } from '../../src/wire/protobuf/encoder.ts'
import { table, text } from '../../src/wire/protobuf/table.ts'
import { goal, print, quantile } from './report.ts'

/*
 * One relay with readers in another process, over a unix socket: what a change costs for each reader, when the last reader has
 * it, and what a restart costs. The relay is filled by hand: the API server's part is that of `npm run bench -- kube`.
 */

const READERS = Number(process.env.KPROBE_READERS ?? 2_000)
const OBJECTS = Number(process.env.KPROBE_OBJECTS ?? 1_000)
const OBJECT_BYTES = Number(process.env.KPROBE_OBJECT_BYTES ?? 700)
const PER_SECOND = 100
const SECONDS = 20
const TYPE = RELAYED_TYPES[1]?.typeUrl ?? ''

interface Task {
  readonly kind: 'open' | 'report' | 'resume' | 'end'
  readonly address: string
  readonly readers: number
}

/** Of a report: when the last reader heard of a revision, in milliseconds of the monotonic clock, and bytes of all. */
interface Report {
  readonly last: readonly (readonly [revision: number, ms: number])[]
  readonly bytes: number
}

const HEAD = table({ system_version_info: [1, text], nonce: [5, text] })

function nowMs(): number {
  return Number(process.hrtime.bigint()) / 1e6
}

function read(): void {
  const calls: RelayCall[] = []
  const links: Http2Link[] = []
  const last = new Map<number, number>()
  let bytes = 0
  let revision = ''
  const open = (task: Task, metadata: readonly { key: string; value: string }[]): Promise<void> =>
    new Promise(resolve => {
      let waiting = task.readers
      for (let index = 0; index < task.readers; index++) {
        const link = new Http2Link({
          address: parseApiAddress(task.address),
          tls: undefined,
          clock: systemClock,
        })
        links.push(link)
        let isFirst = true
        const call: RelayCall = link.call(DELTA_METHOD, {
          message(message) {
            bytes += message.length
            const { nonce, system_version_info: heard = '' } = decodeMessage(HEAD, message)
            call.send(framed(discovery.DeltaDiscoveryRequest, { type_url: TYPE, response_nonce: nonce }))
            if (heard === '') return
            revision = heard
            last.set(Number(heard), nowMs())
            if (isFirst && --waiting === 0) resolve()
            isFirst = false
          },
          ended: () => undefined,
        })
        calls.push(call)
        const fields = metadata.map(({ key, value }) => ({ key, value: { string_value: value } }))
        const node = { id: `reader-${index}`, metadata: { fields } }
        call.send(framed(discovery.DeltaDiscoveryRequest, { node, type_url: TYPE }))
      }
    })
  process.on('message', async (task: Task) => {
    if (task.kind === 'end') process.exit(0)
    if (task.kind === 'report') {
      process.send?.({ last: [...last], bytes })
      return
    }
    for (const link of links.splice(0)) link.close()
    bytes = 0
    const token = [{ key: METADATA.revision, value: revision }]
    await open(task, task.kind === 'resume' ? token : [])
    last.clear()
    process.send?.({ last: [], bytes })
  })
  process.send?.('ready')
}

async function measure(): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'kprobe-bench-'))
  const address = `unix://${folder}/relay.sock`
  const child = fork(process.argv[1] ?? '', ['reader'], { execArgv: process.execArgv })
  await once(child, 'message')
  const ask = async (kind: Task['kind']): Promise<Report> => {
    child.send({ kind, address, readers: READERS } satisfies Task)
    const [report] = await once(child, 'message')
    return report
  }
  const relay = new Relay()
  let server = await relay.listen(address)
  const idleBytes = rss()
  const beganMs = nowMs()
  const first = await ask('open')
  const openMs = nowMs() - beganMs
  const heldBytes = (rss() - idleBytes) / READERS
  const changes = await relay.change()
  const { last } = await ask('report')
  await server.close()
  server = await relay.listen(address)
  const resumeMs = nowMs()
  const resumed = await ask('resume')
  const tookMs = nowMs() - resumeMs
  await server.close()
  child.send({ kind: 'end', address, readers: 0 } satisfies Task)
  rmSync(folder, { recursive: true })
  const waits = latencies(changes.made, last)
  const row = (what: string, value: number, unit: string, most?: number) => ({
    what,
    value: `${value.toFixed(1)} ${unit}`,
    goal: most === undefined ? '' : goal(value, most),
  })
  print(`${READERS} readers, ${PER_SECOND} changes/s of ${OBJECT_BYTES} bytes, ${OBJECTS} objects`, [
    row('CPU of the relay a reader and change', changes.cpuUs / READERS / changes.made.length, 'us', 2.5),
    row('CPU of the relay', changes.cpuUs / changes.tookMs / 10, '%', 50),
    row('memory a reader', heldBytes / 1024, 'KiB', 30),
    row('change to the last reader, p50', quantile(waits, 0.5), 'ms'),
    row('change to the last reader, p99', quantile(waits, 0.99), 'ms', 250),
    row('first state to all', openMs, 'ms', 10_000),
    row('bytes of the first state a reader', first.bytes / READERS, 'B'),
    row('resume of all after a restart of the server', tookMs, 'ms', 2_000),
    row('bytes of the resume a reader', resumed.bytes / READERS, 'B', 1_024),
  ])
  process.exit(0)
}

interface Made {
  readonly revision: number
  readonly ms: number
}

/** A relay whose collection is filled by hand. */
class Relay {
  readonly state = new RelayState({ clock: systemClock, proxyName: '' })
  readonly #collection: Collection
  #revision = 1_000

  constructor() {
    const collection = this.state.collections.get(TYPE)
    if (collection === undefined) throw new Error('no collection')
    this.#collection = collection
    this.state.heardMs = () => systemClock.nowMs()
    for (let index = 0; index < OBJECTS; index++) this.#put(index)
    collection.seal(String(this.#revision))
  }

  listen(address: string): Promise<RelayServer> {
    return startRelayServer({
      state: this.state,
      address,
      clock: systemClock,
      connectionsMax: READERS + 100,
      failed: error => console.error(error),
    })
  }

  async change(): Promise<{
    readonly made: readonly Made[]
    readonly cpuUs: number
    readonly tookMs: number
  }> {
    const made: Made[] = []
    const before = process.cpuUsage()
    const beganMs = nowMs()
    while (made.length < PER_SECOND * SECONDS) {
      const due = Math.min(PER_SECOND * SECONDS, ((nowMs() - beganMs) / 1_000) * PER_SECOND)
      while (made.length < due) {
        this.#put(made.length % OBJECTS)
        made.push({ revision: this.#revision, ms: nowMs() })
        this.#collection.seal(String(this.#revision))
      }
      await new Promise(resolve => setTimeout(resolve, 1))
    }
    const tookMs = nowMs() - beganMs
    const { user, system } = process.cpuUsage(before)
    await new Promise(resolve => setTimeout(resolve, 2_000))
    return { made, cpuUs: user + system, tookMs }
  }

  #put(index: number): void {
    const [name, version] = [`namespace/slice-${index}`, String(++this.#revision)]
    const value = Buffer.alloc(OBJECT_BYTES, index)
    const resource = encodeMessage(discovery.Resource, { version, resource: { type_url: TYPE, value }, name })
    this.#collection.put(name, { version, resource })
  }
}

/** Milliseconds from each change until the last reader had it. */
function latencies(made: readonly Made[], last: Report['last']): readonly number[] {
  const heard = [...last].sort((a, b) => a[0] - b[0])
  return made.flatMap(({ revision, ms }) => {
    const its = heard.find(([at]) => at >= revision)
    return its === undefined ? [] : [its[1] - ms]
  })
}

function rss(): number {
  globalThis.gc?.()
  return process.memoryUsage().rss
}

if (process.argv[2] === 'reader') read()
else await measure()
