import { describe, expect, it } from 'vitest'
import { finish, systemClock } from '../../../../src/base/clock.ts'
import { type CommitOptions, type CommitResult, createNftClient } from '../../../../src/kernel/nft/client.ts'
import { isCompiled } from '../../../../src/kernel/nft/state.ts'
import type { Operation, Transaction } from '../../../../src/kernel/nft/transaction.ts'
import { countAhead } from '../../../../src/kernel/xt/scope-commit.ts'
import type { ServiceFrontends } from '../../../../src/model/frontend.ts'
import { IptablesPlane } from '../../../../src/modes/iptables/plane.ts'
import { DEFAULT_IPTABLES_OPTIONS } from '../../../../src/modes/iptables/settings.ts'
import type { IptablesState } from '../../../../src/modes/iptables/state.ts'
import { counterOf, generationOf } from '../../../../src/reconcile/dataplane.ts'
import { FakeKernel } from '../../../support/fake-kernel/kernel.ts'
import { table } from '../../../support/frontends.ts'
import { serviceOf, sliceOf } from '../../../support/objects.ts'
import { PlaneRig } from '../../../support/plane-rig.ts'
import { plainService } from '../../../support/services.ts'

type Commit = (transaction: Transaction, options?: CommitOptions) => Promise<CommitResult>

/** Gets each commit with its number, counted from 0; those that only look are none. */
type Meddle = (commit: Commit, nth: number, options?: CommitOptions) => Promise<Commit> | Commit

