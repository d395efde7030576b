import { execFileSync } from 'node:child_process'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import { GenerationWatch } from '../../src/kernel/nft/dump.ts'
import { type ForeignCommit, type ForeignCommits, watchForeignCommits } from '../../src/kernel/nft/monitor.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import type { Transport } from '../../src/netlink/transport.ts'
import { patientMs } from '../support/patience.ts'
import { NOTHING, plan, WHOLE } from '../support/whole-ruleset.ts'

let client: NftClient
let ears: Transport
let watch: ForeignCommits
let commits: ForeignCommit[]
let overruns: Error[]

beforeEach(() => {
  execFileSync('nft', ['flush', 'ruleset'])
  commits = []
  overruns = []
  const mouth = openNetlink({ protocol: NETLINK_NETFILTER })
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

it('says that the generation is not the expected one, and nothing while it is', async () => {
  let calls = 0
  const watch = GenerationWatch.open(openNetlink({ protocol: NETLINK_NETFILTER }), 5, () => calls++)
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
  try {
    await speaks()
    await isSilent()
    execFileSync('nft', ['add', 'table', 'ip', 'foreign'])
    await speaks()
    await isSilent()
    await client.commit(plan(NOTHING, WHOLE))
    await speaks()
    await isSilent()
  } finally {
    watch?.stop()
  }
})
