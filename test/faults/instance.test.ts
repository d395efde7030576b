import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { afterEach, expect, it } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { type LockResult, type TakeLock, takeLock } from '../../src/base/instance-lock.ts'
import { listenersAt, ownerIsAdmin, systemLock } from '../../src/daemon/network-lock.ts'
import { eventually, within } from '../support/patience.ts'
import { CLUSTER_CIDR } from '../support/pipeline.ts'
import { FileSite } from './file-site.ts'
import { runHere } from './in-process.ts'
import { differences } from './kernel.ts'
import { services, writeObjects } from './objects.ts'

const NAME = 'kprobe/kube-proxy'
const PADDED = NAME.padEnd(107, '\0')
const BUSY = 'another kprobe runs in this network namespace'

const site = FileSite.ofEachTest()
const held: LockResult[] = []

afterEach(async () => {
  for (const lock of held.splice(0)) if (lock.kind === 'held') await lock.release()
})

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
  const daemon = await site.running(services(3))
  expect(await take()).toEqual({ kind: 'busy', holder: `pid ${daemon.pid}` })
  await daemon.stop('SIGKILL')
  expect((await take()).kind).toBe('held')
})

it('F135: an earlier version of kprobe keeps a new one away, whether or not its runtime pads the name', async () => {
  for (const form of [NAME, PADDED]) {
    const earlier = await takeLock(form, 'pid 4711')
    held.push(earlier)
    site.write(services(1))
    const daemon = site.daemon()
    expect((await daemon.ended()).code).toBe(1)
    expect(daemon.said(BUSY)).toMatchObject([{ holder: 'pid 4711' }])
    if (earlier.kind === 'held') await earlier.release()
  }
})

interface Run {
  readonly code: number
  readonly lines: readonly string[]
}

interface RunUntil {
  /** Asked after each line of the log. */
  readonly isOver?: (lines: readonly string[]) => boolean
  readonly stop?: AbortController
}

/** A daemon of this process with this lock; it ends as it is told, or by itself. */
async function runWith(
  takeLock: TakeLock,
  count: number,
  { isOver = () => false, stop = new AbortController() }: RunUntil = {},
): Promise<Run> {
  const lines: string[] = []
  const write = (text: string) => {
    lines.push(text)
    if (isOver(lines)) stop.abort()
  }
  const folder = site.daemons.folder()
  writeObjects(folder, services(count))
  const flags = [`--source=file:${folder}`, `--cluster-cidr=${CLUSTER_CIDR}`, '--min-sync-period=100ms']
  const code = await runHere({ flags, write, signal: stop.signal, takeLock })
  return { code, lines }
}

/** What a list may miss while sockets come and go. */
const NONE_LISTED = { listSockets: () => Promise.resolve('sk Eth Pid Groups\n') }
const NOT_SEEN = { ownerIsAdmin: () => Promise.resolve(undefined) }
const NO_UNIX_DIAG = { listenersAt: () => Promise.resolve(undefined) }

it.each([
  ['its process is not to be seen', { ...NONE_LISTED, ...NOT_SEEN }],
  ['the kernel does not say who listens', { ...NONE_LISTED, ...NO_UNIX_DIAG }],
])('F135: of two that met past the lock the later one ends, where %s', async (_, changes) => {
  const first = await site.running(services(10))
  const { code, lines } = await runWith(systemLock(systemClock, Math.random, changes), 5)
  expect(code).toBe(1)
  expect(lines.join('')).toContain(BUSY)
  expect(lines.join('')).toContain(`"holder":"pid ${first.pid}"`)
  await eventually(async () => (await differences(services(10))).length === 0)
  expect(first.said(BUSY)).toEqual([])
})

it('F135: a daemon whose runtime pads the name goes on beside an earlier version that came later, and names it', async () => {
  const LATER = 'an earlier version of kprobe that started later'
  const padding: TakeLock = (form, holder) => takeLock(form.padEnd(PADDED.length, '\0'), holder)
  const lock = systemLock(systemClock, Math.random, { takeName: padding })
  const taken = await lock(NAME, `pid ${process.pid}`)
  held.push(taken)
  const bind = `import socket, time; s = socket.socket(socket.AF_UNIX); s.bind(b'\\0${NAME}'); s.listen(); print(1, flush=True); time.sleep(600)`
  const unpadded = spawn('python3', ['-c', bind], { stdio: ['ignore', 'pipe', 'inherit'] })
  try {
    await within(once(unpadded.stdout, 'data'), 'the earlier version listens')
    const stop = new AbortController()
    const unlocked: TakeLock = () => Promise.resolve({ kind: 'held', release: () => Promise.resolve() })
    const earlier = runWith(unlocked, 5, { stop })
    const isOver = (lines: readonly string[]) => lines.some(line => line.includes(LATER))
    const first = await runWith(() => Promise.resolve(taken), 10, { isOver })
    stop.abort()
    expect(first.code).toBe(0)
    expect(first.lines.filter(line => line.includes(LATER))).toHaveLength(1)
    expect((await earlier).code).toBe(0)
  } finally {
    unpadded.kill('SIGKILL')
  }
})

it('F136: a process of root without CAP_NET_ADMIN that listens at the abstract name keeps no kprobe from starting', async () => {
  const listen = `require('net').createServer().listen({ path: ${JSON.stringify(`\0${PADDED}`)} }, () => console.log(1))`
  const without = ['--bounding-set=-net_admin', '--inh-caps=-net_admin', process.execPath, '-e', listen]
  const other = spawn('setpriv', without, { stdio: ['ignore', 'pipe', 'inherit'] })
  try {
    await within(once(other.stdout, 'data'), 'the other process listens')
    const [listener] = (await listenersAt(systemClock, NAME)) ?? []
    expect(listener?.uid).toBe(0)
    expect(await ownerIsAdmin(listener?.inode ?? 0, [0])).toBe(false)
    expect(await take()).toMatchObject({ kind: 'held', isDoubted: false })
  } finally {
    other.kill('SIGKILL')
  }
})

it('F136: a process that listens at the abstract name, and is not root, keeps no kprobe from starting', async () => {
  const script = `for (const path of ${JSON.stringify([`\0${NAME}`, `\0${PADDED}`])})
    require('net').createServer().on('error', () => {}).listen({ path }, () => console.log('listening'))`
  const other = spawn(process.execPath, ['-e', script], { stdio: ['ignore', 'pipe', 'inherit'] })
  try {
    await within(once(other.stdout, 'data'), 'the other process listens')
    // The namespace of the tests has one user: here it is not trusted.
    const lock = systemLock(systemClock, Math.random, { trusted: [1] })
    const taken = await lock(NAME, 'pid 1')
    held.push(taken)
    expect(taken.kind).toBe('held')
    expect((await listenersAt(systemClock, NAME))?.map(({ uid }) => uid)).toContain(0)
    expect((await take()).kind).toBe('busy')
  } finally {
    other.kill('SIGKILL')
  }
})
