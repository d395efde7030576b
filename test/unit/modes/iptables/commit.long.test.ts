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
  readonly transactions: Transaction[]
}

function between(): Between {
  const kernel = new FakeKernel()
  const client = createNftClient({ transport: kernel.open(), clock: systemClock })
  const other = createNftClient({ transport: kernel.open(), clock: systemClock })
  const state: Between = {
    client,
    other,
    beforeCommit: () => Promise.resolve(),
    refuses: () => false,
    transactions: [],
  }
  const commit = client.commit.bind(client)
  client.commit = async (transaction, options) => {
    if (transaction.length === 0) return commit(transaction, options)
    state.transactions.push(transaction)
    await state.beforeCommit(transaction)
    const culprits = transaction.filter(operation => state.refuses(operation))
    if (culprits.length === 0) return commit(transaction, options)
    return refused(await commit([]), culprits)
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

function planeOn({ client }: Between): IptablesPlane {
  return new IptablesPlane({ client, options: DEFAULT_IPTABLES_OPTIONS })
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

/** Plans the removal of a second copy of a jump, which another program made. */
async function doubledJump(here: Between) {
  const { plane, many } = await loaded(here, 3)
  const place = { family: 'ip', table: 'nat', chain: 'PREROUTING' } as const
  const [jump] = await here.other.ruleCounters(place)
  const rule = { compiled: jump?.compiled ?? '', protocol: 0, protocolInverted: false }
  await here.other.commit([{ verb: 'insert-rule', ...place, rule }])
  const { plan } = planned(plane, (await plane.observe()).state, table(many))
  expect(plan.operations.map(({ verb }) => verb)).toEqual(['delete-rule'])
  return { plane, plan }
}

describe('a commit of the iptables plane', () => {
  it.each([
    [3, 'committed', 4],
    [100, 'stale', 6],
  ])(
    'that deletes a jump, with %i commits of others before, is %s after %i tries',
    async (commits, outcome, tries) => {
      const here = between()
      const { plane, plan } = await doubledJump(here)
      let left = commits
      here.beforeCommit = async () => {
        if (left-- > 0) await LATER(here, `other-${left}`)
      }
      here.transactions.length = 0
      expect(await plane.commit(plan, {})).toMatchObject({ outcome, foreign: true })
      expect(here.transactions).toHaveLength(tries)
    },
  )

  it('that only writes chains comes through in the end, however often others commit', async () => {
    const here = between()
    const { plane, fewer } = await loaded(here, 3)
    let count = 0
    here.beforeCommit = () => LATER(here, `other-${count++}`)
    expect(await plane.commit(fewer.plan, {})).toMatchObject({ outcome: 'committed', foreign: true })
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
