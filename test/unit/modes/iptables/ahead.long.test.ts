import { describe, expect, it } from 'vitest'
import { finish, systemClock } from '../../../../src/base/clock.ts'
import { type CommitOptions, type CommitResult, createNftClient } from '../../../../src/kernel/nft/client.ts'
import type { Transaction } from '../../../../src/kernel/nft/transaction.ts'
import { countAhead } from '../../../../src/kernel/xt/scope-commit.ts'
import type { ServiceFrontends } from '../../../../src/model/frontend.ts'
import { IptablesPlane } from '../../../../src/modes/iptables/plane.ts'
import { DEFAULT_IPTABLES_OPTIONS } from '../../../../src/modes/iptables/settings.ts'
import type { IptablesState } from '../../../../src/modes/iptables/state.ts'
import { counterOf, generationOf } from '../../../../src/reconcile/dataplane.ts'
import { FakeKernel } from '../../../support/fake-kernel/kernel.ts'
import { table } from '../../../support/frontends.ts'
import { plainService } from '../../../support/services.ts'

const MANY = Array.from({ length: 1600 }, (_, n) => plainService(n, 1))
const FOREIGN: Transaction = [
  { verb: 'add-table', family: 'ip', table: 'other', flags: 0, comment: undefined },
]

type Commit = (transaction: Transaction, options?: CommitOptions) => Promise<CommitResult>

/** `meddle` gets each commit with its number, counted from 0; those that only look are none. */
function world(meddle: (commit: Commit, nth: number, options?: CommitOptions) => Promise<Commit> | Commit) {
  const kernel = new FakeKernel()
  const client = createNftClient({ transport: kernel.open(), clock: systemClock })
  const other = createNftClient({ transport: kernel.open(), clock: systemClock })
  const results: CommitResult[] = []
  let nth = 0
  const commit: Commit = client.commit.bind(client)
  client.commit = async (transaction, options) => {
    if (transaction.length === 0) return commit(transaction, options)
    const result = await (await meddle(commit, nth++, options))(transaction, options)
    results.push(result)
    return result
  }
  const plane = new IptablesPlane({ client, options: DEFAULT_IPTABLES_OPTIONS })
  const plan = (from: IptablesState, services: readonly ServiceFrontends[]) => {
    const state = finish(plane.render(table(services), { base: from, without: new Set() }))
    return finish(plane.diff(from, state))
  }
  const look = async (services: readonly ServiceFrontends[]) => {
    const { state, generation } = await plane.observe()
    return { plan: plan(state, services), generation }
  }
  return { plane, look, other, results }
}

