import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { systemClock } from '../../../src/base/clock.ts'
import { createNftClient } from '../../../src/kernel/nft/client.ts'
import { diffRulesets } from '../../../src/kernel/nft/diff.ts'
import type { Ruleset } from '../../../src/kernel/nft/state.ts'
import { add, chain, deleteChain, remove, set, table, VERDICT_MAP } from '../../contract/objects.ts'
import { walk } from '../../contract/walk.ts'
import { batch, generationOf, received } from '../../contract/wire.ts'
import { FakeKernel } from '../../support/fake-kernel/kernel.ts'
import { arbitraryRuleset, LATE_SETS } from '../../support/fake-kernel/random-rulesets.ts'
import { canonicalText } from '../../support/fake-kernel/ruleset-model.ts'
import { systemError } from '../../support/fake-kernel/socket.ts'
import { runs } from '../../support/runs.ts'

const TABLES = [
  { family: 'ip', name: 'kube-proxy' },
  { family: 'ip6', name: 'kube-proxy' },
] as const

describe('the kernel in memory', () => {
  test('as Linux 6.1 refuses to delete a chain in the transaction that drops the last reference to it', () => {
    const leads = [table(), chain('c'), set('v', VERDICT_MAP), add('v', { key: 1, to: 'c' })]
    const drops = batch([remove('v', { key: 1 }), deleteChain('c')])
    for (const [old, replies] of [
      [{}, []],
      [{ referencesLinger: true }, ['3 EBUSY @28']],
    ] as const) {
      const socket = new FakeKernel({ old }).open()
      socket.sendSync(batch(leads))
      socket.sendSync(drops)
      expect(received(socket)).toEqual(replies)
    }
  })

  test('as Linux 6.1 does not acknowledge the end of a batch', () => {
    const socket = new FakeKernel({ old: { batchEndIsSilent: true } }).open()
    socket.sendSync(batch([table()], { endFlags: 4 }))
    expect(received(socket)).toEqual([])
  })

  test('forgets elements whose time is over', async () => {
    let nowMs = 0
    const kernel = new FakeKernel({ nowMs: () => nowMs })
    const socket = kernel.open()
    socket.sendSync(batch([table(), set('s', { flags: 16, timeoutMs: 1000 }), add('s', { key: 1 })]))
    nowMs = 999
    socket.sendSync(batch([remove('s', { key: 1 }), add('s', { key: 1 })]))
    expect(received(socket)).toEqual([])
    nowMs = 1999
    socket.sendSync(batch([remove('s', { key: 1 })]))
    expect(received(socket)).toEqual(['2 ENOENT @40'])
  })

  test('refuses what it is told to refuse, and takes the rest of the batch back', () => {
    const kernel = new FakeKernel()
    const socket = kernel.open()
    kernel.forced.push({ matches: message => (message.type & 255) === 3, code: 'ENOMEM' })
    socket.sendSync(batch([table(), chain('c')]))
    expect(received(socket)).toEqual(['3 ENOMEM'])
    kernel.forced.length = 0
    socket.sendSync(batch([chain('c')]))
    expect(received(socket)).toEqual(['2 ENOENT @20'])
  })

  test('lets a test break what is sent, lose what is received, and hold up the pool', async () => {
    const kernel = new FakeKernel()
    const order: string[] = []
    const socket = kernel.open({
      faults: {
        onSend: datagram => {
          if (datagram.length > 1000) throw systemError('sendmsg', 'ENOBUFS')
          return datagram
        },
        onReceive: () => undefined,
        beforeAsyncSend: async () => {
          order.push('held up')
        },
      },
    })
    expect(() => socket.sendSync(new Uint8Array(2000))).toThrow('ENOBUFS')
    await socket.send(batch([table(), deleteChain('nope')]))
    expect(order).toEqual(['held up'])
    expect(received(socket)).toEqual([])
    expect(generationOf(kernel.open())).toBe(1)
  })

  test('undoes a refused batch completely', async () => {
    const kernel = new FakeKernel()
    await fc.assert(
      fc.asyncProperty(arbitraryRuleset, arbitraryRuleset, async (from, to) => {
        kernel.space.tables.clear()
        const client = createNftClient({ transport: kernel.open(), clock: systemClock })
        await client.commit(plan({ tables: [] }, from))
        const before = await client.list(TABLES)
        const broken = { family: 'ip', table: 'kube-proxy', verb: 'flush-chain', chain: 'missing' } as const
        const result = await client.commit([...plan(from, to), broken])
        expect(result.outcome).toBe('refused')
        const after = await client.list(TABLES)
        expect(after.generation).toBe(before.generation)
        expect(canonicalText(after.ruleset)).toBe(canonicalText(before.ruleset))
        await client.close()
      }),
      { numRuns: runs(60) },
    )
  })

  test('is led through random states by differences alone, new or old', async () => {
    const states = fc.array(arbitraryRuleset, { minLength: 1, maxLength: 4 })
    await fc.assert(
      fc.asyncProperty(states, fc.boolean(), async (goals, referencesLinger) => {
        const kernel = new FakeKernel({ old: { referencesLinger } })
        await walk(kernel.open(), goals)
      }),
      { numRuns: runs(60) },
    )
  })
})

function plan(from: Ruleset, to: Ruleset) {
  return diffRulesets(from, to, { lateSets: LATE_SETS }).transaction
}
