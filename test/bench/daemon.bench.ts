import { execFileSync, spawnSync } from 'node:child_process'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { systemClock } from '../../src/base/clock.ts'
import { createNftClient } from '../../src/kernel/nft/client.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { between, type CpuMs, cpuOf, type Memory, memoryOf } from './daemon-cost.ts'
import { Daemon } from './daemon-process.ts'
import { serve, startTestServer, type TestServer } from './kube-server.ts'
import { goal, print } from './report.ts'

// The whole daemon, from dist/, beside an API server of the tests: what its process costs from start to restart.
// KPROBE_SIZES=1000x10,10000x2 names other sizes, KPROBE_COMMANDS=A/kprobe.mjs,B/kprobe.mjs builds to compare, each in
// turn, KPROBE_NODE_ARGS="--cpu-prof ..." arguments for Node, KPROBE_MODE=iptables the mode (nftables).

const IDLE_MS = seconds('KPROBE_IDLE_SECONDS', 30)
const CHANGES = 30
const CHANGE_EVERY_MS = 400
const STORM_PER_SECOND = 100
const STORM_MS = 10_000
/** Storms that end at a different moment of the rest between two commits. */
const LAGS = 5
/** No more than this share of a core for this long: whatever was to be done is done. */
const QUIET_MS = 2_000
const QUIET_SHARE = 0.02

interface Size {
  readonly services: number
  readonly endpointsPerService: number
}

interface Figures {
  readonly startMs: number
  readonly syncedCpu: CpuMs
  readonly startCpu: CpuMs
  readonly started: Memory
  readonly idleCpu: CpuMs
  readonly idle: Memory
  readonly changeCpu: CpuMs
  readonly stormCpu: CpuMs
  readonly lagsMs: readonly number[]
  readonly after: Memory
  readonly restartMs: number
  readonly restartCpu: CpuMs
}

interface Goals {
  readonly restartCpuMs: number
  readonly rssMiB: number
}

const [, bundle = '', role, ...words] = process.argv
if (role === 'serve') await serve({ services: Number(words[0]), endpointsPerService: Number(words[1]) })
else await compare()

async function compare(): Promise<void> {
  execFileSync('ip', ['link', 'set', 'lo', 'up'])
  const commands = (
    process.env.KPROBE_COMMANDS ?? join(process.env.KPROBE_ROOT ?? '.', 'dist/kprobe.mjs')
  ).split(',')
  for (const size of (process.env.KPROBE_SIZES ?? '1000x10').split(',').map(parseSize)) {
    const columns: Array<readonly [string, Figures]> = []
    for (const command of commands) {
      const server = await startTestServer(bundle, size)
      try {
        columns.push([command, await measure(command, server)])
      } finally {
        await server.stop()
        spawnSync('nft', ['flush', 'ruleset'])
      }
    }
    tell(size, columns)
  }
}

async function measure(command: string, server: TestServer): Promise<Figures> {
  const first = await Daemon.start(command, server.kubeconfig)
  const { startMs, syncedCpu, pid } = first
  await quiet(pid)
  const startCpu = cpuOf(pid)
  const started = memoryOf(pid)
  const changing = await during(pid, async () => {
    for (let change = 0; change < CHANGES; change++) {
      server.change('once')
      await sleep(CHANGE_EVERY_MS)
    }
  })
  // Behind the first changes: a process that has just begun still compiles what it has run.
  await quiet(pid)
  const idleCpu = await during(pid, () => sleep(IDLE_MS))
  const idle = memoryOf(pid)
  const stormCpu = await during(pid, async () => {
    server.change(STORM_PER_SECOND)
    await sleep(STORM_MS)
    server.change(0)
  })
  await quiet(pid)
  const lagsMs: number[] = []
  for (let storm = 0; storm < LAGS; storm++) lagsMs.push(await lagAfter(server, 1_500 + 37 * storm))
  const after = memoryOf(pid)
  await first.stop()
  const second = await Daemon.start(command, server.kubeconfig)
  await quiet(second.pid)
  const restartCpu = cpuOf(second.pid)
  await second.stop()
  return {
    startMs,
    syncedCpu,
    startCpu,
    started,
    idleCpu,
    idle,
    changeCpu: without(changing, idleCpu, CHANGES * CHANGE_EVERY_MS),
    stormCpu,
    lagsMs,
    after,
    restartMs: second.startMs,
    restartCpu,
  }
}