describe('what nothing leads to yet', () => {
  it('goes ahead in commits of its own, each on the one before, and all else follows', async () => {
    const guards: (CommitOptions | undefined)[] = []
    const { plane, look, results } = world((commit, _, options) => {
      guards.push(options)
      return commit
    })
    const { plan, generation } = await look(MANY)
    const start = counterOf(generation)
    const ahead = countAhead(plan.operations)
    expect(ahead).toBeGreaterThan(plan.operations.length * 0.9)
    const jumps = plan.operations.slice(ahead)
    expect(jumps.every(({ verb }) => verb === 'insert-rule')).toBe(true)
    const receipt = await plane.commit(plan, { generation })
    expect(receipt).toMatchObject({
      outcome: 'committed',
      foreign: false,
      generation: generationOf(start + 3),
    })
    expect(results.map(({ outcome }) => outcome)).toEqual(['committed', 'committed', 'committed'])
    expect(receipt.messages).toBe(results.reduce((sum, { messages }) => sum + messages, 0))
    expect(guards).toEqual([
      { generation: start },
      { follows: expect.any(Promise) },
      { generation: start + 2 },
    ])
    expect((await look(MANY)).plan.empty).toBe(true)
  })

  it('ends with a rule for a chain that is there, and is nothing where it is little', async () => {
    const { look } = world(commit => commit)
    const { operations } = (await look(MANY)).plan
    const known = operations.filter(({ verb }) => verb !== 'add-chain')
    expect(countAhead(known)).toBe(0)
    expect(countAhead(operations.slice(0, 8000))).toBe(0)
    const [first] = known.filter(({ verb }) => verb === 'add-rule')
    if (first === undefined || first.verb !== 'add-rule') throw new Error('there are rules')
    const there = { ...first, chain: 'KUBE-SVC-AAAAAAAAAAAAAAAA' }
    expect(countAhead([...operations.slice(0, 8500), there, ...operations.slice(8500)])).toBe(8500)
  })

  it('stops where somebody else commits, and is found again by the next look', async () => {
    let meddles = true
    const { plane, look, other, results } = world(async (commit, nth, options) => {
      if (nth !== 1 || !meddles) return commit
      meddles = false
      await options?.follows
      await other.commit(FOREIGN)
      return commit
    })
    const { plan, generation } = await look(MANY)
    expect(await plane.commit(plan, { generation })).toMatchObject({ outcome: 'stale', partial: true })
    expect(results.map(({ outcome }) => outcome)).toEqual(['committed', 'stale'])
    const rest = await look(MANY)
    expect(rest.plan.operations.length).toBeLessThan(plan.operations.length - 8000)
    expect((await plane.commit(rest.plan, { generation: rest.generation })).outcome).toBe('committed')
    expect((await look(MANY)).plan.empty).toBe(true)
  })

  it.each([
    [0, ['committed', 'stale']],
    [1, ['committed', 'committed']],
  ])('stops where somebody else commits before the look at where commit %i led', async (after, outcomes) => {
    const { plane, look, other, results } = world((commit, nth) => {
      if (nth !== after) return commit
      return async (...args) => {
        const result = await commit(...args)
        const { generation } = await other.commit(FOREIGN)
        return { ...result, foreign: true, generation }
      }
    })
    const { plan, generation } = await look(MANY)
    expect(await plane.commit(plan, { generation })).toMatchObject({ outcome: 'stale', partial: true })
    expect(results.map(({ outcome }) => outcome)).toEqual(outcomes)
  })

  it('goes with all else where nobody asked for a generation, and comes through whoever commits meanwhile', async () => {
    let count = 0
    const { plane, look, other, results } = world(async commit => {
      await other.commit([
        { verb: 'add-table', family: 'ip', table: `other-${count++}`, flags: 0, comment: undefined },
      ])
      return commit
    })
    const { plan } = await look(MANY)
    expect(await plane.commit(plan, {})).toMatchObject({ outcome: 'committed', foreign: true })
    expect(results.map(({ outcome }) => outcome)).toEqual([...Array(5).fill('stale'), 'committed'])
    expect((await look(MANY)).plan.empty).toBe(true)
  })

  it('is refused in part when the kernel refuses one of its later commits', async () => {
    const { plane, look } = world((commit, nth) =>
      nth !== 1
        ? commit
        : async (transaction, { follows } = {}) => {
            await follows
            const [operation] = transaction
            if (operation === undefined) throw new Error('there is something in it')
            const error = new Error('no')
            const failures = [{ operation, elements: [], code: 'ENOENT', error }]
            return { ...(await commit([])), outcome: 'refused', failures, messages: 0 }
          },
    )
    const { plan, generation } = await look(MANY)
    const receipt = await plane.commit(plan, { generation })
    expect(receipt).toMatchObject({ outcome: 'refused', partial: true })
    expect(receipt.refusals[0]?.services[0]).toMatch(/^ns\/many-/)
  })

  it('is refused in part, by name, for what cannot be said to the kernel', async () => {
    const [port] = plainService(1600, 1).ports
    const long = port && { ...port, displayName: 'x'.repeat(300) }
    const bad = { ...plainService(1600, 1), ports: long === undefined ? [] : [long] }
    const { plane, look, results } = world(commit => commit)
    const { plan, generation } = await look([...MANY, bad])
    const receipt = await plane.commit(plan, { generation })
    expect(receipt).toMatchObject({ outcome: 'refused', partial: true })
    expect(new Set(receipt.refusals.flatMap(({ services }) => services))).toEqual(new Set(['ns/many-1600']))
    expect(results.map(({ outcome }) => outcome)).toEqual(['committed'])
  })
})
