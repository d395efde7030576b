import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { performance } from 'node:perf_hooks'
import { setTimeout as pause } from 'node:timers/promises'
import { systemClock } from '../../src/base/clock.ts'
import { FlowGroups } from '../../src/cli/flow-groups.ts'
import { FlowWatch, namesOfRows } from '../../src/cli/flow-reading.ts'
import {
  type Flow,
  familyNumber,
  IPCTNL_MSG_CT_DELETE,
  messageType,
  REST,
} from '../../src/kernel/conntrack/flow.ts'
import { AttributeWriter, ByteWriter } from '../../src/netlink/attribute.ts'
import { NETLINK_NETFILTER, NLM_F_REQUEST } from '../../src/netlink/constants.ts'
import { closeMessage, openMessage, writeNfGenMsg } from '../../src/netlink/message.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { writeAttributes } from '../../src/netlink/schema.ts'
import type { Transport } from '../../src/netlink/transport.ts'
import { serviceOf, sliceOf } from '../support/objects.ts'
import { type Entry, entry, flow, inject } from '../unit/kernel/conntrack/flows.ts'
import { cpuOf } from './daemon-cost.ts'
import { tiedNode } from './daemon-process.ts'
import { goal, print } from './report.ts'
import { compareOff, holdNode } from './see-off.ts'

/*
 * The watcher has a process of its own: its CPU time is measured, and not that of the generator. The generator makes
 * conntrack entries over ctnetlink, which announces each as it does a packet's, at a steady pace.
 */

const PER_SECOND = 20_000
const SECONDS = 10
const WARM_SECONDS = 4
const STEP_MS = 10
const SERVICES = 10_000
const ENDPOINTS = 3
const SHARE_MAX = 0.1

const TOP_PER_SECOND = 200
const TOP_SECONDS = 30
/** It reads the names of all Services first. */
const TOP_WARM_SECONDS = 20
const TOP_SHARE_MAX = 0.02

const vipOf = (n: number): string => `10.96.${n >> 8}.${n & 255}`
const endpointOf = (n: number): string => `10.1.${n >> 8}.${n & 255}`

if (process.argv[2] === 'watch') await watch(process.argv[3] === 'both')
else if (process.argv[2] === 'node') await holdNode()
else await compare()

function names() {
  const rows = Array.from({ length: SERVICES }, (_, n) => ({
    service: `ns/service-${n}:http`,
    protocol: 'UDP',
    frontend: `${vipOf(n)}:53`,
  }))
  const known = namesOfRows(rows)
  return {
    version: 1,
    serviceOf: ({
      protocol,
      destination,
      destinationPort,
    }: Pick<Flow, 'destination' | 'destinationPort'> & { protocol: string }) =>
      known.at(protocol, destination, destinationPort),
  }
}

/** Counts by endpoint until standard input ends, as `kprobe flows --follow --group-by endpoint` does. */
async function watch(ended: boolean): Promise<void> {
  const filter = {
    service: '',
    from: [],
    to: undefined,
    endpoint: undefined,
    protocol: undefined,
    all: false,
  }
  const groups = new FlowGroups({ names: names(), filter, by: 'endpoint', withVolume: false })
  const flows = new FlowWatch({
    clock: systemClock,
    kinds: ended ? ['new', 'ended'] : ['new'],
    take: (...event) => groups.take(...event),
  })
  console.log('ready')
  process.stdin.resume()
  // Each pair of Service and endpoint is named once, and the code is compiled: that is not measured.
  await once(process.stdin, 'data')
  const start = { cpu: process.cpuUsage(), ms: performance.now() }
  await once(process.stdin, 'end')
  flows.stop()
  const { user, system } = process.cpuUsage(start.cpu)
  const ms = performance.now() - start.ms
  const lost = flows.takeLost()
  const all = groups.largest()
  const begun = all.reduce((sum, group) => sum + group.begun, 0)
  const gone = all.reduce((sum, group) => sum + group.ended, 0)
  console.log(JSON.stringify({ begun, gone, lost, groups: all.length, share: (user + system) / 1000 / ms }))
  process.exit(0)
}