/** Gives the time from the end of a short storm to the last commit that follows from it. */
async function lagAfter(server: TestServer, stormMs: number): Promise<number> {
  const commits = createNftClient({
    transport: openNetlink({ protocol: NETLINK_NETFILTER }),
    clock: systemClock,
  })
  server.change(STORM_PER_SECOND)
  await sleep(stormMs)
  server.change(0)
  const endMs = performance.now()
  let [lagMs, generation] = [0, commits.generation()]
  while (performance.now() - endMs < QUIET_MS) {
    await sleep(2)
    const now = commits.generation()
    if (now !== generation) lagMs = performance.now() - endMs
    generation = now
  }
  await commits.close()
  return lagMs
}

async function quiet(pid: number): Promise<void> {
  for (;;) {
    const { main, others } = await during(pid, () => sleep(QUIET_MS))
    if (main + others < QUIET_MS * QUIET_SHARE) return
  }
}

async function during(pid: number, work: () => Promise<unknown>): Promise<CpuMs> {
  const before = cpuOf(pid)
  await work()
  return between(before, cpuOf(pid))
}

/** A change's own part of what was spent while changes came. */
function without(spent: CpuMs, idle: CpuMs, ms: number): CpuMs {
  const own = (thread: keyof CpuMs) => (spent[thread] - (idle[thread] * ms) / IDLE_MS) / CHANGES
  return { main: own('main'), others: own('others') }
}

function tell(
  { services, endpointsPerService }: Size,
  columns: ReadonlyArray<readonly [string, Figures]>,
): void {
  const most: Goals =
    services < 10_000 ? { restartCpuMs: 400, rssMiB: 55 } : { restartCpuMs: 900, rssMiB: 90 }
  const figures: ReadonlyArray<readonly [string, (figures: Figures) => string]> = [
    ['start to first sync, ms', f => `${f.startMs.toFixed(0)} ${goal(f.startMs, 400)}`],
    ['CPU until then, ms', f => cpu(f.syncedCpu)],
    ['CPU of the start, ms', f => cpu(f.startCpu, 400)],
    ['memory then, MiB', f => memory(f.started)],
    ['idle CPU, ms a second', f => cpu(perSecond(f.idleCpu, IDLE_MS), 1, 2)],
    ['memory then, MiB', f => memory(f.idle, most)],
    [`CPU of a change, one every ${CHANGE_EVERY_MS} ms`, f => cpu(f.changeCpu, 3, 2)],
    [`${STORM_PER_SECOND} changes a second, ms a second`, f => cpu(perSecond(f.stormCpu, STORM_MS), 40, 1)],
    ['lag after the last change, ms', f => f.lagsMs.map(ms => ms.toFixed(0)).join(', ')],
    ['memory then, MiB', f => memory(f.after)],
    ['restart to first sync, ms', f => f.restartMs.toFixed(0)],
    ['CPU of the restart, ms', f => cpu(f.restartCpu, most.restartCpuMs)],
  ]
  print(
    `kprobe run at ${services} x ${endpointsPerService}; CPU: total (main thread + others); memory: RSS, anonymous, peak`,
    figures.map(([title, text]) => ({
      '': title,
      ...Object.fromEntries(
        columns.map(([command, result], index) => [`${index + 1}: ${command}`, text(result)]),
      ),
    })),
  )
}

function cpu({ main, others }: CpuMs, most?: number, digits = 0): string {
  const total = main + others
  const text = `${total.toFixed(digits)} (${main.toFixed(digits)} + ${others.toFixed(digits)})`
  return most === undefined ? text : `${text} ${goal(total, most)}`
}

function perSecond({ main, others }: CpuMs, ms: number): CpuMs {
  return { main: (main * 1_000) / ms, others: (others * 1_000) / ms }
}

function memory({ rss, anonymous, peak }: Memory, most?: Goals): string {
  const text = `${rss.toFixed(0)}, ${anonymous.toFixed(0)}, ${peak.toFixed(0)}`
  return most === undefined ? text : `${text} ${goal(rss, most.rssMiB)}`
}

function seconds(name: string, fallback: number): number {
  return Number(process.env[name] ?? fallback) * 1_000
}

function parseSize(text: string): Size {
  const [services = 0, endpointsPerService = 0] = text.split('x').map(Number)
  if (!services || !endpointsPerService) throw new Error(`not SERVICESxENDPOINTS: ${text}`)
  return { services, endpointsPerService }
}
