import { describe, expect, it } from 'vitest'
import { finish, systemClock } from '../../../../src/base/clock.ts'
import { type CommitResult, createNftClient, type NftClient } from '../../../../src/kernel/nft/client.ts'
import { isCompiled } from '../../../../src/kernel/nft/state.ts'
import type { Operation, Transaction } from '../../../../src/kernel/nft/transaction.ts'
import type { FrontendTable } from '../../../../src/model/frontend.ts'
import { IptablesPlane } from '../../../../src/modes/iptables/plane.ts'
import { DEFAULT_IPTABLES_OPTIONS } from '../../../../src/modes/iptables/settings.ts'
import type { IptablesState } from '../../../../src/modes/iptables/state.ts'
import { FakeKernel } from '../../../support/fake-kernel/kernel.ts'
import { table } from '../../../support/frontends.ts'
import { serviceOf, sliceOf } from '../../../support/objects.ts'
import { PlaneRig } from '../../../support/plane-rig.ts'
import { plainService } from '../../../support/services.ts'

/** Stands between the plane and the kernel. */
interface Between {
  readonly client: NftClient
  readonly other: NftClient
  /** Before each batch is sent. */
  beforeCommit: (transaction: Transaction) => Promise<void>
  /** What the kernel refuses. */
  refuses: (operation: Operation) => boolean
  /** What becomes of the kernel's answer. */
  answer: (result: CommitResult) => CommitResult
  readonly transactions: Transaction[]
  listed: number
  asked: number
}

function between(): Between {
  const kernel = new FakeKernel()
  const real = createNftClient({ transport: kernel.open(), clock: systemClock })
  const other = createNftClient({ transport: kernel.open(), clock: systemClock })
  const state: Between = {
    other,
    beforeCommit: () => Promise.resolve(),
    refuses: () => false,
    answer: result => result,
    transactions: [],
    listed: 0,
    asked: 0,
    client: {
      generation: () => real.generation(),
      async commit(transaction, options) {
        if (transaction.length === 0) return real.commit(transaction, options)
        state.transactions.push(transaction)
        await state.beforeCommit(transaction)
        const culprits = transaction.filter(operation => state.refuses(operation))
        if (culprits.length === 0) return state.answer(await real.commit(transaction, options))
        return refused(await real.commit([]), culprits)
      },
      list: tables => real.list(tables),
      listChains: places => real.listChains(places),
      rule(place) {
        state.asked++
        return real.rule(place)
      },
      ruleCounters(chain) {
        state.listed++
        return real.ruleCounters(chain)
      },
      counters: (place, onCounter) => real.counters(place, onCounter),
      close: () => real.close(),
    },
  }
  return state
}

function refused(nothing: CommitResult, culprits: readonly Operation[]): CommitResult {
  const failures = culprits.map(operation => ({
    operation,
    elements: [],
    code: 'ENOENT',
    error: new Error('add rule: ENOENT (No such file or directory)'),
  }))
  return { ...nothing, outcome: 'refused', failures }
}

const LATER = async ({ other }: Between, name: string) => {
  await other.commit([{ verb: 'add-table', family: 'ip', table: name, flags: 0, comment: undefined }])
}

function planeOn({ client }: Between, optimize = false): IptablesPlane {
  return new IptablesPlane({ client, options: { ...DEFAULT_IPTABLES_OPTIONS, optimize } })
}

function planned(plane: IptablesPlane, from: IptablesState, to: FrontendTable) {
  const state = finish(plane.render(to, { base: from, without: new Set() }))
  return { state, plan: finish(plane.diff(from, state)) }
}

async function loaded(here: Between, services: number) {
  const plane = planeOn(here)
  const many = Array.from({ length: services }, (_, n) => plainService(n, 1))
  const { state: from } = await plane.observe()
  const { state, plan } = planned(plane, from, table(many))
  expect((await plane.commit(plan, {})).outcome).toBe('committed')
  const fewer = planned(plane, state, table(many.slice(1)))
  return { plane, state, fewer, many }
}