interface Seen {
  readonly begun: number
  readonly gone: number
  readonly lost: number
  readonly groups: number
  /** Of a processor. */
  readonly share: number
}

async function compare(): Promise<void> {
  await compareOff()
  const rows = [await round(false), await round(true)]
  print(`kprobe flows at ${PER_SECOND} new connections a second, ${SERVICES} Services`, rows)
  print(
    `kprobe top in a terminal of 80x24, ${SERVICES} Services, ${TOP_PER_SECOND} new connections a second`,
    [await top()],
  )
}

async function round(ended: boolean): Promise<Record<string, string>> {
  const child = startWatcher(ended)
  let said = ''
  child.stdout?.on('data', chunk => {
    said += chunk
  })
  while (!said.includes('ready')) await pause(20)
  const truth = await generate(ended, () => child.stdin?.write('measure'))
  child.stdin?.end()
  await once(child, 'close')
  const seen: Seen = JSON.parse(said.trimEnd().split('\n').at(-1) ?? '')
  const isRight = seen.begun === truth.begun && seen.gone === (ended ? truth.begun : 0)
  const aSecond = Math.round(truth.begun / truth.seconds)
  // A busy machine does not reach the pace.
  const atGoal = (seen.share * PER_SECOND) / Math.min(PER_SECOND, aSecond)
  return {
    events: ended ? 'new, ended' : 'new',
    'new/s': `${aSecond}`,
    seen: `${seen.begun} + ${seen.gone} of ${truth.begun}${isRight ? ' (right)' : ' (WRONG)'}`,
    lost: `${seen.lost}`,
    groups: `${seen.groups}`,
    core: `${(seen.share * 100).toFixed(1)} %`,
    'core at 20,000/s': `${(atGoal * 100).toFixed(1)} % ${goal(atGoal, SHARE_MAX)}`,
  }
}

