import { afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import { FaultyTransport, messagesIn, type TransportFaults } from '../support/faulty-transport.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { tried } from '../support/runs.ts'
import { nft, openNetfilter } from './kernel.ts'
import { tell } from './story.ts'

const TABLES = [{ family: 'ip', name: 'kube-proxy' }] as const
const NLM_F_DUMP_INTR = 0x10
/** What nft can send at once in a namespace whose send buffers are bounded. */
const PER_COMMIT = 300

describe('dumps of the kernel', () => {
  const faults: TransportFaults = {}
  let client: NftClient

  beforeEach(() => {
    freshNetns()
    faults.onReceive = undefined
    client = createNftClient({ transport: new FaultyTransport(openNetfilter(), faults), clock: systemClock })
  })

  afterEach(() => client.close())

  /** Runs something in the middle of dumps, so many times: after every 20th datagram of elements, chains or rules. */
  function disturb(times: number, run: (time: number) => void, every = 20): { readonly torn: () => number } {
    let datagrams = 0
    let done = 0
    let torn = 0
    faults.onReceive = datagram => {
      if (messagesIn(datagram).some(({ flags }) => (flags & NLM_F_DUMP_INTR) !== 0)) torn++
      if (datagram.length > 2_000 && ++datagrams % every === 0 && done < times) run(done++)
      return datagram
    }
    return { torn: () => torn }
  }

  /** A set of so many elements, from 10.0.0.0 on. */
  function largeSet(count: number): void {
    nft('table ip kube-proxy { set cluster-ips { type ipv4_addr; size 131072; }; }')
    for (let at = 0; at < count; at += PER_COMMIT) {
      const part = Array.from({ length: PER_COMMIT }, (_, i) => at + i)
      const addresses = part.map(i => `10.${i >> 16}.${(i >> 8) & 255}.${i & 255}`)
      nft(`add element ip kube-proxy cluster-ips { ${addresses.join()} }`)
    }
  }

  async function keys(): Promise<readonly string[]> {
    const [table] = (await client.list(TABLES)).ruleset.tables
    return [...(table?.elements.values() ?? [])].flat().map(({ key }) => key)
  }

  it('F52: 60,000 elements that change in the middle of their dump are listed as they are at its end', async () => {
    largeSet(60_000)
    disturb(3, time =>
      nft(`
        delete element ip kube-proxy cluster-ips { 10.0.100.${time} }
        add element ip kube-proxy cluster-ips { 10.9.9.${time} }
      `),
    )
    const found = await keys()
    expect(found).toHaveLength(60_000)
    expect(new Set(found).size).toBe(60_000)
    for (const time of [0, 1, 2]) {
      expect(found.includes(String.fromCharCode(10, 9, 9, time))).toBe(true)
      expect(found.includes(String.fromCharCode(10, 0, 100, time))).toBe(false)
    }
  })

  it('F52: with another table changing in every dump, ours is listed whole, and said to be unsettled', async () => {
    largeSet(15_000)
    nft('table ip other { set s { type ipv4_addr; }; }')
    disturb(
      Number.POSITIVE_INFINITY,
      time => nft(`${time % 2 === 0 ? 'add' : 'delete'} element ip other s { 10.0.0.1 }`),
      5,
    )
    const listing = await client.list(TABLES)
    expect(listing.unsettled).toBe(true)
    const found = [...(listing.ruleset.tables[0]?.elements.values() ?? [])].flat()
    expect(new Set(found.map(({ key }) => key)).size).toBe(15_000)
  })

  /** Chains of two rules each. */
  function manyChains(count: number): void {
    for (let at = 0; at < count; at += PER_COMMIT) {
      const part = Array.from({ length: PER_COMMIT }, (_, i) => at + i)
      const chains = part.map(i => `chain c${i} { counter; meta mark ${i}; }`)
      nft(`table ip kube-proxy {\n${chains.join('\n')}\n}`)
    }
  }

  async function chainsAndRules(): Promise<readonly number[]> {
    const [table] = (await client.list(TABLES)).ruleset.tables
    const chains = [...(table?.chains.values() ?? [])]
    return [chains.length, chains.flatMap(({ rules }) => rules).length]
  }

  it('F53: dumps that the kernel calls interrupted are repeated until they are whole', async () => {
    manyChains(6_000)
    const { torn } = disturb(5, time => nft(`add table ip other${time}; delete table ip other${time}`))
    expect(await chainsAndRules()).toEqual([6_000, 12_000])
    expect(torn()).toBeGreaterThan(2)
  })

  it('F53: dumps that are always interrupted end in an error, and never as if nothing were there', async () => {
    manyChains(2_000)
    const churn = (time: number) => nft(`add table ip other${time}; delete table ip other${time}`)
    disturb(Number.POSITIVE_INFINITY, churn, 4)
    await expect(client.list(TABLES)).rejects.toMatchObject({
      code: 'EAGAIN',
      message: expect.stringContaining('the ruleset changed during each of 8 attempts'),
    })
  })
})

/** Header of a message in front of its payload, and the payload. */
function edited(datagram: Uint8Array, edit: (bytes: Buffer, at: number) => void): Uint8Array {
  const bytes = Buffer.from(datagram)
  for (const { start } of messagesIn(datagram)) edit(bytes, start)
  return bytes
}

/** Attributes of this type within each other, so deep. */
function nested(depth: number, type: number): Buffer {
  const bytes = Buffer.alloc(4 * depth)
  for (let at = 0; at < bytes.length; at += 4) {
    bytes.writeUInt16LE(bytes.length - at, at)
    bytes.writeUInt16LE(0x8000 | type, at + 2)
  }
  return bytes
}

/** The last message of a datagram with bytes appended to it. */
function appended(datagram: Uint8Array, extra: Buffer): Uint8Array {
  const last = messagesIn(datagram).at(-1)
  if (last === undefined) return datagram
  const bytes = Buffer.concat([datagram.subarray(0, (last.end + 3) & ~3), extra])
  bytes.writeUInt32LE(bytes.length - last.start, last.start)
  return bytes
}

/** The first attribute of each message given a payload of another kind, of the same length. */
function scrambled(datagram: Uint8Array, seed: number): Uint8Array {
  let state = seed
  return edited(datagram, (bytes, start) => {
    const end = Math.min(start + bytes.readUInt32LE(start), bytes.length)
    for (let at = start + 20; at < end; at++) {
      state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
      bytes[at] = state >>> 24
    }
  })
}

type Mutation = (datagram: Uint8Array) => Uint8Array

const BROKEN: readonly (readonly [string, Mutation])[] = [
  ['cut in half', datagram => datagram.slice(0, datagram.length >> 1)],
  ['cut to 10 bytes', datagram => datagram.slice(0, 10)],
  ['empty', () => new Uint8Array(0)],
  ['of a length that is not aligned', datagram => datagram.slice(0, -1)],
  ['longer than they are', datagram => edited(datagram, (bytes, at) => bytes.writeUInt32LE(0x7fff_ffff, at))],
  ['of length 0', datagram => edited(datagram, (bytes, at) => bytes.writeUInt32LE(0, at))],
  ['of length 16', datagram => edited(datagram, (bytes, at) => bytes.writeUInt32LE(16, at))],
  [
    'of another sequence number',
    datagram => edited(datagram, (bytes, at) => bytes.writeUInt32LE(77, at + 8)),
  ],
  ['of another type', datagram => edited(datagram, (bytes, at) => bytes.writeUInt16LE(0x1234, at + 4))],
  ['scrambled', datagram => scrambled(datagram, 0x5eed)],
  ['scrambled otherwise', datagram => scrambled(datagram, 0xbeef)],
  [
    'padded with an attribute cut off',
    datagram => appended(datagram, Buffer.from([40, 0, 1, 0, 1, 2, 3, 4])),
  ],
]

const STRANGE: readonly (readonly [string, Mutation])[] = [
  ['for another port', datagram => edited(datagram, (bytes, at) => bytes.writeUInt32LE(4711, at + 12))],
  ['with unknown attributes', datagram => appended(datagram, Buffer.from([8, 0, 0xee, 0x03, 1, 2, 3, 4]))],
  ['with unknown attributes nested 100 deep', datagram => appended(datagram, nested(100, 0x3ee))],
]

/** Answers after which a story takes no other turn. */
async function count(): Promise<number> {
  let answers = 0
  await tell({
    onReceive: datagram => {
      answers++
      return datagram
    },
  })
  return answers
}

describe('answers', () => {
  let answers: number

  beforeAll(async () => {
    answers = await count()
  })

  const broken = BROKEN.map(([words, mutate], index) => [words, mutate, index] as const)
  it.each(broken)('F59: %s, whichever it is, do no harm that lasts', async (_, mutate, index) => {
    for (const when of tried(answers, index, 1 / 24)) {
      let calls = 0
      const onReceive = (datagram: Uint8Array) => (++calls === when ? mutate(datagram) : datagram)
      const story = await tell({ onReceive })
      expect(story.differences, `answer ${when}`).toEqual([])
      for (const { error } of story.rig.of('failed')) expect(error.message).toMatch(/E[A-Z]{3,}|unknown/)
    }
  })

  it.each(STRANGE)('F59: %s are understood all the same', async (_, mutate) => {
    const story = await tell({ onReceive: mutate })
    expect(story.differences).toEqual([])
    expect(story.rig.of('failed')).toEqual([])
  })
})
