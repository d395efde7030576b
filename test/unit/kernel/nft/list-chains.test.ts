import { describe, expect, it } from 'vitest'
import { systemClock } from '../../../../src/base/clock.ts'
import { createNftClient } from '../../../../src/kernel/nft/client.ts'
import type { Operation } from '../../../../src/kernel/nft/transaction.ts'
import { compiledOf } from '../../../support/compiled.ts'
import { FakeKernel } from '../../../support/fake-kernel/kernel.ts'
import { FaultyTransport } from '../../../support/faulty-transport.ts'
import { IS_QUICK } from '../../../support/runs.ts'

const NAT = { family: 'ip', table: 'nat' } as const
const RULES = 400

function rule(verb: 'add-rule' | 'insert-rule', chain: string, text: string): Operation {
  const info = text.padEnd(256, '\0')
  const compiled = compiledOf([{ kind: 'match', name: 'comment', revision: 0, info }])
  return { ...NAT, verb, chain, rule: { compiled, protocol: 0, protocolInverted: false } }
}

function chain(name: string): Operation {
  return { ...NAT, verb: 'add-chain', chain: { name, hook: undefined, rules: [] } }
}

/**
 * A client of a kernel with a table of 400 rules in some chains, and somebody else who commits at each datagram that the
 * client receives while `meddling` says so.
 */
async function start(chains: readonly string[], meddle: Operation) {
  const kernel = new FakeKernel()
  const other = createNftClient({ transport: kernel.open(), clock: systemClock })
  const state = { meddling: 0, busy: false }
  const faults = {
    onReceive: (datagram: Uint8Array) => {
      if (state.meddling > 0 && !state.busy) {
        state.meddling--
        state.busy = true
        void other.commit([meddle]).finally(() => {
          state.busy = false
        })
      }
      return datagram
    },
  }
  const transport = new FaultyTransport(kernel.open(), faults)
  const client = createNftClient({ transport, clock: systemClock })
  const rules = Array.from({ length: RULES }, (_, i) =>
    rule('add-rule', chains[i % chains.length] ?? '', `${i}`),
  )
  const table: Operation = { ...NAT, verb: 'add-table', flags: 0, comment: undefined }
  expect(await client.commit([table, ...chains.map(chain), ...rules])).toMatchObject({ outcome: 'committed' })
  return { client, other, state }
}

const SHAPES = [
  ['a long chain', ['ONE']],
  ['many chains', Array.from({ length: 200 }, (_, i) => `C${i}`)],
] as const

describe.each(SHAPES)('a table of %s that others write to', (_words, chains) => {
  const first = chains[0]

  it('is read again when somebody committed meanwhile', async () => {
    const { client, state } = await start(chains, rule('insert-rule', first, 'foreign'))
    state.meddling = 2
    const { observed, unsettled, generation } = await client.listChains([NAT])
    expect(unsettled).toBe(false)
    expect(generation).toBe(client.generation())
    expect(state.meddling).toBe(0)
    const found = [...(observed.get('ip nat')?.chains.values() ?? [])].flatMap(({ rules }) => rules)
    expect(found).toHaveLength(RULES + 2)
  })

  it.skipIf(IS_QUICK)('is unsettled when somebody always commits, and has no rule twice', async () => {
    const { client, state } = await start(chains, rule('insert-rule', first, 'foreign'))
    const before = client.generation()
    state.meddling = Number.POSITIVE_INFINITY
    const { observed, unsettled, generation } = await client.listChains([NAT])
    state.meddling = 0
    expect(unsettled).toBe(true)
    expect(generation).toBeGreaterThan(before)
    expect(generation).toBeLessThanOrEqual(client.generation())
    const found = [...(observed.get('ip nat')?.chains.values() ?? [])].flatMap(({ rules }) => rules)
    expect(found.length).toBeGreaterThanOrEqual(RULES)
    expect(new Set(found.map(({ handle }) => handle)).size).toBe(found.length)
  })

  it('is gone when somebody took it away', async () => {
    const { client, state } = await start(chains, { ...NAT, verb: 'delete-table' })
    state.meddling = 1
    expect((await client.listChains([NAT])).observed).toEqual(new Map())
  })
})