/** A plane, and what stands between it and the kernel. */
class Bench {
  readonly #kernel = new FakeKernel()
  readonly client = createNftClient({ transport: this.#kernel.open(), clock: systemClock })
  readonly other = createNftClient({ transport: this.#kernel.open(), clock: systemClock })
  readonly plane = new IptablesPlane({ client: this.client, options: DEFAULT_IPTABLES_OPTIONS })
  readonly results: CommitResult[] = []
  meddle: Meddle

  constructor(meddle: Meddle = commit => commit) {
    this.meddle = meddle
    const commit: Commit = this.client.commit.bind(this.client)
    let nth = 0
    this.client.commit = async (transaction, options) => {
      if (transaction.length === 0) return commit(transaction, options)
      const result = await (await this.meddle(commit, nth++, options))(transaction, options)
      this.results.push(result)
      return result
    }
  }

  planned(from: IptablesState, services: readonly ServiceFrontends[]) {
    const state = finish(this.plane.render(table(services), { base: from, without: new Set() }))
    return { state, plan: finish(this.plane.diff(from, state)) }
  }

  /** Reads the kernel, and plans from there. */
  async look(services: readonly ServiceFrontends[]) {
    const { state, generation } = await this.plane.observe()
    return { ...this.planned(state, services), generation }
  }

  /** With so many Services in the kernel, and what removes the first of them. */
  async loaded(count: number) {
    const many = Array.from({ length: count }, (_, n) => plainService(n, 1))
    const { state, plan } = await this.look(many)
    expect((await this.plane.commit(plan, {})).outcome).toBe('committed')
    this.results.length = 0
    return { state, many, fewer: this.planned(state, many.slice(1)).plan }
  }

  /** Somebody else commits. */
  commitElsewhere(name = 'other') {
    return this.other.commit([{ verb: 'add-table', family: 'ip', table: name, flags: 0, comment: undefined }])
  }
}

function refused(nothing: CommitResult, culprits: readonly Operation[]): CommitResult {
  const error = new Error('add rule: ENOENT (No such file or directory)')
  const failures = culprits.map(operation => ({ operation, elements: [], code: 'ENOENT', error }))
  return { ...nothing, outcome: 'refused', failures, messages: 0 }
}

/** A Service whose comments are too long for the kernel. */
function unsayable(n: number): ServiceFrontends {
  const made = plainService(n, 1)
  return { ...made, ports: made.ports.map(port => ({ ...port, displayName: 'x'.repeat(300) })) }
}

/** Plans the removal of a second copy of a jump, which another program made. */
async function doubledJump(bench: Bench) {
  const { many } = await bench.loaded(3)
  const place = { family: 'ip', table: 'nat', chain: 'PREROUTING' } as const
  const [jump] = await bench.other.ruleCounters(place)
  const rule = { compiled: jump?.compiled ?? '', protocol: 0, protocolInverted: false }
  await bench.other.commit([{ verb: 'insert-rule', ...place, rule }])
  const { plan } = await bench.look(many)
  expect(plan.operations.map(({ verb }) => verb)).toEqual(['delete-rule'])
  return plan
}

describe('a commit of the iptables plane', () => {
  it.each([
    [3, 'committed', 4],
    [100, 'stale', 6],
  ])(
    'that deletes a jump, with %i commits of others before, is %s after %i tries',
    async (commits, outcome, tries) => {
      const bench = new Bench()
      const plan = await doubledJump(bench)
      let left = commits
      bench.meddle = async commit => {
        if (left-- > 0) await bench.commitElsewhere(`other-${left}`)
        return commit
      }
      expect(await bench.plane.commit(plan, {})).toMatchObject({ outcome, foreign: true })
      expect(bench.results).toHaveLength(tries)
    },
  )

  it('that only writes chains comes through in the end, however often others commit', async () => {
    const bench = new Bench()
    const { fewer } = await bench.loaded(3)
    let count = 0
    bench.meddle = async commit => {
      await bench.commitElsewhere(`other-${count++}`)
      return commit
    }
    expect(await bench.plane.commit(fewer, {})).toMatchObject({ outcome: 'committed', foreign: true })
    expect(count).toBe(6)
  })

  it('is not sent where it was to be refused after somebody else’s', async () => {
    const bench = new Bench()
    const { fewer } = await bench.loaded(3)
    const generation = bench.plane.generation()
    await bench.commitElsewhere()
    expect(await bench.plane.commit(fewer, { generation })).toMatchObject({ outcome: 'stale', messages: 0 })
    expect(bench.results).toEqual([])
  })

  it('names the Service of a rule that cannot be said to the kernel', async () => {
    const bench = new Bench()
    const { state, many } = await bench.loaded(2)
    const all = [...many, unsayable(7)]
    const receipt = await bench.plane.commit(bench.planned(state, all).plan, {})
    expect(receipt.outcome).toBe('refused')
    expect(receipt.refusals[0]).toMatchObject({
      services: ['ns/many-7'],
      error: { message: expect.stringMatching(/^Service ns\/many-7: .*EMSGSIZE/) },
    })
    expect((await bench.look(all)).plan.empty).toBe(false)
  })
})

describe('a Service that the kernel refuses', () => {
  it('is named and left out, and all others go in', async () => {
    const isOfBad = (operation: Operation) =>
      'rule' in operation && isCompiled(operation.rule) && operation.rule.compiled.includes('ns/bad')
    const bench = new Bench(commit => async (transaction, options) => {
      const culprits = transaction.filter(isOfBad)
      return culprits.length === 0 ? commit(transaction, options) : refused(await commit([]), culprits)
    })
    const rig = new PlaneRig({ plane: bench.plane, clock: systemClock })
    await rig.sync(
      ['good', 'bad', 'fine'].flatMap((name, i) => [
        serviceOf(name, `10.96.0.${i + 1}`),
        sliceOf(name, [`10.180.0.${i + 1}`]),
      ]),
    )
    expect(rig.reconciler.status.quarantined.map(({ service }) => service)).toEqual(['ns/bad'])
    const { observed } = await bench.client.listChains([{ family: 'ip', table: 'nat' }])
    const bytes = [...(observed.get('ip nat')?.chains.values() ?? [])]
      .flatMap(({ rules }) => rules.map(({ compiled }) => compiled))
      .join('')
    expect(['ns/good', 'ns/bad', 'ns/fine'].filter(name => bytes.includes(name))).toEqual([
      'ns/good',
      'ns/fine',
    ])
    bench.meddle = commit => commit
    await rig.until(() => rig.reconciler.status.quarantined.length === 0)
    await rig.close()
  })
})

describe('what nothing leads to yet', () => {
  const MANY = Array.from({ length: 1600 }, (_, n) => plainService(n, 1))
  const outcomes = (bench: Bench) => bench.results.map(({ outcome }) => outcome)

  it('goes ahead in commits of its own, each on the one before, and all else follows', async () => {
    const guards: (CommitOptions | undefined)[] = []
    const bench = new Bench((commit, _, options) => {
      guards.push(options)
      return commit
    })
    const { plan, generation } = await bench.look(MANY)
    const start = counterOf(generation)
    const ahead = countAhead(plan.operations)
    expect(ahead).toBeGreaterThan(plan.operations.length * 0.9)
    const jumps = plan.operations.slice(ahead)
    expect(jumps.every(({ verb }) => verb === 'insert-rule')).toBe(true)
    const receipt = await bench.plane.commit(plan, { generation })
    expect(receipt).toMatchObject({
      outcome: 'committed',
      foreign: false,
      generation: generationOf(start + 3),
    })
    expect(outcomes(bench)).toEqual(['committed', 'committed', 'committed'])
    expect(receipt.messages).toBe(bench.results.reduce((sum, { messages }) => sum + messages, 0))
    expect(guards).toEqual([
      { generation: start },
      { follows: expect.any(Promise) },
      { generation: start + 2 },
    ])
    expect((await bench.look(MANY)).plan.empty).toBe(true)
  })

  it('ends with a rule for a chain that is there, and is nothing where it is little', async () => {
    const { operations } = (await new Bench().look(MANY)).plan
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
    const bench = new Bench(async (commit, nth, options) => {
      if (nth !== 1 || !meddles) return commit
      meddles = false
      await options?.follows
      await bench.commitElsewhere()
      return commit
    })
    const { plan, generation } = await bench.look(MANY)
    expect(await bench.plane.commit(plan, { generation })).toMatchObject({ outcome: 'stale', partial: true })
    expect(outcomes(bench)).toEqual(['committed', 'stale'])
    const rest = await bench.look(MANY)
    expect(rest.plan.operations.length).toBeLessThan(plan.operations.length - 8000)
    expect((await bench.plane.commit(rest.plan, { generation: rest.generation })).outcome).toBe('committed')
    expect((await bench.look(MANY)).plan.empty).toBe(true)
  })

  it.each([
    [0, ['committed', 'stale']],
    [1, ['committed', 'committed']],
  ])('stops where somebody else commits before the look at where commit %i led', async (after, expected) => {
    const bench = new Bench((commit, nth) => {
      if (nth !== after) return commit
      return async (...args) => {
        const result = await commit(...args)
        const { generation } = await bench.commitElsewhere()
        return { ...result, foreign: true, generation }
      }
    })
    const { plan, generation } = await bench.look(MANY)
    expect(await bench.plane.commit(plan, { generation })).toMatchObject({ outcome: 'stale', partial: true })
    expect(outcomes(bench)).toEqual(expected)
  })

  it('goes with all else where nobody asked for a generation, and comes through whoever commits meanwhile', async () => {
    let count = 0
    const bench = new Bench(async commit => {
      await bench.commitElsewhere(`other-${count++}`)
      return commit
    })
    const { plan } = await bench.look(MANY)
    expect(await bench.plane.commit(plan, {})).toMatchObject({ outcome: 'committed', foreign: true })
    expect(outcomes(bench)).toEqual([...Array(5).fill('stale'), 'committed'])
    expect((await bench.look(MANY)).plan.empty).toBe(true)
  })

  it('is refused in part when the kernel refuses one of its later commits', async () => {
    const bench = new Bench((commit, nth) =>
      nth !== 1
        ? commit
        : async (transaction, { follows } = {}) => {
            await follows
            return refused(await commit([]), transaction.slice(0, 1))
          },
    )
    const { plan, generation } = await bench.look(MANY)
    const receipt = await bench.plane.commit(plan, { generation })
    expect(receipt).toMatchObject({ outcome: 'refused', partial: true })
    expect(receipt.refusals[0]?.services[0]).toMatch(/^ns\/many-/)
  })

  it('is refused in part, by name, for what cannot be said to the kernel', async () => {
    const bench = new Bench()
    const { plan, generation } = await bench.look([...MANY, unsayable(1600)])
    const receipt = await bench.plane.commit(plan, { generation })
    expect(receipt).toMatchObject({ outcome: 'refused', partial: true })
    expect(new Set(receipt.refusals.flatMap(({ services }) => services))).toEqual(new Set(['ns/many-1600']))
    expect(outcomes(bench)).toEqual(['committed'])
  })
})
