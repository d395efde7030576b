import { describe, expect, test } from 'vitest'
import { finish, systemClock } from '../../../../src/base/clock.ts'
import { u32be } from '../../../../src/base/octets.ts'
import { createNftClient } from '../../../../src/kernel/nft/client.ts'
import { encodeBatch } from '../../../../src/kernel/nft/encode.ts'
import type { Element } from '../../../../src/kernel/nft/state.ts'
import { type Operation, splitBatch } from '../../../../src/kernel/nft/transaction.ts'
import { compiledOf } from '../../../support/compiled.ts'
import { FakeKernel } from '../../../support/fake-kernel/kernel.ts'
import { FaultyTransport, messagesIn } from '../../../support/faulty-transport.ts'
import { columns } from '../../../support/owned.ts'
import { IS_QUICK } from '../../../support/runs.ts'
import { declare } from '../../../support/whole-ruleset.ts'

const TARGET = { family: 'ip', table: 'kube-proxy' } as const
const SET = declare('cluster-ips', { keyType: 7, size: 8192 })
const ELEMENTS = 5_000
const LIMIT = 32 << 10

const table: readonly Operation[] = [
  { ...TARGET, verb: 'add-table', flags: 0, comment: undefined },
  { ...TARGET, verb: 'add-set', set: SET },
]

function load(count: number): readonly Operation[] {
  const elements = Array.from(
    { length: count },
    (_, i): Element => ({ set: SET.name, key: u32be(i), data: undefined, comment: '' }),
  )
  return [
    ...table,
    {
      ...TARGET,
      verb: 'add-elements',
      set: SET,
      ...columns(elements.map(element => ({ element, group: 'g' }))),
    },
  ]
}

function bytesOf(count: number, elementListBytesMax = 4_096): Uint8Array {
  return finish(encodeBatch(load(count), { firstSequence: 1, generation: 7, elementListBytesMax })).bytes
}

const nothing = () => false

describe('a batch that is longer than the socket takes', () => {
  test('stays whole when it is not', () => {
    const bytes = bytesOf(100)
    expect(splitBatch(bytes, bytes.length, nothing)).toEqual([bytes])
  })

  test('becomes parts within the limit that carry the same messages in the same order', () => {
    const bytes = bytesOf(ELEMENTS)
    const parts = splitBatch(bytes, 8_192, nothing)
    expect(parts.length).toBeGreaterThan(2)
    for (const part of parts) expect(part.length).toBeLessThanOrEqual(8_192)
    expect(parts.flatMap(part => sequences(part).slice(1, -1))).toEqual(sequences(bytes).slice(1, -1))
  })

  test('names the generation in its first part only, and asks for an answer to the last message of each', () => {
    const parts = splitBatch(bytesOf(ELEMENTS), 8_192, nothing)
    expect(parts.map(part => new DataView(part.buffer, part.byteOffset).getUint32(0, true))).toEqual([
      28,
      ...parts.slice(1).map(() => 20),
    ])
    for (const part of parts) expect((messagesIn(part).at(-2)?.flags ?? 0) & 4).toBe(4)
  })

  test('names the generation that the parts before lead to where a message is bound to it', () => {
    const parts = splitBatch(bytesOf(ELEMENTS), 8_192, message => message === 9 || message === 15)
    const named = parts.map(part => generationIn(part))
    const bound = named.flatMap((generation, i) => (generation === undefined ? [] : [[i, generation]]))
    const carries = (message: number) => (part: Uint8Array) =>
      sequences(part)
        .slice(1, -1)
        .includes(1 + message)
    const places = [9, 15].map(message => parts.findIndex(carries(message)))
    expect(places[0]).toBeGreaterThan(0)
    expect(places[1]).toBeGreaterThan(places[0] ?? 0)
    expect(bound).toEqual([0, ...places].map(i => [i, 7 + i]))
    for (const part of parts) expect(part.length).toBeLessThanOrEqual(8_192)
  })

  test.skipIf(IS_QUICK)('deletes no rule by a number that may be another rule’s by then', async () => {
    const kernel = new FakeKernel()
    let parts = 0
    const beforePoolSend = async (): Promise<void> => {
      if (++parts !== 2) return
      const theirs = [1, 2, 3, 4].map(n => rule(`theirs ${n}`))
      await other.commit([{ ...TARGET, verb: 'delete-table' }, ...table, chain, ...theirs])
    }
    const socket = new FaultyTransport(kernel.open({ sendBytesMax: 100 << 10 }), { beforePoolSend })
    const client = createNftClient({ transport: socket, clock: systemClock })
    const other = createNftClient({ transport: kernel.open(), clock: systemClock })
    const chain: Operation = {
      ...TARGET,
      verb: 'add-chain',
      chain: { name: 'a', hook: undefined, rules: [] },
    }
    const rule = (text: string): Operation => {
      const info = text.padEnd(256, '\0')
      const compiled = compiledOf([{ kind: 'match', name: 'comment', revision: 0, info }])
      const value = { compiled, protocol: 0, protocolInverted: false }
      return { ...TARGET, verb: 'add-rule', chain: 'a', rule: value }
    }
    await client.commit([...table, chain, rule('ours')])
    const [{ handle } = { handle: 0n }] = await client.ruleCounters({ ...TARGET, chain: 'a' })
    const others = Array.from({ length: 800 }, (_, i) => rule(`number ${i}`))
    const deletion: Operation = { ...TARGET, verb: 'delete-rule', chain: 'a', handle }
    const generation = client.generation()
    const result = await client.commit([...others, deletion], { generation })
    expect(parts).toBeGreaterThan(2)
    expect(result.outcome).toBe('unknown')
    const { observed } = await client.listChains([TARGET])
    const found = observed.get('ip kube-proxy')?.chains.get('a')?.rules ?? []
    expect(found.some(each => each.handle === handle)).toBe(true)
    expect(found.filter(({ compiled }) => compiled.includes('theirs'))).toHaveLength(4)
  })

  test('ends up complete in the kernel', async () => {
    const kernel = new FakeKernel()
    const client = createNftClient({ transport: kernel.open({ sendBytesMax: LIMIT }), clock: systemClock })
    const result = await client.commit(load(ELEMENTS))
    expect(result).toMatchObject({ outcome: 'committed', foreign: false, failures: [] })
    const { ruleset } = await client.list([{ family: 'ip', name: 'kube-proxy' }])
    expect([...(ruleset.tables[0]?.elements.values() ?? [])].flat()).toHaveLength(ELEMENTS)
  })

  test('has an unknown outcome when a later part is refused, and says what was', async () => {
    const kernel = new FakeKernel()
    const client = createNftClient({ transport: kernel.open({ sendBytesMax: LIMIT }), clock: systemClock })
    let elementMessages = 0
    kernel.forced.push({
      matches: message => (message.type & 255) === 12 && ++elementMessages === 2,
      code: 'ENOMEM',
    })
    const result = await client.commit(load(ELEMENTS))
    expect(result.outcome).toBe('unknown')
    expect(result.failures[0]?.error.message).toContain('ENOMEM')
  })
})

/** NFNL_BATCH_GENID of its begin. */
function generationIn(batch: Uint8Array): number | undefined {
  const view = new DataView(batch.buffer, batch.byteOffset)
  return view.getUint32(0, true) > 20 ? view.getUint32(24) : undefined
}

function sequences(batch: Uint8Array): number[] {
  return messagesIn(batch).map(({ sequence }) => sequence)
}
