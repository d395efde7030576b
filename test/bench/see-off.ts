import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { request } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as pause } from 'node:timers/promises'
import { serviceOf, sliceOf } from '../support/objects.ts'
import { cpuOf } from './daemon-cost.ts'
import { tiedNode } from './daemon-process.ts'
import { buildSender, connectToNowhere, nanosecondsTo } from './packet-path.ts'
import { median, print } from './report.ts'

/*
 * What observing costs when nobody looks: two nodes by turns, each a daemon in a network namespace of its own. At one,
 * every observer has run and ended; at the other, none ever ran.
 */

const SERVICES = 200
const CHANGES = 20
const CHANGE_MS = 150
const ROUNDS = 5
/** The daemon of a page samples so long after the last request, and a bit. */
const SAMPLER_MS = 15_000

/** Runs in the namespace of a node: answers a line for each one of standard input. */
export async function holdNode(): Promise<void> {
  connectToNowhere()
  const command = `${process.env.KPROBE_ROOT ?? ''}/dist/kprobe.mjs`
  const folder = mkdtempSync(`${tmpdir()}/kprobe-off-`)
  const socket = join(folder, 'admin.sock')
  const objects = join(folder, 'objects')
  mkdirSync(objects)
  const services = Array.from({ length: SERVICES }, (_, n) => serviceOf(`ns/s-${n}`, vipOf(n)))
  const slices = Array.from({ length: SERVICES }, (_, n) => sliceOf(`ns/s-${n}`, [`10.1.${n}.1`]))
  writeFileSync(join(objects, 'all.json'), JSON.stringify({ kind: 'List', items: [...services, ...slices] }))
  writeSlice(objects, 0)
  const args = [`--source=file:${objects}`, '--hostname-override=node', `--admin-socket=${socket}`]
  const daemon = spawn(...tiedNode(command, 'run', ...args), { stdio: ['ignore', 'ignore', 'pipe'] })
  await new Promise<void>(synced =>
    daemon.stderr.on('data', chunk => String(chunk).includes('first sync complete') && synced()),
  )
  const jobs: Readonly<Record<string, () => Promise<unknown>>> = {
    look: () => lookAtAll(command, socket),
    rules: () => Promise.resolve(execFileSync('nft', ['list', 'ruleset'], { encoding: 'utf8' })),
    change: () => change(daemon, objects),
    packets: () => Promise.resolve(nanosecondsTo([`${vipOf(0)}:80`, `${vipOf(SERVICES - 1)}:80`])),
  }
  console.log('"ready"')
  for await (const line of createInterface({ input: process.stdin }))
    console.log(JSON.stringify(await jobs[line]?.()))
  daemon.kill()
  rmSync(folder, { recursive: true })
}

const vipOf = (n: number): string => `10.96.0.${n + 1}`

function writeSlice(folder: string, n: number): void {
  const slice = sliceOf('ns/changing', [`10.1.0.${2 + (n % 200)}`])
  const items = [serviceOf('ns/changing', '10.96.1.1'), slice]
  writeFileSync(join(folder, 'changing.json'), JSON.stringify({ kind: 'List', items }))
}

/** Runs every observer until it ends. */
async function lookAtAll(command: string, socket: string): Promise<string> {
  const admin = `--admin-socket=${socket}`
  for (const args of [
    ['why', '--from=127.0.0.1', '--to=ns/s-0', admin],
    ['flows', '--follow', '--duration=1s', admin],
    ['trace', '--service=ns/s-0', '--duration=1s', admin],
    ['top', '--once', admin],
  ]) {
    const { status, stderr } = spawnSync(process.execPath, [command, ...args], { encoding: 'utf8' })
    if (status !== 0) throw new Error(`${args[0]}: ${stderr}`)
  }
  for (const page of ['status', 'services', 'rates'])
    await new Promise<void>((done, fail) =>
      request({ socketPath: socket, path: `/ui/data/${page}` }, answer => answer.resume().on('end', done))
        .on('error', fail)
        .end(),
    )
  await pause(SAMPLER_MS)
  return 'looked'
}

/** Gives milliseconds of processor time a change. */
async function change(daemon: ChildProcess, objects: string): Promise<number> {
  const start = cpuOf(daemon.pid ?? 0)
  for (let n = 1; n <= CHANGES; n++) {
    writeSlice(objects, n)
    await pause(CHANGE_MS)
  }
  const end = cpuOf(daemon.pid ?? 0)
  // Both nodes end with the same rules.
  writeSlice(objects, 0)
  await pause(CHANGE_MS)
  return (end.main - start.main + end.others - start.others) / CHANGES
}

interface Figures {
  readonly changeMs: number[]
  readonly packetNs: number[]
}

/** Prints figures of both nodes, and their ratios. */
export async function compareOff(): Promise<void> {
  buildSender()
  const nodes = [new Node(), new Node()]
  const [never, ended] = nodes
  if (never === undefined || ended === undefined) return
  for (const node of nodes) await node.line()
  const rules: unknown[] = []
  // A daemon that starts compiles its code for the first changes.
  for (const node of nodes) await node.ask('change')
  await ended.ask('look')
  for (const node of nodes) rules.push(await node.ask('rules'))
  const figures = nodes.map((): Figures => ({ changeMs: [], packetNs: [] }))
  for (let round = 0; round < ROUNDS; round++)
    for (const [at, node] of nodes.entries()) {
      figures[at]?.changeMs.push(Number(await node.ask('change')))
      figures[at]?.packetNs.push(...numbersIn(await node.ask('packets')))
    }
  for (const node of nodes) node.end()
  const rows = figures.map(({ changeMs, packetNs }, at) => ({
    observers: at === 0 ? 'never ran' : 'ran and ended',
    'ms a change': median(changeMs).toFixed(2),
    'ns a new connection': median(packetNs).toFixed(0),
    ratio: `${ratio(figures, at, 'changeMs')}, ${ratio(figures, at, 'packetNs')}`,
    rules: rules[at] === rules[0] ? 'the same octets' : 'OTHERS',
  }))
  print(`nobody looks: ${SERVICES} Services, two nodes by turns`, rows)
}

function ratio(figures: readonly Figures[], at: number, key: 'changeMs' | 'packetNs'): string {
  return (median(figures[at]?.[key] ?? []) / median(figures[0]?.[key] ?? [])).toFixed(2)
}

function numbersIn(value: unknown): readonly number[] {
  return Array.isArray(value) ? value.map(Number) : []
}

class Node {
  readonly #child: ChildProcess
  readonly #lines: AsyncIterator<string>

  constructor() {
    const bundle = process.env.KPROBE_BENCH_BUNDLE ?? ''
    this.#child = spawn('unshare', ['-n', ...tiedNode(bundle, 'node').flat()], {
      stdio: ['pipe', 'pipe', 'inherit'],
    })
    if (this.#child.stdout === null) throw new Error('no standard output')
    this.#lines = createInterface({ input: this.#child.stdout })[Symbol.asyncIterator]()
  }

  async ask(job: string): Promise<unknown> {
    this.#child.stdin?.write(`${job}\n`)
    return await this.line()
  }

  async line(): Promise<unknown> {
    const { value, done } = await this.#lines.next()
    if (done === true) throw new Error('a node ended')
    return JSON.parse(value)
  }

  end(): void {
    this.#child.stdin?.end()
  }
}