function startWatcher(ended: boolean): ChildProcess {
  const bundle = process.env.KPROBE_BENCH_BUNDLE ?? ''
  return spawn(...tiedNode(bundle, 'watch', ended ? 'both' : 'new'), {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
}

/** Makes entries at a steady pace, and calls `warm` on the way; with `ended`, removes those of the step before. */
async function generate(
  ended: boolean,
  warm: () => void,
): Promise<{ readonly begun: number; readonly seconds: number }> {
  const transport = openNetlink({ protocol: NETLINK_NETFILTER })
  const aStep = (PER_SECOND * STEP_MS) / 1000
  const startMs = performance.now()
  let begun = 0
  let previous: readonly Entry[] = []
  for (let step = 0; step < (SECONDS * 1000) / STEP_MS; step++) {
    if (step === (WARM_SECONDS * 1000) / STEP_MS) warm()
    const late = startMs + step * STEP_MS - performance.now()
    if (late > 0) await pause(late)
    const entries = Array.from({ length: aStep }, (_, n) => numbered(step * aStep + n))
    begun += inject(transport, entries)
    if (ended) remove(transport, previous)
    previous = entries
  }
  if (ended) remove(transport, previous)
  const seconds = (performance.now() - startMs) / 1000
  if (!ended)
    for (let n = 0; n < begun; n += 500)
      remove(
        transport,
        Array.from({ length: 500 }, (_, i) => numbered(n + i)),
      )
  await transport.close()
  return { begun, seconds }
}

function numbered(n: number): Entry {
  const service = (n * 7_919) % SERVICES
  const client = `10.2.${(n >> 14) & 255}.${(n >> 6) & 255}:${20_000 + (n & 63)}`
  return entry(client, `${vipOf(service)}:53`, `${endpointOf(service * ENDPOINTS + (n % ENDPOINTS))}:5353`)
}

function remove(transport: Transport, entries: readonly Entry[]): void {
  const out = new ByteWriter(1 << 16)
  for (const { from, to } of entries) {
    const { tuple, family } = flow(from, to)
    const start = openMessage(out, {
      type: messageType(IPCTNL_MSG_CT_DELETE),
      flags: NLM_F_REQUEST,
      sequence: 1,
    })
    writeNfGenMsg(out, { family: familyNumber(family), resourceId: 0 })
    writeAttributes(new AttributeWriter(out), REST, { tuple })
    closeMessage(out, start)
  }
  if (entries.length > 0) transport.sendSync(out.written())
}

/** Measures `kprobe top`, and the daemon that it asks. */
async function top(): Promise<Record<string, string>> {
  spawnSync('ip', ['link', 'set', 'lo', 'up'])
  const command = `${process.env.KPROBE_ROOT ?? ''}/dist/kprobe.mjs`
  const folder = mkdtempSync(`${tmpdir()}/kprobe-see-`)
  const socket = `--admin-socket=${folder}/admin.sock`
  const daemon = await startDaemon(command, folder, socket)
  const helper = `${process.env.KPROBE_ROOT ?? ''}/test/support/pseudo-terminal.py`
  const terminal = spawn('python3', [helper, '80', '24', process.execPath, command, 'top', socket])
  let drawn = 0
  terminal.stdout.on('data', chunk => {
    drawn += String(chunk).split('kprobe top ').length - 1
  })
  const transport = openNetlink({ protocol: NETLINK_NETFILTER })
  const cpuNow = () => ({ top: cpuMs(childOf(terminal.pid)), daemon: cpuMs(daemon.pid ?? 0), drawn })
  let start = { ms: 0, top: 0, daemon: 0, drawn: 0 }
  for (let step = 0; step < TOP_WARM_SECONDS + TOP_SECONDS; step++) {
    if (step === TOP_WARM_SECONDS) start = { ...cpuNow(), ms: performance.now() }
    const entries = Array.from({ length: TOP_PER_SECOND }, (_, n) => numbered(step * TOP_PER_SECOND + n))
    inject(transport, entries)
    await pause(1_000)
  }
  const ms = performance.now() - start.ms
  const end = cpuNow()
  const share = (end.top - start.top) / ms
  terminal.stdin.write(`keys ${Buffer.from('q').toString('hex')}\n`)
  await once(terminal, 'close')
  daemon.kill()
  await transport.close()
  rmSync(folder, { recursive: true })
  return {
    pictures: `${end.drawn - start.drawn}`,
    core: `${(share * 100).toFixed(2)} % ${goal(share, TOP_SHARE_MAX)}`,
    daemon: `${(((end.daemon - start.daemon) / ms) * 100).toFixed(2)} %`,
  }
}

async function startDaemon(command: string, folder: string, socket: string): Promise<ChildProcess> {
  const source = `${folder}/objects.json`
  writeFileSync(source, JSON.stringify({ apiVersion: 'v1', kind: 'List', items: objects() }))
  const args = [command, 'run', `--source=file:${source}`, '--hostname-override=node', socket]
  const daemon = spawn(...tiedNode(...args), { stdio: ['ignore', 'ignore', 'pipe'] })
  let log = ''
  daemon.stderr.on('data', chunk => {
    log += chunk
  })
  while (!log.includes('first sync complete')) await pause(100)
  return daemon
}

function cpuMs(pid: number): number {
  const { main, others } = cpuOf(pid)
  return main + others
}

function childOf(pid: number | undefined): number {
  const child = Number(readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8'))
  if (child === 0) throw new Error('kprobe top ended')
  return child
}

function objects(): readonly object[] {
  return Array.from({ length: SERVICES }, (_, n) => {
    const name = `service-${n}`
    const spec = { ports: [{ name: 'dns', port: 53, protocol: 'UDP' }] }
    const endpoints = Array.from({ length: ENDPOINTS }, (_, each) => endpointOf(n * ENDPOINTS + each))
    const ports = [{ name: 'dns', port: 5_353, protocol: 'UDP' }]
    return [serviceOf(`ns/${name}`, vipOf(n), spec), sliceOf(`ns/${name}`, endpoints, { ports })]
  }).flat()
}
