import { expect, it } from 'vitest'
import type { Daemon } from '../support/daemon.ts'
import { FaultyTransport } from '../support/faulty-transport.ts'
import { eventually, patientMs } from '../support/patience.ts'
import { Rig } from '../support/rig.ts'
import { runs } from '../support/runs.ts'
import { FileSite, SOON_MS } from './file-site.ts'
import {
  Committer,
  KUBE_PROXY_TABLE,
  OTHER_FIREWALLS,
  OUR_NAMES_TAKEN,
  RELOAD_OTHERS,
} from './foreign-rules.ts'
import {
  differences,
  frontendNames,
  generation,
  listRuleset,
  listTable,
  nft,
  openNetfilter,
} from './kernel.ts'
import { clusterIp, services } from './objects.ts'

const site = FileSite.ofEachTest()

const running = (count: number): Promise<Daemon> => site.running(services(count))

/** Resolves when the kernel holds again what it should. */
async function repaired(count: number): Promise<void> {
  await eventually(async () => (await differences(services(count))).length === 0)
}

it.each([
  ['a table of kube-proxy itself', KUBE_PROXY_TABLE],
  ['our names, for other things', OUR_NAMES_TAKEN],
])('F48: %s under our name is replaced in one commit, and other tables stay', async (_, script) => {
  nft(script)
  nft(OTHER_FIREWALLS)
  const others = ['ip nat', 'ip filter', 'inet firewalld'].map(listTable)
  const before = await generation()
  const daemon = await running(3)
  expect(daemon.said('committed')).toHaveLength(1)
  expect(await generation()).toBe(before + 1)
  expect(await differences(services(3))).toEqual([])
  expect(listTable('ip kube-proxy')).not.toMatch(/service-ips|filter-forward|not-ours|policy drop/)
  expect(['ip nat', 'ip filter', 'inet firewalld'].map(listTable)).toEqual(others)
})

it('F61: nft flush ruleset while idle is repaired at once', async () => {
  await running(50)
  const before = listRuleset()
  const tookMs: number[] = []
  for (let round = 0; round < 3; round++) {
    nft('flush ruleset')
    tookMs.push(await eventually(() => listRuleset() === before))
  }
  expect(Math.min(...tookMs)).toBeLessThan(patientMs(SOON_MS))
})

it('F61: nft flush ruleset in the middle of a sync is repaired at its end', async () => {
  const daemon = await running(10)
  const moments = [0, 20, 60, 120]
  for (const [round, delayMs] of moments.entries()) {
    const count = round % 2 === 0 ? 1_500 : 10
    await daemon.caughtUp()
    const commits = daemon.said('committed').length
    site.write(services(count))
    await new Promise(resolve => setTimeout(resolve, delayMs))
    nft('flush ruleset')
    await daemon.logged('committed', commits + 1)
    await eventually(() => isThere(count))
    expect(await differences(services(count))).toEqual([])
  }
})

/** Whether the frontends of so many Services are there, and as many tables as there should be. */
function isThere(count: number): boolean {
  const tables = nft('list tables').match(/kube-proxy/g) ?? []
  return tables.length === 2 && frontendNames().size === count
}

it("F62: reloading and flushing others' tables leaves ours as they are, and us without a commit", async () => {
  nft(OTHER_FIREWALLS)
  const daemon = await running(20)
  const ours = listTable('ip kube-proxy')
  for (let round = 0; round < 10; round++) {
    nft(RELOAD_OTHERS)
    nft('flush table ip nat')
    expect(listTable('ip kube-proxy')).toBe(ours)
    await daemon.caughtUp()
  }
  // Damage that came after is repaired: whatever was to be noticed before has been.
  nft(`delete element ip kube-proxy frontends { ${clusterIp(3)} . tcp . 80 }`)
  await daemon.logged('repaired foreign changes')
  await daemon.caughtUp()
  expect(daemon.said('committed')).toHaveLength(2)
  expect(daemon.said('repaired foreign changes')).toHaveLength(1)
  expect(await differences(services(20))).toEqual([])
})

it('F63: damage to chains, elements, policies and tables of ours is repaired at once', async () => {
  const daemon = await running(10)
  const before = listRuleset().split('\n').sort()
  for (const [index, [what, damage]] of DAMAGES.entries()) {
    nft(damage)
    await repaired(10)
    await daemon.logged('repaired foreign changes', index + 1)
    await daemon.caughtUp()
    expect(daemon.said('committed'), what).toHaveLength(index + 2)
    // A chain that was made anew comes last.
    expect(listRuleset().split('\n').sort(), what).toEqual(before)
  }
})

