import { execFile } from 'node:child_process'
import { expect, it } from 'vitest'
import { takeLock } from '../../src/daemon/network-lock.ts'
import { COMMAND, type Daemon } from '../support/daemon.ts'
import { FaultyTransport, type TransportFaults } from '../support/faulty-transport.ts'
import { eventually, within } from '../support/patience.ts'
import { CLUSTER_CIDR } from '../support/pipeline.ts'
import { Rig } from '../support/rig.ts'
import { tried } from '../support/runs.ts'
import { FileSite } from './file-site.ts'
import { runHere } from './in-process.ts'
import {
  differences,
  frontendNames,
  generation,
  isAtRest,
  listRuleset,
  listTable,
  nft,
  openNetfilter,
} from './kernel.ts'
import { services, writeObjects } from './objects.ts'

const site = FileSite.ofEachTest()

const running = (count: number): Promise<Daemon> => site.running(services(count))

/** PATIENCE_MS of src/main.ts. */
const OWN_PATIENCE_MS = 4_500

const turn = (): Promise<void> => new Promise(resolve => setTimeout(resolve, 1))
/** Of the event loop. One that waits for the kernel makes none. */
const TURNS = 200

/** Holds up whoever waits for it until it is lifted. */
class Hold {
  lift: () => void = () => undefined
  readonly lifted = new Promise<void>(resolve => {
    this.lift = resolve
  })
}

it('F60: a kernel that takes long for a batch does not hold up the event loop', async () => {
  const faults: TransportFaults = {}
  const rig = new Rig({ transport: new FaultyTransport(openNetfilter(), faults) })
  await rig.sync(services(10))
  const slow = new Hold()
  let sending = false
  faults.beforePoolSend = () => {
    sending = true
    return slow.lifted
  }
  rig.offer(services(300))
  await rig.until(() => sending)
  // How short our own pauses are is for the benchmarks to say: here others run, too.
  for (let turns = 0; turns < TURNS; turns++) await turn()
  expect(rig.reconciler.status.syncedNumber).toBeLessThan(rig.reconciler.status.table?.number ?? 0)
  slow.lift()
  await rig.synced()
  expect(rig.of('failed')).toEqual([])
  expect(await differences(services(300))).toEqual([])
  await rig.close()
})

it('F60: a daemon that shall end does not wait for a slow kernel, and its batch is all or nothing', async () => {
  site.write(services(300))
  const slow = new Hold()
  let sending = false
  const faults: TransportFaults = {
    beforePoolSend: () => {
      sending = true
      return slow.lifted
    },
  }
  const stop = new AbortController()
  const ended = runHere({
    flags: [`--source=file:${site.folder}`, `--cluster-cidr=${CLUSTER_CIDR}`],
    signal: stop.signal,
    openTransport: () => new FaultyTransport(openNetfilter(), faults),
    takeLock,
  })
  await eventually(() => sending)
  stop.abort()
  expect(await within(ended, 'the daemon ends')).toBe(0)
  expect(await differences([])).not.toEqual([])
  slow.lift()
  // Whatever was sent is taken whole, even when nobody waits for it any more.
  await eventually(async () => (await differences(services(300))).length === 0)
})

it('F84: SIGTERM under load ends the daemon at once, with rules of before or after an edit', async () => {
  const moments = [100, 150, 200, 300, 400, 600, 800, 1_000]
  for (const delayMs of moments.filter((_, index) => tried(moments.length, 0, 1 / 2).includes(index + 1))) {
    nft('flush ruleset')
    site.write(services(4_000))
    const daemon = site.daemon()
    await new Promise(resolve => setTimeout(resolve, delayMs))
    site.write(services(2_000))
    const { code, signal, tookMs } = await daemon.stop()
    // A signal before the program has begun to listen for it ends it, too. So does the program's own patience, which no load extends.
    const codes = signal === null ? (tookMs < OWN_PATIENCE_MS ? [0] : [0, 1]) : ['SIGTERM']
    expect(codes, `after ${delayMs} ms`).toContain(code ?? signal)
    expect(await isAtRest([[], services(4_000), services(2_000)]), `after ${delayMs} ms`).toBe(true)
  }
})

it('F86: of two daemons one works; the other ends with a reason, and nothing flips', async () => {
  const first = await running(10)
  const before = await generation()
  const other = site.daemons.folder()
  writeObjects(other, services(5))
  for (let round = 0; round < 3; round++) {
    const second = site.daemons.start({ source: other })
    expect((await second.ended()).code).toBe(1)
    expect(second.said('another kprobe runs in this network namespace')).toMatchObject([
      { holder: `pid ${first.pid}` },
    ])
  }
  expect(await generation()).toBe(before)
  site.write(services(11))
  await eventually(() => frontendNames().size === 11)
  await first.caughtUp()
  expect(first.said('another process')).toEqual([])
})

it('F86: the instance lock is released on kill and on clean exit', async () => {
  for (const signal of ['SIGKILL', 'SIGTERM', 'SIGKILL', 'SIGTERM'] as const) {
    const daemon = await running(10)
    await daemon.stop(signal)
  }
  expect(await differences(services(10))).toEqual([])
})

/** `kprobe cleanup`: exit code and everything it says. */
function cleanup(...args: string[]): Promise<{ readonly code: number; readonly text: string }> {
  return new Promise(resolve => {
    const child = execFile(process.execPath, [COMMAND, 'cleanup', ...args], (_, stdout, stderr) =>
      resolve({ code: child.exitCode ?? -1, text: stdout + stderr }),
    )
  })
}

it('F89: cleanup removes our tables and no others, and again it finds nothing', async () => {
  nft('table ip other { chain kube-proxy { counter; }; }')
  const other = listTable('ip other')
  const daemon = await running(10)
  await daemon.stop()
  const first = await cleanup()
  expect(first).toEqual({
    code: 0,
    text: 'removed table ip kube-proxy\nremoved table ip6 kube-proxy\n',
  })
  const before = await generation()
  expect(await cleanup()).toEqual({ code: 0, text: 'the kernel holds no objects of kprobe\n' })
  expect(await generation()).toBe(before)
  expect(nft('list tables')).toBe('table ip other\n')
  expect(listTable('ip other')).toBe(other)
})

it('F89: cleanup refuses while a daemon runs, and what --force removes comes back', async () => {
  const daemon = await running(10)
  const before = listRuleset()
  const refused = await cleanup()
  expect(refused.code).toBe(1)
  expect(refused.text).toContain(`pid ${daemon.pid}`)
  expect(listRuleset()).toBe(before)
  expect((await cleanup('--force')).code).toBe(0)
  await eventually(() => listRuleset() === before)
})

it.each([
  ['only one of the tables', 'delete table ip6 kube-proxy'],
  ['no rule and no element', 'flush table ip kube-proxy; flush set ip kube-proxy cluster-ips'],
  ['a foreign chain inside', 'add chain ip kube-proxy evil; add rule ip kube-proxy evil jump services'],
])('F89: cleanup of half a rule set, %s, leaves nothing of it', async (_, damage) => {
  await (await running(10)).stop()
  nft(damage)
  expect((await cleanup()).code).toBe(0)
  expect(nft('list tables')).toBe('')
  expect((await cleanup()).text).toBe('the kernel holds no objects of kprobe\n')
})
