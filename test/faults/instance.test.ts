import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { afterEach, expect, it } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { type LockResult, systemLock } from '../../src/daemon/network-lock.ts'
import { eventually, within } from '../support/patience.ts'
import { CLUSTER_CIDR } from '../support/pipeline.ts'
import { FileSite } from './file-site.ts'
import { runHere } from './in-process.ts'
import { differences } from './kernel.ts'
import { services, writeObjects } from './objects.ts'

const NAME = 'kprobe/kube-proxy'
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

it('F135: of two that a list of sockets has missed, one ends', async () => {
  const first = await site.running(services(10))
  let lists = 0
  const listSockets = async () =>
    lists++ < 2 ? 'sk Eth Pid Groups\n' : await readFile('/proc/net/netlink', 'latin1')
  const folder = site.daemons.folder()
  writeObjects(folder, services(5))
  const [stop, lines]: [AbortController, string[]] = [new AbortController(), []]
  const second = runHere({
    flags: [`--source=file:${folder}`, `--cluster-cidr=${CLUSTER_CIDR}`, '--min-sync-period=100ms'],
    write: text => lines.push(text),
    signal: stop.signal,
    takeLock: systemLock(systemClock, Math.random, { listSockets }),
  })
  // The one with the lower port id stays.
  const secondStays = first.ended().then(({ code }) => ({ code, left: 5, said: first.said(BUSY).length }))
  const said = () => lines.filter(line => line.includes(BUSY)).length
  const firstStays = second.then(code => ({ code, left: 10, said: said() }))
  const { left, ...ended } = await Promise.race([firstStays, secondStays])
  expect(ended).toEqual({ code: 1, said: 1 })
  await eventually(async () => (await differences(services(left))).length === 0)
  stop.abort()
  await second
})

it('F136: a process that listens at the abstract name keeps no kprobe from starting, and others see who holds the lock', async () => {
  const listen = `require('net').createServer(its => its.end('pid 1')).listen({ path: ${JSON.stringify(`\0${NAME}`)} }, () => console.log(1))`
  const other = spawn(process.execPath, ['-e', listen], { stdio: ['ignore', 'pipe', 'inherit'] })
  try {
    await within(once(other.stdout, 'data'), 'the other process listens')
    const daemon = await site.running(services(1))
    expect(await take()).toEqual({ kind: 'busy', holder: `pid ${daemon.pid}` })
  } finally {
    other.kill('SIGKILL')
  }
})