const DAMAGES = [
  ['an edited chain of ours', 'insert rule ip kube-proxy services ip daddr 172.30.0.0/16 drop'],
  ['a rule gone from a chain of ours', 'flush chain ip kube-proxy nat-postrouting'],
  ['an element gone', `delete element ip kube-proxy frontends { ${clusterIp(3)} . tcp . 80 }`],
  ['an element too many', 'add element ip kube-proxy frontends { 172.30.9.9 . tcp . 80 : 0x00002010 }'],
  ['a policy of drop', 'chain ip kube-proxy early-output { policy drop; }'],
  ['a foreign chain in our table', 'add chain ip6 kube-proxy evil'],
  ['one table gone', 'delete table ip6 kube-proxy'],
] as const

it('F63: when damage recurs, a subscription names the process that does it', async () => {
  const daemon = await running(10)
  const damage = `delete element ip kube-proxy frontends { ${clusterIp(3)} . tcp . 80 }`
  const before = listRuleset()
  for (let round = 0; round < 6; round++) {
    nft(damage)
    await eventually(() => listRuleset() === before)
  }
  const repairs = await daemon.logged('repaired foreign changes', 6)
  expect(repairs.map(({ process }) => process)).toContainEqual(expect.stringMatching(/^nft \(pid \d+\)$/))
})

const FOREIGN = 100_000
const PER_COMMIT = 5_000

/** A table of others with so many elements, of which one has data of a kind that we never use. */
function hugeTable(): void {
  nft('table ip other { map m { type ipv4_addr : verdict; size 262144; }; chain c { counter; }; }')
  for (let at = 0; at < FOREIGN; at += PER_COMMIT) {
    const part = Array.from({ length: PER_COMMIT }, (_, i) => at + i)
    const elements = part.map(i => `10.${i >> 16}.${(i >> 8) & 255}.${i & 255} : jump c`)
    nft(`add element ip other m { ${elements.join()} }`)
  }
  nft(
    'table inet more { set s { type ipv4_addr; flags interval,timeout; elements = { 10.0.0.0/8 timeout 1h }; }; }',
  )
}

/** The best of so many counts. */
const ROUNDS = 12

/** What syncs and looks cost at best: milliseconds of a processor for each, and bytes received. */
async function costs(): Promise<Record<'edit' | 'look' | 'received', number>> {
  let received = 0
  const onReceive = (datagram: Uint8Array) => {
    received += datagram.length
    return datagram
  }
  const rig = new Rig({ transport: new FaultyTransport(openNetfilter(), { onReceive }), driftPollMs: 0 })
  await rig.sync(services(500))
  let [edit, look] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY]
  for (let round = 0; round < ROUNDS; round++) {
    const began = processorMs()
    await rig.sync(services(501 + (round % 2)))
    edit = Math.min(edit, processorMs() - began)
  }
  received = 0
  for (let round = 0; round < ROUNDS; round++) {
    const began = processorMs()
    await rig.client.list([{ family: 'ip', name: 'kube-proxy' }])
    look = Math.min(look, processorMs() - began)
  }
  await rig.close()
  return { edit, look, received }
}

/** Time that this process and the kernel for it have used of processors. */
function processorMs(): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1_000
}

/** Processors that others use as well are slower, by twice and more. Looking at 100,000 elements takes a hundred times as long. */
const DEARER_MAX = 10

it('F64: a foreign table of 100,000 elements makes our syncs and looks no dearer', async () => {
  const alone = await costs()
  hugeTable()
  const beside = await costs()
  expect(beside.received / alone.received).toBeLessThan(1.2)
  expect(beside.edit / alone.edit).toBeLessThan(DEARER_MAX)
  expect(beside.look / alone.look).toBeLessThan(DEARER_MAX)
})

it.each([
  ['a few Services', 20],
  ['thousands of Services', runs(4_000, 1 / 4)],
])('F51: with %s, edits and repairs come through while nft commits 200 times a second', async (_, count) => {
  const daemon = await running(count)
  nft('table ip other { set s { type ipv4_addr; }; }')
  const lines = ['add', 'delete'].map(verb => `${verb} element ip other s { 10.0.0.1 }`)
  const committer = new Committer(lines, 200)
  try {
    await new Promise(resolve => setTimeout(resolve, 500))
    // As the daemon says: a listing by nft may never end while others commit faster than it can list.
    for (const more of [1, 2, 3]) {
      await daemon.loggedAfter('committed', () => site.write(services(count + more)))
    }
    nft(`delete element ip kube-proxy frontends { ${clusterIp(3)} . tcp . 80 }`)
    await daemon.logged('repaired foreign changes')
    await eventually(() => committer.commits > 200, { progress: () => committer.commits })
  } finally {
    await committer.stop()
  }
  await repaired(count + 3)
  await daemon.caughtUp()
  expect(daemon.said('sync failed; retrying')).toEqual([])
})
