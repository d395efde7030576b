import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { systemClock } from '../../src/base/clock.ts'
import { createNftClient } from '../../src/kernel/nft/client.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import type { ClusterSize } from '../bench/cluster.ts'
import { quantile } from '../bench/report.ts'
import { ControlPlane } from '../support/reference/control-plane.ts'
import { LAB_NODE, namespaceObject } from '../support/reference/lab-node.ts'
import type { Program } from '../support/reference/process.ts'
import { Forwarder } from '../support/reference/relay.ts'
import { cpuMs, kernelMiB, rssMiB } from './cost.ts'
import { Marksman } from './marksman.ts'
import { freshAddress, namespaces, SERVICE_CIDR, serviceOf, sliceOf, slicesOf, vipOf } from './objects.ts'
import { type PathFigures, pathCosts } from './path.ts'
import { type Contender, contenderText, startProxy } from './proxies.ts'

export interface Figures {
  readonly startMs: number
  readonly startCpuMs: number
  readonly startBytes: number
  readonly idleMiB: number
  /** What the kernel's memory grew by from before the start. */
  readonly kernelMiB: number
  /** What first packets of connections cost. */
  readonly path: PathFigures
  readonly idleCpuPercent: number
  readonly changeMs: readonly number[]
  readonly changeCpuMs: number
  readonly changeBytes: number
  readonly changeCommits: number
  readonly stormRate: number
  readonly stormCpuPercent: number
  readonly stormLagMs: number
  readonly restartMs: number
  readonly restartCpuMs: number
  readonly restartCommits: number
}

export interface Figure {
  readonly title: string
  readonly value: (figures: Figures) => number
  readonly digits: number
  /** The most that ours should be, at the smaller and the larger size. */
  readonly most?: readonly [number, number]
}

export const FIGURES: readonly Figure[] = [
  { title: 'process start to every VIP answering, ms', value: f => f.startMs, digits: 0, most: [1000, 1000] },
  { title: 'CPU of the start, ms', value: f => f.startCpuMs, digits: 0 },
  { title: 'bytes from the API server, start, KiB', value: f => f.startBytes / 1024, digits: 0 },
  { title: 'idle RSS, MiB', value: f => f.idleMiB, digits: 0, most: [90, 110] },
  { title: 'memory of the kernel, MiB', value: f => f.kernelMiB, digits: 0 },
  { title: 'idle CPU, % of a core', value: f => f.idleCpuPercent, digits: 2 },
  {
    title: 'one endpoint replaced to first packet, p50 ms',
    value: f => quantile(f.changeMs, 0.5),
    digits: 1,
    most: [5, 5],
  },
  { title: 'the same, max ms', value: f => quantile(f.changeMs, 1), digits: 1, most: [25, 25] },
  { title: 'CPU per such change, ms', value: f => f.changeCpuMs, digits: 2, most: [2, 2] },
  { title: 'bytes from the API server per change', value: f => f.changeBytes, digits: 0 },
  { title: 'commits per change', value: f => f.changeCommits, digits: 2 },
  { title: 'a storm of changes/s', value: f => f.stormRate, digits: 0 },
  { title: 'CPU in the storm, % of a core', value: f => f.stormCpuPercent, digits: 1, most: [5, 5] },
  { title: 'lag of its last change, ms', value: f => f.stormLagMs, digits: 0, most: [30, 30] },
  { title: 'restart with nothing changed: to quiet, ms', value: f => f.restartMs, digits: 0 },
  { title: 'the same, CPU ms', value: f => f.restartCpuMs, digits: 0, most: [800, 800] },
  { title: 'the same, commits', value: f => f.restartCommits, digits: 0, most: [0, 0] },
]

