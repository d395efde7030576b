import { fork } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseApiAddress } from '../../src/api/grpc/address.ts'
import { framed } from '../../src/api/grpc/rpc.ts'
import { systemClock } from '../../src/base/clock.ts'
import { Http2Link, type RelayCall } from '../../src/relay/connection.ts'
import { encodeReport } from '../../src/relay/node-report.ts'
import { discovery, status } from '../../src/relay/schema.ts'
import { startRelayServer } from '../../src/relay/server.ts'
import { RelayState } from '../../src/relay/state.ts'
import { DELTA_METHOD, METADATA, RELAYED } from '../../src/relay/types.ts'
import { encodeMessage } from '../../src/wire/protobuf/encoder.ts'
import { print } from './report.ts'

/*
 * What reports cost a relay: one of each node a second, over a unix socket, from nodes in another process; taking them alone;
 * and an answer to `kprobe status`.
 */

const NODES = Number(process.env.KPROBE_READERS ?? 500)
const ROUNDS = 30
const TYPE = RELAYED.Service.typeUrl
const names = Array.from({ length: NODES }, (_, index) => `node-${index}`)

function reportText(number: number): string {
  const revision = String(1_000 + number)
  return encodeReport({
    startedMs: 1,
    number,
    cluster: '0b6f3f0e-6d0c-4c53-a3c9-2f3b8b1f5e11',
    isDirect: false,
    held: { Service: revision, EndpointSlice: revision },
    failure: '',
    lacking: [],
    lackingCount: 0,
    proof: { text: 'everything was proved, 12000 classes of packets, 12 s ago', differences: 0 },
    version: '0.1.0',
  })
}

/** The nodes: each opens a stream and reports when it is asked to. */
function report(address: string): void {
  let round = 0
  const frame = (id: string): Buffer => {
    const fields = [{ key: METADATA.report, value: { string_value: reportText(round) } }]
    return framed(discovery.DeltaDiscoveryRequest, { node: { id, metadata: { fields } }, type_url: TYPE })
  }
  const calls: RelayCall[] = []
  for (const name of names) {
    const link = new Http2Link({ address: parseApiAddress(address), tls: undefined, clock: systemClock })
    const handlers = { message: () => undefined, ended: () => undefined }
    const call = link.call(DELTA_METHOD, handlers)
    call.send(framed(discovery.DeltaDiscoveryRequest, { node: { id: name }, type_url: TYPE }))
    calls.push(call)
  }
  process.on('message', word => {
    if (word === 'end') process.exit(0)
    round++
    for (const [index, call] of calls.entries()) call.send(frame(names[index] ?? ''))
  })
  process.send?.('ready')
}

/** CPU time of this process, milliseconds: other work on the machine does not count. */
function cpuMs(): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1_000
}

function relayState(): RelayState {
  const state = new RelayState({ clock: systemClock, proxyName: '' })
  const nodes = state.collections.Node
  for (const name of names) nodes.put(name, { version: '1', resource: Buffer.alloc(0) })
  for (const collection of Object.values(state.collections)) collection.seal('1')
  state.identify('cluster-a')
  return state
}

/** CPU time of a report of each node, microseconds. */
async function overSockets(state: RelayState, address: string): Promise<number> {
  const failed = (error: Error): void => console.error(error)
  const server = await startRelayServer({
    state,
    address,
    clock: systemClock,
    connectionsMax: NODES + 100,
    failed,
  })
  const child = fork(process.argv[1] ?? '', ['nodes', address], { execArgv: process.execArgv })
  await once(child, 'message')
  const heard = (number: number): boolean =>
    [...state.reports.nodes()].every(({ report: its }) => (its?.number ?? -1) >= number)
  const until = async (isSo: () => boolean): Promise<void> => {
    while (!isSo()) await new Promise(resolve => setTimeout(resolve, 1_000))
  }
  await until(() => server.counts.subscriptions === NODES)
  const began = cpuMs()
  for (let round = 1; round <= ROUNDS; round++) {
    for (const kind of ['Service', 'EndpointSlice'] as const)
      state.reports.changed(kind, String(1_000 + round), { by: 'watch' })
    child.send('report')
    await new Promise(resolve => setTimeout(resolve, 1_000))
  }
  await until(() => heard(ROUNDS))
  const spentMs = cpuMs() - began
  child.send('end')
  await server.close()
  return (spentMs * 1_000) / ROUNDS / NODES
}

/** CPU time of taking a report, microseconds. */
function alone(state: RelayState): number {
  const began = cpuMs()
  // As many as a node may send at once.
  for (let number = 100; number < 106; number++) {
    const text = reportText(number)
    for (const name of names) state.reports.take(name, text)
  }
  return ((cpuMs() - began) * 1_000) / 6 / NODES
}

async function answerMs(state: RelayState): Promise<{ ms: number; bytes: number }> {
  let [ms, bytes] = [0, 0]
  for (let time = 0; time < 5; time++) {
    // Answers of 250 ms are one.
    await new Promise(resolve => setTimeout(resolve, 300))
    const began = cpuMs()
    bytes = encodeMessage(status.RelayStatus, state.reports.status()).length
    ms = cpuMs() - began
  }
  return { ms, bytes }
}

async function measure(): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'kprobe-bench-'))
  const state = relayState()
  const socketUs = await overSockets(state, `unix://${folder}/relay.sock`)
  rmSync(folder, { recursive: true })
  const us = alone(state)
  const answer = await answerMs(state)
  print(`reports of ${NODES} nodes`, [
    { what: 'a report, with its socket and the state of nodes', value: `${socketUs.toFixed(1)} us` },
    {
      what: 'a report of every node a second',
      value: `${((socketUs * NODES) / 10_000).toFixed(1)} % of a core`,
    },
    { what: 'taking a report', value: `${us.toFixed(1)} us` },
    { what: 'an answer to kprobe status', value: `${answer.ms.toFixed(1)} ms, ${answer.bytes} B` },
  ])
  process.exit(0)
}

if (process.argv[2] === 'nodes') report(process.argv[3] ?? '')
else await measure()