describe('a commit of the iptables plane', () => {
  it.each([
    [3, 'committed', 4],
    [100, 'stale', 6],
  ])('that somebody commits before %i times is %s after %i tries', async (commits, outcome, tries) => {
    const here = between()
    const { plane, fewer } = await loaded(here, 3)
    let left = commits
    here.beforeCommit = async () => {
      if (left-- > 0) await LATER(here, `other-${left}`)
    }
    here.transactions.length = 0
    expect(await plane.commit(fewer.plan, {})).toMatchObject({ outcome, foreign: true })
    expect(here.transactions).toHaveLength(tries)
  })

  it('is given up when somebody always does, as long as rules go by their numbers', async () => {
    const here = between()
    const { plane, fewer } = await loaded(here, 3)
    let count = 0
    here.beforeCommit = () => LATER(here, `other-${count++}`)
    expect(await plane.commit(fewer.plan, {})).toMatchObject({ outcome: 'stale', foreign: true })
    expect(count).toBe(6)
  })

  it('comes through in the end when there is nothing in it that could go wrong', async () => {
    const here = between()
    const { plane, state, many } = await loaded(here, 3)
    let count = 0
    here.beforeCommit = () => LATER(here, `other-${count++}`)
    const { plan } = planned(plane, state, table([...many, plainService(9, 1)]))
    expect(await plane.commit(plan, {})).toMatchObject({ outcome: 'committed', foreign: true })
    expect(count).toBe(6)
  })

  it('is not sent where it was to be refused after somebody else’s', async () => {
    const here = between()
    const { plane, fewer } = await loaded(here, 3)
    const generation = plane.generation()
    await LATER(here, 'other')
    here.transactions.length = 0
    expect(await plane.commit(fewer.plan, { generation })).toMatchObject({ outcome: 'stale', messages: 0 })
    expect(here.transactions).toEqual([])
  })

  it('lists a chain once after a large load, and keeps its numbers from then on', async () => {
    const here = between()
    const { plane, fewer, many } = await loaded(here, 300)
    expect((await plane.commit(fewer.plan, {})).outcome).toBe('committed')
    expect(here.listed).toBe(1)
    let { state } = fewer
    for (const count of [2, 3, 4]) {
      const next = planned(plane, state, table([...many.slice(count), plainService(500 + count, 1)]))
      expect((await plane.commit(next.plan, {})).outcome).toBe('committed')
      state = next.state
    }
    const back = planned(plane, state, table(many.slice(5)))
    expect((await plane.commit(back.plan, {})).outcome).toBe('committed')
    expect(here).toMatchObject({ listed: 1, asked: 0 })
  })

  it('asks for each number after somebody else’s commit', async () => {
    const here = between()
    const { plane, fewer } = await loaded(here, 300)
    await plane.observe()
    await LATER(here, 'other')
    expect((await plane.commit(fewer.plan, {})).outcome).toBe('committed')
    expect(here).toMatchObject({ listed: 0, asked: 1 })
  })

  it.each<[string, Pick<Between, 'answer'> | Pick<Between, 'beforeCommit'>, object]>([
    [
      'its answers were lost',
      { answer: result => ({ ...result, handles: new Map() }) },
      { listed: 1, asked: 0 },
    ],
    [
      'nobody knows what came of it',
      { answer: result => ({ ...result, outcome: 'unknown' }) },
      { listed: 1, asked: 0 },
    ],
    [
      'somebody else committed right behind it',
      { answer: result => ({ ...result, foreign: true }) },
      { listed: 0, asked: 1 },
    ],
  ])('is not built on when %s', async (_, fault, afterwards) => {
    const here = between()
    const { plane, state, many } = await loaded(here, 3)
    await plane.observe()
    const more = planned(plane, state, table([...many, plainService(9, 1)]))
    Object.assign(here, fault)
    await plane.commit(more.plan, {})
    here.answer = result => result
    const { plan } = planned(plane, more.state, table(many))
    expect((await plane.commit(plan, {})).outcome).toBe('committed')
    expect(here).toMatchObject(afterwards)
  })

  it('asks for so many new numbers as the socket has room for, however many chains they are of', async () => {
    const here = between()
    const plane = planeOn(here, true)
    const start = planned(plane, (await plane.observe()).state, table([]))
    expect((await plane.commit(start.plan, {})).outcome).toBe('committed')
    await plane.observe()
    const many = Array.from({ length: 1_500 }, (_, n) => plainService(n, 1))
    const { state, plan } = planned(plane, start.state, table(many))
    expect((await plane.commit(plan, {})).outcome).toBe('committed')
    const echoed = here.transactions.at(-1)?.filter(operation => 'echo' in operation) ?? []
    expect(echoed.length).toBeGreaterThan(800)
    expect(echoed.length).toBeLessThanOrEqual(1_000)
    const fewer = planned(plane, state, table(many.slice(300)))
    expect((await plane.commit(fewer.plan, {})).outcome).toBe('committed')
  })

  it('is for the reconciler to think over when a rule that is to go is not there', async () => {
    const here = between()
    const { plane, fewer } = await loaded(here, 3)
    await here.other.commit([{ verb: 'flush-chain', family: 'ip', table: 'nat', chain: 'KUBE-SERVICES' }])
    expect(await plane.commit(fewer.plan, {})).toMatchObject({ outcome: 'stale', messages: 0 })
  })

  it('names the Service of a rule that cannot be said to the kernel', async () => {
    const here = between()
    const { plane, state, many } = await loaded(here, 2)
    const [port] = plainService(7, 1).ports
    const long = port && { ...port, displayName: 'x'.repeat(300) }
    const bad = { ...plainService(7, 1), ports: long === undefined ? [] : [long] }
    const { plan } = planned(plane, state, table([...many, bad]))
    const receipt = await plane.commit(plan, {})
    expect(receipt.outcome).toBe('refused')
    expect(receipt.refusals[0]).toMatchObject({
      services: ['ns/many-7'],
      error: { message: expect.stringMatching(/^Service ns\/many-7: .*EMSGSIZE/) },
    })
    expect(planned(plane, (await plane.observe()).state, table([...many, bad])).plan.empty).toBe(false)
  })
})

const OBJECTS = ['good', 'bad', 'fine'].flatMap((name, i) => [
  serviceOf(name, `10.96.0.${i + 1}`),
  sliceOf(name, [`10.180.0.${i + 1}`]),
])

describe('a Service that the kernel refuses', () => {
  it('is named and left out, and all others go in', async () => {
    const here = between()
    here.refuses = operation =>
      'rule' in operation && isCompiled(operation.rule) && operation.rule.compiled.includes('ns/bad')
    const rig = new PlaneRig({ plane: planeOn(here), clock: systemClock })
    await rig.sync(OBJECTS)
    expect(rig.reconciler.status.quarantined.map(({ service }) => service)).toEqual(['ns/bad'])
    const { observed } = await here.client.listChains([{ family: 'ip', table: 'nat' }])
    const bytes = [...(observed.get('ip nat')?.chains.values() ?? [])]
      .flatMap(({ rules }) => rules.map(({ compiled }) => compiled))
      .join('')
    expect(bytes).toContain('ns/good')
    expect(bytes).toContain('ns/fine')
    expect(bytes).not.toContain('ns/bad')
    here.refuses = () => false
    await rig.until(() => rig.reconciler.status.quarantined.length === 0)
    await rig.close()
  })
})