const START_MAX_MS = 300_000
const CHANGE_MAX_MS = 60_000
const SAMPLE = 200
const CHANGES = 30
/** Of all single changes: kube-proxy takes half a minute for one where there are many Services. */
const CHANGES_MAX_MS = 240_000
const ENDPOINTS_HIT_MAX = 1_000
const STORM_RATE = 100
const STORM_SECONDS = 20
/** The API server takes longer for a slice of a thousand endpoints than 1/100 s. */
const STORM_SECONDS_OF_LARGE = 2
/** No processor time for so long: whatever was to be done is done. */
const QUIET_MS = 2_000
const QUIET_CPU_MS = 50
const IDLE_MS = 10_000
const CHANGE_QUIET_MS = 1_200

export interface Measured {
  /** Without a proxy. */
  readonly bare: PathFigures
  readonly runs: readonly Run[]
  readonly failed: readonly FailedRun[]
}

export interface Run {
  readonly contender: Contender
  readonly figures: Figures
}

/** A proxy that did not get to the end, and why. */
export interface FailedRun {
  readonly contender: Contender
  readonly reason: string
}

/** The proxies by turns, `runs` times, on the same objects: each round begins with another one. */
export async function measure(
  size: ClusterSize,
  contenders: readonly Contender[],
  runs: number,
): Promise<Measured> {
  const plane = await ControlPlane.start({ serviceCidrs: SERVICE_CIDR })
  await load(plane, size)
  const marksman = await Marksman.start()
  const relay = await Forwarder.start({ listen: { port: plane.port }, dial: plane.way })
  const folder = mkdtempSync(join(tmpdir(), 'kprobe-bench-cluster-'))
  const bare = pathCosts(size)
  const results: Run[] = []
  const failed: FailedRun[] = []
  try {
    const turns = Array.from({ length: runs }, (_, run) =>
      contenders.map((_, index) => contenders[(run + index) % contenders.length]),
    )
    for (const contender of turns.flat()) {
      if (contender === undefined) continue
      // Where its program is does not belong on the page.
      const { name, mode } = contender
      const who = { name, mode }
      if (failed.some(each => contenderText(each.contender) === contenderText(who))) continue
      const bench = new Bench({ plane, marksman, relay, size, contender, log: join(folder, name) })
      try {
        results.push({ contender: who, figures: await bench.run() })
      } catch (error) {
        const reason = error instanceof Error ? error.message : String(error)
        say(`${contenderText(contender)}: ${reason}; its log is in ${folder}`)
        failed.push({ contender: who, reason })
      } finally {
        await bench.end()
      }
    }
    if (failed.length === 0) rmSync(folder, { recursive: true })
  } finally {
    await relay.close()
    await marksman.close()
    await plane.stop()
  }
  return { bare, runs: results, failed }
}

async function load({ api }: ControlPlane, size: ClusterSize): Promise<void> {
  const began = performance.now()
  await api.put(LAB_NODE)
  await api.each(namespaces(), name => api.put(namespaceObject(name)))
  const indexes = Array.from({ length: size.services }, (_, index) => index)
  await api.each(indexes, async index => {
    await api.create(serviceOf(index))
    for (const slice of slicesOf(index, size)) await api.create(slice)
  })
  say(`objects of ${size.services} Services created in ${((performance.now() - began) / 1000).toFixed(0)} s`)
}

interface BenchOptions {
  readonly plane: ControlPlane
  readonly marksman: Marksman
  readonly relay: Forwarder
  readonly size: ClusterSize
  readonly contender: Contender
  readonly log: string
}

class Bench {
  readonly #options: BenchOptions
  /** Of all runs: an address that a run before has left in an object would change nothing. */
  static #changes = 0
  readonly #commits = openCommitCounter()
  #program: Program | undefined

  constructor(options: BenchOptions) {
    this.#options = options
  }

