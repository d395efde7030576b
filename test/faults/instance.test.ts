import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { type LockResult, takeLock } from '../../src/base/instance-lock.ts'
import { createLog } from '../../src/base/log.ts'
import { parseFlags } from '../../src/config/parse-flags.ts'
import { runDaemon } from '../../src/daemon/daemon.ts'
import { listenersAt, systemLock } from '../../src/daemon/network-lock.ts'
import { type Daemon, Daemons } from '../support/daemon.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { eventually } from '../support/patience.ts'
import { CLUSTER_CIDR } from '../support/pipeline.ts'
import { differences, openNetfilter } from './kernel.ts'
import { services, writeObjects } from './objects.ts'

const NAME = 'kprobe/kube-proxy'
const PADDED = NAME.padEnd(107, '\0')
const BUSY = 'another kprobe runs in this network namespace'

const daemons = new Daemons()
const held: LockResult[] = []

beforeEach(() => freshNetns())

afterEach(async () => {
  for (const lock of held.splice(0)) if (lock.kind === 'held') await lock.release()
  await daemons.end()
})

async function running(count: number): Promise<Daemon> {
  const folder = daemons.folder()
  writeObjects(folder, services(count))
  const daemon = daemons.start({ source: folder })
  await daemon.synced()
  return daemon
}

async function take(): Promise<LockResult> {
  const lock = await systemLock(systemClock, Math.random)(NAME, `pid ${process.pid}`)
  held.push(lock)
  return lock
}

it('F135: of many that begin at once, one gets the lock, and after each release one again', async () => {
  for (let round = 0; round < 5; round++) {
    const locks = await Promise.all(Array.from({ length: 8 }, () => take()))
    const [one, ...others] = locks.filter(({ kind }) => kind === 'held')
    expect(others).toEqual([])
    if (one?.kind !== 'held') throw new Error('nobody got the lock')
    await one.release()
  }
})

it('F135: the lock ends with its process, and with nothing else of it', async () => {
  const daemon = await running(3)
  expect(await take()).toEqual({ kind: 'busy', holder: `pid ${daemon.pid}` })
  await daemon.stop('SIGKILL')
  expect((await take()).kind).toBe('held')
})

it('F135: an earlier version of kprobe keeps a new one away, whether or not its runtime pads the name', async () => {
  for (const form of [NAME, PADDED]) {
    const earlier = await takeLock(form, 'pid 4711')
    held.push(earlier)
    const folder = daemons.folder()
    writeObjects(folder, services(1))
    const daemon = daemons.start({ source: folder })
    expect((await daemon.exited).code).toBe(1)
    expect(daemon.said(BUSY)).toMatchObject([{ holder: 'pid 4711' }])
    if (earlier.kind === 'held') await earlier.release()
  }
})

/** A daemon of this process that got past the lock, as one that met an earlier holder without knowing. */
async function runPastLock(count: number, signal: AbortSignal): Promise<{ code: number; log: string }> {
  const folder = daemons.folder()
  writeObjects(folder, services(count))
  const flags = [`--source=file:${folder}`, `--cluster-cidr=${CLUSTER_CIDR}`, '--min-sync-period=100ms']
  const parsed = parseFlags(flags, { hostName: 'test-node' })
  if (parsed.kind === 'errors') throw new Error(parsed.errors.join())
  const logs: string[] = []
  const code = await runDaemon(parsed.value.config, {
    log: createLog({ format: 'json', verbosity: 0, destination: { write: text => logs.push(text) } }),
    clock: systemClock,
    wallMs: Date.now,
    build: { version: 'test', commit: '', date: '' },
    origins: { mode: 'default', nodeName: '--hostname-override' },
    listens: false,
    configz: () => ({}),
    random: Math.random,
    signal,
    processId: process.pid,
    openTransport: openNetfilter,
    takeLock: () =>
      Promise.resolve({
        kind: 'held',
        release: () => Promise.resolve(),
        elder: () => Promise.resolve('pid 4711'),
      }),
    synced: () => undefined,
    planned: () => undefined,
  })
  return { code, log: logs.join('') }
}

it('F135: of two that met past the lock the later one ends, and the Services of the earlier one are served', async () => {
  const first = await running(10)
  const { code, log } = await runPastLock(5, new AbortController().signal)
  expect(code).toBe(1)
  expect(log).toContain(BUSY)
  expect(log).toContain('"holder":"pid 4711"')
  await eventually(async () => (await differences(services(10))).length === 0)
  expect(first.said(BUSY)).toEqual([])
})

it('F136: a process that listens at the abstract name, and is not root, keeps no kprobe from starting', async () => {
  const script = `for (const path of ${JSON.stringify([`\0${NAME}`, `\0${PADDED}`])})
    require('net').createServer().on('error', () => {}).listen({ path }, () => console.log('listening'))`
  const other = spawn(process.execPath, ['-e', script], { stdio: ['ignore', 'pipe', 'inherit'] })
  try {
    await once(other.stdout, 'data')
    // The namespace of the tests has one user: here it is not trusted.
    const lock = systemLock(systemClock, Math.random, { trusted: [1] })
    const taken = await lock(NAME, 'pid 1')
    held.push(taken)
    expect(taken.kind).toBe('held')
    expect(await listenersAt(systemClock, NAME)).toContain(0)
    expect((await take()).kind).toBe('busy')
  } finally {
    other.kill('SIGKILL')
  }
})
