import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import { GenerationWatch } from '../../src/kernel/nft/generation-watch.ts'
import { type ForeignCommit, type ForeignCommits, watchForeignCommits } from '../../src/kernel/nft/monitor.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import type { Transport } from '../../src/netlink/transport.ts'
import { FakeClock } from '../support/fake-clock.ts'
import { patientMs } from '../support/patience.ts'
import { NOTHING, plan, WHOLE } from '../support/whole-ruleset.ts'

let client: NftClient
let mouth: Transport
let ears: Transport
let watch: ForeignCommits
let commits: ForeignCommit[]
let overruns: Error[]

beforeEach(() => {
  execFileSync('nft', ['flush', 'ruleset'])
  commits = []
  overruns = []
  mouth = openNetlink({ protocol: NETLINK_NETFILTER })
  client = createNftClient({ transport: mouth, clock: systemClock })
  ears = openNetlink({ protocol: NETLINK_NETFILTER, receiveBufferBytes: 64 * 1024 })
  watch = watchForeignCommits({
    transport: ears,
    ownPortIds: new Set([mouth.portId]),
    onCommit: commit => commits.push(commit),
    onOverrun: error => overruns.push(error),
  })
})

afterEach(async () => {
  watch.stop()
  await Promise.all([client.close(), ears.close()])
  execFileSync('nft', ['flush', 'ruleset'])
})

it('names the process that damages a table of ours, and leaves out our own commits', async () => {
  await client.commit(plan(NOTHING, WHOLE))
  execFileSync('nft', ['delete', 'element', 'ip6', 'kube-proxy', 'members', '{ 0x61616161 }'])
  await vi.waitFor(() => expect(commits).toHaveLength(1), patientMs(20_000))
  expect(commits[0]).toMatchObject({
    processName: 'nft',
    tables: ['ip6 kube-proxy'],
    generation: client.generation(),
  })
  expect(commits[0]?.processId).toBeGreaterThan(0)
  expect(overruns).toEqual([])
})

it('hears nothing more once it is stopped', async () => {
  watch.stop()
  execFileSync('nft', ['add', 'table', 'ip', 'foreign'])
  execFileSync('nft', ['delete', 'table', 'ip', 'foreign'])
  await systemClock.breathe()
  expect(commits).toEqual([])
})

it('says so when there was more than the socket could hold', async () => {
  const marks = Array.from({ length: 5_000 }, (_, mark) => mark).join(', ')
  // Synchronous, so that nobody empties the queue meanwhile.
  const input = `table ip foreign {\n set marks {\n type mark\n elements = { ${marks} }\n }\n}\n`
  execFileSync('nft', ['-f', '-'], { input })
  await vi.waitFor(() => expect(overruns.length).toBeGreaterThan(0), patientMs(20_000))
  expect(overruns[0]).toMatchObject({ code: 'ENOBUFS' })
})

describe('the watch of the generation', () => {
  const clock = new FakeClock()
  let generations: Transport
  let watch: GenerationWatch | undefined
  let calls: number

  const open = (receiveBufferBytes = 64 * 1024) => {
    calls = 0
    generations = openNetlink({ protocol: NETLINK_NETFILTER, receiveBufferBytes })
    watch = GenerationWatch.open({
      transport: generations,
      clock,
      own: mouth.portId,
      everyMs: 5,
      changed: () => calls++,
    })
  }
  beforeEach(() => open())
  afterEach(() => watch?.stop())

  const isSilent = async () => {
    watch?.expect(client.generation())
    const before = calls
    await new Promise(resolve => setTimeout(resolve, 100))
    expect(calls).toBe(before)
  }
  const speaks = async () => {
    const before = calls
    await vi.waitFor(() => expect(calls).toBeGreaterThan(before), patientMs(20_000))
  }
  const foreignCommit = (verb: 'add' | 'delete') => execFileSync('nft', [verb, 'table', 'ip', 'foreign'])
  /** Port ids and groups are columns of this file: group 7 is bit 6. */
  const isSubscribed = () =>
    readFileSync('/proc/net/netlink', 'utf8')
      .split('\n')
      .map(line => line.trim().split(/\s+/))
      .some(([, , portId, groups]) => portId === String(generations.portId) && groups === '00000040')

  it('says that the generation is not the expected one, and nothing while it is', async () => {
    await speaks()
    await isSilent()
    foreignCommit('add')
    await speaks()
    await isSilent()
    await client.commit(plan(NOTHING, WHOLE))
    await speaks()
    await isSilent()
    expect(isSubscribed()).toBe(false)
  })

  it('subscribes after a calm, with a check, and reads again from the next foreign commit on', async () => {
    await speaks()
    await isSilent()
    const before = calls
    await clock.advance(10_000)
    expect([isSubscribed(), calls]).toEqual([true, before + 1])
    await client.commit(plan(NOTHING, WHOLE))
    await isSilent()
    expect(isSubscribed()).toBe(true)
    foreignCommit('add')
    await speaks()
    expect(isSubscribed()).toBe(false)
    await speaks()
    await isSilent()
    foreignCommit('delete')
    await speaks()
    await clock.advance(9_999)
    expect(isSubscribed()).toBe(false)
  })

  it('checks in a calm, too, and stops', async () => {
    await clock.advance(10_000)
    const before = calls
    await clock.advance(60_000)
    expect([isSubscribed(), calls]).toEqual([true, before + 1])
    watch?.stop()
    await clock.advance(60_000)
    expect([isSubscribed(), calls]).toEqual([false, before + 1])
  })

  it('reads again when there was more than the socket could hold, if only of ours', async () => {
    watch?.stop()
    open(1)
    await clock.advance(10_000)
    const before = calls
    await client.commit(plan(NOTHING, WHOLE))
    await vi.waitFor(() => expect(calls).toBeGreaterThan(before), patientMs(20_000))
    expect(isSubscribed()).toBe(false)
    await speaks()
    await isSilent()
  })
})