  async run(): Promise<Figures> {
    const name = contenderText(this.#options.contender)
    const kernelBefore = kernelMiB()
    const first = await this.#start()
    say(`${name}: started`)
    await quiet(first.program)
    const startCpuMs = cpuMs(first.program.pid)
    const idleMiB = rssMiB(first.program.pid)
    const heldMiB = Math.max(0, kernelMiB() - kernelBefore)
    const single = await this.#singleChanges(first.program)
    // Behind the first changes: a process that has just begun still compiles what it has run.
    const idleCpuPercent = await idle(first.program)
    const changes = withoutIdle(single, idleCpuPercent)
    say(`${name}: changes done`)
    const storm = await this.#storm(first.program)
    say(`${name}: storm done`)
    await quiet(first.program)
    const path = pathCosts(this.#options.size)
    await first.program.stop()
    const restart = await this.#restart()
    say(`${name}: restarted`)
    return {
      startMs: first.startMs,
      startBytes: first.bytes,
      startCpuMs,
      idleMiB,
      kernelMiB: heldMiB,
      path,
      idleCpuPercent,
      ...changes,
      ...storm,
      ...restart,
    }
  }

  /** The node is this bench's own: all rules are the proxy's. */
  async end(): Promise<void> {
    await this.#program?.stop()
    this.#commits.close()
    execFileSync('nft', ['flush', 'ruleset'])
  }

  #launch(): Program {
    const { plane, contender, log } = this.#options
    const kubeconfig = plane.kubeconfig('admin')
    this.#program = startProxy({ ...contender, kubeconfig, nodeName: LAB_NODE.metadata.name, log })
    return this.#program
  }

  async #start() {
    const { marksman, relay, size } = this.#options
    const bytesBefore = relay.receivedBytes
    const since = performance.now()
    const program = this.#launch()
    const every = Math.max(1, Math.floor(size.services / SAMPLE))
    const sample = Array.from({ length: size.services }, (_, index) => index).filter(
      index => index % every === 0 || index === size.services - 1,
    )
    const answered = marksman.untilAllAnswer(sample.map(vipOf), since, START_MAX_MS)
    const ended = program.exited.then(() => {
      throw new Error(`it ended: ${program.lastWords()}`)
    })
    const startMs = await Promise.race([answered, ended])
    return { program, startMs, bytes: relay.receivedBytes - bytesBefore }
  }

  /** One endpoint replaced, far from each other in time and place. */
  async #singleChanges(program: Program): Promise<SingleChanges> {
    const { pid } = program
    const { relay } = this.#options
    const changeMs: number[] = []
    const cpuBefore = cpuMs(pid)
    const commitsBefore = this.#commits.count()
    const began = performance.now()
    const bytesBefore = relay.receivedBytes
    while (changeMs.length < CHANGES && performance.now() - began < CHANGES_MAX_MS) {
      const { index, endpoint } = this.#nextChange(changeMs.length)
      changeMs.push(await this.#untilEffective(index, endpoint))
      // Until its work is done, and then as long as kube-proxy makes a change wait that comes too early.
      await quiet(program, CHANGE_QUIET_MS)
    }
    return {
      changeMs,
      spentCpuMs: cpuMs(pid) - cpuBefore,
      tookMs: performance.now() - began,
      changeBytes: (relay.receivedBytes - bytesBefore) / changeMs.length,
      changeCommits: (this.#commits.count() - commitsBefore) / changeMs.length,
    }
  }

  /**
   * Gives the time from the API server's acknowledgement to the first packet at the new endpoint. A packet finds one of
   * thousands of endpoints too rarely: there, to the first commit.
   */
  async #untilEffective(index: number, endpoint: string): Promise<number> {
    const { marksman, size } = this.#options
    if (size.endpoints < ENDPOINTS_HIT_MAX) {
      const acknowledged = await this.#replace(index, endpoint)
      const target = { vip: vipOf(index), endpoint }
      return await marksman.untilReached(target, size.endpoints, acknowledged, CHANGE_MAX_MS)
    }
    const before = this.#commits.count()
    const acknowledged = await this.#replace(index, endpoint)
    while (this.#commits.count() === before) {
      if (performance.now() - acknowledged > CHANGE_MAX_MS) throw new Error(`${endpoint} was never committed`)
      await sleep(1)
    }
    return Math.max(0, performance.now() - acknowledged)
  }

