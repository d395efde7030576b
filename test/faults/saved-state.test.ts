import { copyFileSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import type { Daemon } from '../support/daemon.ts'
import { eventually } from '../support/patience.ts'
import { ask, Cluster, type ClusterOptions, METRICS_PORT, metric } from './cluster.ts'
import { Removals } from './cluster-removals.ts'
import { differences, frontendNames, generation, listRuleset, nft } from './kernel.ts'
import { clusterIp, nameOf, service, services } from './objects.ts'

const ENDPOINTS = ['10.0.1.1:8080', '10.0.1.2:8080']
/** The Service that clients use. */
const USED = service(1, { endpoints: ENDPOINTS })
const SERVES = 'kprobe serves the saved state until it does'
const HELD_BACK = 'kprobe changes nothing until the API server answers'
const REFUSED = 'ignoring the saved state'

const cluster = Cluster.ofEachTest()

const open = (options: ClusterOptions = {}): Promise<void> =>
  cluster.open({ ...options, objects: [...services(8), ...USED] })

const folder = () => cluster.file('state')
const file = () => `${folder()}/kprobe.state`
const savedMs = () => statSync(file(), { throwIfNoEntry: false })?.mtimeMs ?? 0

function daemon(...args: readonly string[]): Daemon {
  return cluster.daemon({ args: [`--state-dir=${folder()}`, ...args] })
}

/** A daemon that has programmed what the server has, and has ended since: its state is on disk. */
async function ranBefore(...args: readonly string[]): Promise<void> {
  const earlier = savedMs()
  const before = daemon(...args)
  await before.synced()
  // A busy machine may not write within the time that the end of a daemon gives the last save.
  await eventually(() => savedMs() > earlier)
  await before.stop()
}

/** What a reboot leaves of the kernel's state. */
function reboot(): void {
  nft('flush ruleset')
}

/** What is in the kernel, whatever the order, without the ports that the kernel gave to relays and the record of the mode. */
function rules(): readonly string[] {
  return listRuleset()
    .split('\n')
    .filter(line => !line.includes('iptables mode of kprobe'))
    .map(line => line.replace(/\b(3[2-9]|[45]\d|6[0-5])\d{3}\b/g, 'PORT'))
    .sort()
}

/** Commits so far that changed something, as the log has them. */
function commits(its: Daemon): readonly unknown[] {
  return its.said('committed').map(({ changes }) => changes)
}

describe('a reboot while the API server is away', () => {
  it('F160: the saved state serves packets, is marked stale, and becomes the first list by one difference', async () => {
    await open({ packets: true })
    await ranBefore()
    reboot()
    await cluster.server.refuse()
    const servers = await cluster.lab.servers(ENDPOINTS)
    const stale = daemon()
    await stale.logged(SERVES)
    await stale.synced()
    expect(await differences(cluster.objects)).toEqual([])
    const client = cluster.lab.client({
      from: 'outside',
      source: '203.0.113.5',
      destination: clusterIp(1),
      port: 80,
      rate: 100,
    })
    const health = await ask('/healthz')
    expect([health.code, JSON.parse(health.body).staleSeconds]).toEqual([200, expect.any(Number)])
    expect((await ask('/statusz', METRICS_PORT)).body).toContain('Stale: the saved state is served')
    expect(await metric('kprobe_saved_state_served')).toBe(1)
    expect(await metric('kprobe_saved_state_stale_seconds')).toBeGreaterThan(0)
    await stale.caughtUp()
    const before = commits(stale).length
    const removals = await Removals.begin()
    cluster.put(...service(20))
    cluster.remove(...service(5))
    await cluster.server.listen()
    await cluster.converged()
    await stale.logged('its lists replace the saved state')
    expect(await client.stop()).toMatchObject({ refused: 0, timeouts: 0, other: 0 })
    await servers.close()
    await stale.caughtUp()
    // One commit for both changes, and one for what leaves later.
    expect(commits(stale).length - before).toBeLessThanOrEqual(2)
    expect(removals.lines.filter(line => !line.includes(nameOf(5)) && line.includes('ns/s'))).toEqual([])
    expect(frontendNames()).toContain(nameOf(20))
    expect(frontendNames()).not.toContain(nameOf(5))
    expect(JSON.parse((await ask('/healthz')).body).staleSeconds).toBeUndefined()
    expect(await metric('kprobe_saved_state_served')).toBe(0)
  })

  it.each(['nftables', 'iptables', 'userspace'])(
    'F160: in %s mode the kernel holds what it held',
    async mode => {
      await open()
      await ranBefore(`--proxy-mode=${mode}`)
      const before = rules()
      reboot()
      await cluster.server.refuse()
      const stale = daemon(`--proxy-mode=${mode}`)
      await stale.logged(SERVES)
      await stale.synced()
      expect(rules()).toEqual(before)
    },
  )

  it('F161: a list that lacks most of the saved Services is read twice before they go', async () => {
    await open()
    cluster.put(...services(20))
    await ranBefore()
    reboot()
    await cluster.server.refuse()
    const stale = daemon()
    await stale.logged(SERVES)
    for (let number = 2; number < 18; number++) cluster.remove(...service(number))
    await cluster.server.listen()
    await cluster.converged()
    expect(await stale.logged('kprobe reads it once more before it removes them')).toHaveLength(1)
  })
})

describe('a restart while the kernel still serves', () => {
  it('F162: a state that is older than the kernel changes nothing, and the list is one difference', async () => {
    await open()
    await ranBefore()
    copyFileSync(file(), `${file()}.old`)
    cluster.put(...service(20))
    cluster.remove(...service(5))
    await ranBefore()
    copyFileSync(`${file()}.old`, file())
    await cluster.server.refuse()
    const before = await generation()
    const held = daemon()
    await held.logged(HELD_BACK)
    expect(await generation()).toBe(before)
    expect(await metric('kprobe_saved_state_served')).toBe(0)
    expect(await ask('/healthz')).toMatchObject({ code: 503 })
    await cluster.server.listen()
    await held.synced()
    expect(await generation()).toBe(before)
    expect(await differences(cluster.objects)).toEqual([])
  })

  it('F162: a state that is what the kernel serves is taken without a write, and the node stays ready', async () => {
    await open()
    await ranBefore()
    await cluster.server.refuse()
    const before = await generation()
    const stale = daemon()
    await stale.logged(SERVES)
    await stale.synced()
    expect(await ask('/healthz')).toMatchObject({ code: 200 })
    expect(await generation()).toBe(before)
    await cluster.server.listen()
    await stale.logged('its lists replace the saved state')
    await cluster.converged()
    expect(await generation()).toBe(before)
  })

  it('F162: what another mode serves stays until the API server answers', async () => {
    await open()
    await ranBefore('--proxy-mode=iptables')
    const before = rules()
    await cluster.server.refuse()
    const held = daemon('--proxy-mode=nftables')
    await held.logged(HELD_BACK)
    expect(rules()).toEqual(before)
  })
})

describe('a file that is not the state of this node', () => {
  // Of any other shape: test/unit/daemon/saved.
  it.each<[string, string, (bytes: Buffer) => Buffer]>([
    ['torn', 'cut', bytes => bytes.subarray(0, Math.floor(bytes.length / 2))],
    ['too-large', 'too large', bytes => Buffer.concat([bytes, Buffer.alloc(64 << 20)])],
  ])(
    'F163: %s: a file %s is refused by name, and the first list serves and replaces it',
    async (reason, _, spoil) => {
      await open()
      await ranBefore()
      writeFileSync(file(), spoil(readFileSync(file())))
      reboot()
      await cluster.server.refuse()
      const refusing = daemon()
      expect(await refusing.logged(REFUSED)).toMatchObject([{ level: 'error', reason, file: file() }])
      expect(listRuleset()).not.toContain('frontends')
      expect(await metric('kprobe_saved_state_refused_total', `reason="${reason}"`)).toBe(1)
      await cluster.server.listen()
      await refusing.synced()
      await cluster.converged()
      await refusing.stop()
      expect(refusing.said(REFUSED)).toHaveLength(1)
      expect(readFileSync(file(), 'utf8')).toMatch(/^\{"kprobe":"saved-state","version":1,/)
    },
  )

  it('F163: the state of another node is refused', async () => {
    await open()
    await ranBefore()
    const text = readFileSync(file(), 'utf8')
    expect(text).toContain('"server":"https://')
    await cluster.server.refuse()
    reboot()
    const other = daemon('--hostname-override=node-2')
    expect(await other.logged(REFUSED)).toMatchObject([{ reason: 'node' }])
  })
})

describe('a write that is cut off', () => {
  it.each(['openat', 'write', 'fsync', 'rename'])(
    'F164: at %s: the file is whole, old or new',
    async call => {
      await open()
      await ranBefore()
      const old = readFileSync(file(), 'utf8')
      cluster.put(...service(30))
      // The call that matters is the one about the draft; the process ends in the middle of it.
      const inject = `inject=${call === 'write' ? 'write,pwrite64,writev' : call}:signal=SIGKILL:when=1`
      const cut = cluster.daemon({
        args: [`--state-dir=${folder()}`],
        wrapper: ['strace', '-f', '-qq', '-o', '/dev/null', '-P', `${file()}.new`, '-e', inject],
      })
      await eventually(() => cut.hasExited)
      const after = readFileSync(file(), 'utf8')
      expect(after === old || after.includes('"ns/s30"')).toBe(true)
      await cluster.server.refuse()
      reboot()
      const next = daemon()
      await next.logged(SERVES)
      await next.synced()
      await next.caughtUp()
      expect(next.said(REFUSED)).toEqual([])
    },
  )
})
