import { copyFileSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { systemClock } from '../../../src/base/clock.ts'
import type { Config } from '../../../src/config/config.ts'
import type { LockResult } from '../../../src/daemon/network-lock.ts'
import { createNftClient } from '../../../src/kernel/nft/client.ts'
import { kernelRows } from '../../../src/modes/nftables/show.ts'
import { SystemError } from '../../../src/netlink/transport.ts'
import { EXAMPLES } from '../../support/daemon.ts'
import { DaemonRun } from '../../support/daemon-run.ts'
import { temporaryFolder } from '../../support/folder.ts'
import { serviceOf } from '../../support/ipvs-services.ts'
import { configFrom } from '../../support/parse-flags.ts'

let folder: string
let run: DaemonRun
/** Modes whose settings the kernel was brought to. */
let tuned: string[]
let lock: LockResult
let locks: string[]
let isBroken: boolean
let isForbidden: boolean
/** Logs the state, as SIGUSR2 does. */
let logState: () => void

beforeEach(() => {
  folder = temporaryFolder()
  for (const name of readdirSync(EXAMPLES).filter(name => /^\d/.test(name)))
    copyFileSync(join(EXAMPLES, name), join(folder, name))
  run = new DaemonRun()
  tuned = []
  lock = { kind: 'held', release: () => Promise.resolve() }
  locks = []
  isBroken = false
  isForbidden = false
})

afterEach(() => run.end())

function configOf(...flags: string[]): Config {
  const argv = [`--source=file:${folder}`, '--hostname-override=example-node', '--v=4', ...flags]
  return configFrom(argv)
}

function start(...flags: string[]): Promise<number> {
  return run.start(configOf(...flags), {
    openTransport: () => {
      if (isBroken) throw new Error('no descriptor is left')
      if (isForbidden) throw new SystemError('socket', 1, 'EPERM')
      return run.kernel.open()
    },
    openGeneric: () => {
      throw new Error('no generic netlink here')
    },
    asked: report => {
      logState = report
      return () => undefined
    },
    tune: async ({ proxyMode }) => void tuned.push(proxyMode),
    takeLock: name => {
      locks.push(name)
      return Promise.resolve(lock)
    },
  })
}

const until = (condition: () => boolean, what: string) => run.until(condition, what)

function edit(file: string, change: (text: string) => string): void {
  const path = join(folder, file)
  writeFileSync(path, change(readFileSync(path, 'utf8')))
}

/** `frontend -> endpoints` of one Service, as the kernel has it. */
async function served(service: string): Promise<string[]> {
  return (await run.rows())
    .filter(row => row.service === service)
    .map(row => `${row.frontend} -> ${row.endpoints.join(' ')}`)
}

describe('runDaemon', () => {
  it('programs the examples once and ends with 0, and writes nothing where all is in place', async () => {
    expect(await start('--once')).toBe(0)
    expect(run.syncs.map(({ reason }) => reason)).toEqual(['start'])
    expect(await served('shop/catalogue')).toEqual([
      '10.96.1.4:8000 -> 10.244.0.41:8000',
      '203.0.113.80:8000 -> 10.244.0.41:8000',
    ])
    const { generation } = run.kernel
    expect(await start('--once')).toBe(0)
    expect(run.kernel.generation).toBe(generation)
    expect(run.syncs[1]?.written.commits).toBe(0)
  })

  it('brings an edit to the kernel and leaves everything there when it is stopped', async () => {
    const code = start()
    await until(() => run.syncs.length === 1, 'first sync')
    edit('20-shop.yaml', text => text.replace('[10.244.0.41]', '[10.244.0.99]'))
    await until(() => run.syncs.length === 2, 'second sync')
    expect(await served('shop/catalogue')).toContain('203.0.113.80:8000 -> 10.244.0.99:8000')
    expect(run.syncs[1]?.written.changes).toBeLessThan(10)
    run.stop.abort()
    expect(await code).toBe(0)
    expect(await served('shop/catalogue')).toHaveLength(2)
  })

  it('repairs what somebody else removes, and counts it as damage', async () => {
    void start()
    await until(() => run.syncs.length === 1, 'first sync')
    const intruder = createNftClient({
      transport: run.kernel.open({ processName: 'intruder' }),
      clock: systemClock,
    })
    await intruder.commit([{ verb: 'delete-table', family: 'ip', table: 'kube-proxy' }])
    await intruder.close()
    await until(
      () => run.logged.some(line => line.includes("repaired foreign changes to kprobe's tables")),
      'healing',
    )
    expect(await served('shop/catalogue')).toHaveLength(2)
  })

  it('applies nothing while a file has never been read', async () => {
    edit('30-edge.json', text => text.slice(0, -10))
    void start()
    await until(() => run.logged.some(line => line.includes('30-edge.json')), 'the complaint')
    expect(run.kernel.generation).toBe(1)
    expect(run.syncs).toEqual([])
  })

  it('ends with 1 when it should sync once and a file cannot be read', async () => {
    edit('30-edge.json', text => text.slice(0, -10))
    expect(await start('--once')).toBe(1)
    expect(run.log).toMatch(/30-edge\.json:\d+/)
    expect(run.log).not.toContain('kprobe waits')
  })

  it('ends with 1 and changes nothing when it should sync once and finds nothing', async () => {
    expect(await start('--once')).toBe(0)
    const { generation } = run.kernel
    for (const name of readdirSync(folder)) rmSync(join(folder, name))
    writeFileSync(join(folder, 'notes.txt'), '')
    expect(await start('--once')).toBe(1)
    expect(run.log).toContain('nothing found: the folder has no *.yaml, *.yml or *.json file')
    expect(run.kernel.generation).toBe(generation)
  })

  it('ends with 1 when it should sync once and the kernel refuses a Service', async () => {
    run.kernel.forced.push({ matches: message => message.type === 0x0a0c, code: 'EINVAL' })
    expect(await start('--once')).toBe(1)
  })

  it('ends with 1 each time when the mode does not support a Service, also with nothing to write', async () => {
    for (const name of readdirSync(folder)) rmSync(join(folder, name))
    // One more endpoint than a port with session affinity can have.
    const endpoints = Array.from({ length: 8_193 }, (_, i) => `10.244.${i >> 8}.${i & 255}`)
    const items = serviceOf('many', { ip: '10.96.9.9', endpoints, affinityS: 60 })
    writeFileSync(join(folder, 'many.json'), JSON.stringify({ kind: 'List', apiVersion: 'v1', items }))
    for (const round of [1, 2]) {
      expect(await start('--once')).toBe(1)
      expect(run.logged.filter(line => line.includes('skipped: not supported'))).toHaveLength(round)
    }
  })

  it('plans and writes nothing with --backend=dry-run', async () => {
    lock = { kind: 'busy', holder: 'pid 1' }
    expect(await start('--once', '--backend=dry-run')).toBe(0)
    expect([run.planned, run.kernel.generation]).toEqual([1, 1])
  })

  it('keeps its plane when none can be opened for a new configuration, and makes up for it at the next', async () => {
    void start()
    await until(() => run.syncs.length > 0, 'first sync')
    isBroken = true
    await run.reconfigure?.(configOf('--masquerade-all'))
    isBroken = false
    expect(run.log).toContain('no descriptor is left')
    edit('20-shop.yaml', text => text.replace('[10.244.0.41]', '[10.244.0.99]'))
    await until(() => run.syncs.length > 1, 'the edit')
    const { generation } = run.kernel
    await run.reconfigure?.(configOf('--masquerade-all', '--sync-period=5m'))
    await until(() => run.kernel.generation > generation, 'the new rules')
  })

  it('reads its last numbers while the parts are there that they are read from', async () => {
    void start('--connection-metrics-max=1000')
    await until(() => run.syncs.length > 0, 'first sync')
    run.stop.abort()
    expect(await run.running).toBe(0)
    const words = run.log
    expect(words).toContain(
      'metric=kubernetes_feature_enabled labels="name=AllowServiceExternalIPs,stage=" value=1\n',
    )
    expect(words).not.toContain('cannot read connection counters')
  })

  it.each([
    [[], /another kprobe runs.*pid 4711/, 'kprobe/kube-proxy'],
    [
      ['--service-proxy-name=mesh'],
      /another kprobe with this --service-proxy-name runs.*pid 4711/,
      'kprobe/kube-proxy/mesh',
    ],
  ])('ends with 1 and names the other instance when there is one: %j', async (flags, text, name) => {
    lock = { kind: 'busy', holder: 'pid 4711' }
    expect(await start(...flags)).toBe(1)
    expect(run.log).toMatch(text)
    expect([locks, run.kernel.generation]).toEqual([[name], 1])
  })

  it('programs tables of its own under a name, and nothing else', async () => {
    expect(await start('--once', '--service-proxy-name=example-mesh')).toBe(0)
    expect(await served('shop/catalogue')).toEqual([])
    const client = createNftClient({ transport: run.kernel.open(), clock: systemClock })
    const places = ['kube-proxy', 'kube-proxy-example-mesh'].map(name => ({ family: 'ip' as const, name }))
    const { tables } = (await client.list(places)).ruleset
    await client.close()
    expect(tables.map(({ name }) => name)).toEqual(['kube-proxy-example-mesh'])
    expect(new Set(kernelRows(tables).map(({ service }) => service.split(':')[0])).size).toBe(1)
  })

  it('is not eligible while its files hold Nodes of other names only', async () => {
    const node = (name: string) => `apiVersion: v1\nkind: Node\nmetadata: {name: ${name}}\n`
    const healthz = () => {
      logState()
      return run.logged
        .join('')
        .match(/healthz=\d+/g)
        ?.at(-1)
    }
    const answers = (code: number) => until(() => healthz() === `healthz=${code}`, `/healthz ${code}`)
    writeFileSync(join(folder, '40-node.yaml'), node('other'))
    void start('--hostname-override=missing')
    await until(() => run.syncs.length === 1, 'first sync')
    await answers(503)
    for (const file of readdirSync(folder))
      if (readFileSync(join(folder, file), 'utf8').includes('kind: Node'))
        writeFileSync(join(folder, file), '# none\n')
    await answers(200)
    writeFileSync(join(folder, '40-node.yaml'), node('other'))
    await answers(503)
    writeFileSync(join(folder, '40-node.yaml'), node('missing'))
    await answers(200)
  })

  it('logs what it refuses, and the rest goes in', async () => {
    edit('20-shop.yaml', text => text.replace('[203.0.113.80]', '[203.0.113.80, 127.0.0.1]'))
    expect(await start('--once')).toBe(0)
    expect(run.logged.filter(line => line.includes('127.0.0.1') && line.startsWith('W'))).toHaveLength(1)
    expect(await served('shop/catalogue')).toHaveLength(2)
  })

  it('says which privilege it lacks when it may not speak with the kernel', async () => {
    isForbidden = true
    expect(await start()).toBe(1)
    expect(run.log).toMatch(/cannot open sockets to the kernel.*CAP_NET_ADMIN/)
  })

  it('ends at once when told to stop before it began', async () => {
    run.stop.abort()
    expect(await start()).toBe(0)
    expect(run.kernel.generation).toBe(1)
  })
})

describe('another mode', () => {
  it('that the kernel does not have changes nothing, and Services follow as before', async () => {
    void start()
    await until(() => run.syncs.length > 0, 'the first sync')
    await run.reconfigure?.(configOf('--proxy-mode=ipvs'))
    expect(run.log).toMatch(/cannot apply the whole new configuration.*no generic netlink here/)
    expect(tuned).toEqual(['nftables'])
    edit('20-shop.yaml', text => text.replaceAll(/10\.96\.1\.1\b/g, '10.96.1.77'))
    const moved = () =>
      run.syncs.at(-1)?.table.services.get('shop/cart')?.clusterIps.includes('\x0a\x60\x01\x4d')
    await until(() => moved() === true, 'a sync after the change')
    expect((await served('shop/cart:http')).join()).toContain('10.96.1.77')
  })

  it('that cannot be opened goes on retiring', async () => {
    const client = createNftClient({ transport: run.kernel.open(), clock: systemClock })
    await client.commit([
      { verb: 'add-table', family: 'ip', table: 'kube-proxy-ipvs', flags: 0, comment: undefined },
    ])
    await client.close()
    const tries = () => run.log.match(/cannot remove leftovers of this proxy mode/g)?.length
    void start()
    await until(() => tries() === 1, 'the retirement')
    await run.reconfigure?.(configOf('--proxy-mode=ipvs'))
    await until(() => tries() === 2, 'the retirement once more')
  })

  it('that the kernel does not have ends a daemon that starts', async () => {
    expect(await start('--proxy-mode=ipvs')).toBe(1)
    expect(run.log).toContain('cannot open sockets to the kernel')
  })
})