  async #storm({ pid }: Program) {
    const { marksman, size } = this.#options
    const cpuBefore = cpuMs(pid)
    const began = performance.now()
    const pending: Array<Promise<number>> = []
    let last = this.#nextChange(0)
    const seconds = size.endpoints < ENDPOINTS_HIT_MAX ? STORM_SECONDS : STORM_SECONDS_OF_LARGE
    for (let change = 0; change < STORM_RATE * seconds; change++) {
      await sleep(Math.max(0, began + (change * 1000) / STORM_RATE - performance.now()))
      last = this.#nextChange(change)
      pending.push(this.#replace(last.index, last.endpoint))
    }
    const acknowledged = Math.max(...(await Promise.all(pending)))
    const elapsedMs = acknowledged - began
    const stormCpuPercent = ((cpuMs(pid) - cpuBefore) / elapsedMs) * 100
    const target = { vip: vipOf(last.index), endpoint: last.endpoint }
    const isHit = size.endpoints < ENDPOINTS_HIT_MAX
    const stormLagMs = isHit
      ? await marksman.untilReached(target, size.endpoints, acknowledged, CHANGE_MAX_MS)
      : Number.NaN
    return { stormRate: (pending.length * 1000) / elapsedMs, stormCpuPercent, stormLagMs }
  }

  async #restart() {
    const commitsBefore = this.#commits.count()
    const began = performance.now()
    const program = this.#launch()
    const quietAt = await quiet(program)
    const result = {
      restartMs: quietAt - began,
      restartCpuMs: cpuMs(program.pid),
      restartCommits: this.#commits.count() - commitsBefore,
    }
    await program.stop()
    return result
  }

  #nextChange(change: number): { readonly index: number; readonly endpoint: string } {
    Bench.#changes++
    const index = ((change + 1) * 7919) % this.#options.size.services
    return { index, endpoint: freshAddress(Bench.#changes) }
  }

  /** Gives when the API server acknowledged. */
  async #replace(index: number, endpoint: string): Promise<number> {
    const { plane, size } = this.#options
    const slice = sliceOf(index, size, endpoint)
    await plane.api.patch(slice, { endpoints: slice.endpoints })
    return performance.now()
  }
}

/** Resolves with the time of its last work once a process has had next to nothing to do for a while. */
async function quiet({ pid }: Program, quietMs = QUIET_MS): Promise<number> {
  let busyMs = cpuMs(pid)
  let busyAt = performance.now()
  while (performance.now() - busyAt < quietMs) {
    await sleep(50)
    if (cpuMs(pid) - busyMs <= QUIET_CPU_MS) continue
    busyMs = cpuMs(pid)
    busyAt = performance.now()
  }
  return busyAt
}

interface SingleChanges extends Pick<Figures, 'changeMs' | 'changeBytes' | 'changeCommits'> {
  readonly spentCpuMs: number
  readonly tookMs: number
}

/** What the changes took, less what would have been taken without them in that time. */
function withoutIdle(
  { spentCpuMs, tookMs, ...changes }: SingleChanges,
  idleCpuPercent: number,
): Pick<Figures, 'changeMs' | 'changeCpuMs' | 'changeBytes' | 'changeCommits'> {
  const idleCpuMs = (tookMs * idleCpuPercent) / 100
  return { ...changes, changeCpuMs: Math.max(0, spentCpuMs - idleCpuMs) / changes.changeMs.length }
}

/** Percent of a core that it takes when there is nothing to do. */
async function idle({ pid }: Program): Promise<number> {
  const before = cpuMs(pid)
  await sleep(IDLE_MS)
  return ((cpuMs(pid) - before) / IDLE_MS) * 100
}

function openCommitCounter() {
  const transport = openNetlink({ protocol: NETLINK_NETFILTER })
  const client = createNftClient({ transport, clock: systemClock })
  return { count: () => client.generation(), close: () => client.close() }
}

function say(words: string): void {
  process.stderr.write(`${words}\n`)
}
