import { describe, expect, it } from 'vitest'
import { finish } from '../../../../src/base/clock.ts'
import type { CommitResult, Listing, NftClient } from '../../../../src/kernel/nft/client.ts'
import type { Ruleset } from '../../../../src/kernel/nft/state.ts'
import type { Transaction } from '../../../../src/kernel/nft/transaction.ts'
import type { FrontendTable } from '../../../../src/model/frontend.ts'
import { createNftablesPlane } from '../../../../src/modes/nftables/plane.ts'
import { DEFAULT_NFTABLES_OPTIONS } from '../../../../src/modes/nftables/settings.ts'
import type { NftablesState } from '../../../../src/modes/nftables/state.ts'
import { backends, clusterIp, ip4, service, table } from '../../../support/frontends.ts'
import { listing } from './inspect.ts'

const COMMITTED: CommitResult = {
  outcome: 'committed',
  generation: 8,
  foreign: false,
  failures: [],
  bytes: 100,
  messages: 3,
  durationMs: 1,
}

/** A client that says what it is told to say. */
class ScriptedClient implements NftClient {
  readonly commits: { transaction: Transaction; generation: number | undefined }[] = []
  ruleset: Ruleset = { tables: [] }
  readonly answers: Partial<CommitResult>[] = []

  generation(): number {
    return 7
  }

  async commit(
    transaction: Transaction,
    options: { readonly generation?: number } = {},
  ): Promise<CommitResult> {
    this.commits.push({ transaction, generation: options.generation })
    return { ...COMMITTED, ...this.answers.shift() }
  }

  async list(): Promise<Listing> {
    return { ruleset: this.ruleset, generation: 7, unsettled: false }
  }

  async counters(): Promise<boolean> {
    return true
  }

  async listChains(): Promise<never> {
    throw new Error('the plane has no tables that others use')
  }

  rule(): never {
    throw new Error('the plane has no rules by handle')
  }

  async ruleCounters(): Promise<never> {
    throw new Error('the plane counts elements')
  }

  async close(): Promise<void> {
    throw new Error('the plane does not own its client')
  }
}

function make() {
  const client = new ScriptedClient()
  const plane = createNftablesPlane({ client, options: DEFAULT_NFTABLES_OPTIONS })
  const render = (frontends: FrontendTable, base: NftablesState = plane.empty) =>
    finish(plane.render(frontends, { base, without: new Set() }))
  return { client, plane, render }
}

function web(
  count: number,
  { from = 1, affinityTimeoutS = 0 }: { from?: number; affinityTimeoutS?: number } = {},
): FrontendTable {
  const port = {
    name: 'http',
    affinityTimeoutS,
    frontends: [clusterIp(ip4(10, 96, 0, 1), 80)],
    cluster: backends(count, { from }),
  }
  return table([service('ns/web', [port])])
}

describe('a plan', () => {
  it('tells what changes, one line an object, each with its Service', () => {
    const { plane, render } = make()
    const before = render(web(1))
    const after = render(web(2), before)
    const plan = finish(plane.diff(before, after))
    expect([...plan.describe()]).toEqual([
      {
        verb: 'add',
        object: 'element ip kube-proxy endpoints-tcp { 8000:2000 . 1 : 10.21.0.2 . 8080 }',
        service: 'ns/web',
      },
      {
        verb: 'change',
        object: 'element ip kube-proxy frontends { 10.96.0.1 . tcp . 80 : 8000:2010 -> 8000:2011 }',
        service: 'ns/web',
      },
    ])
    expect(plan.changes).toBe(2)
    expect(plan.complete).toBe(true)
    expect(plan.after).toBe(after)
  })

  it('counts and names what all Services share', () => {
    const { plane, render } = make()
    const plan = finish(plane.diff(plane.empty, render(web(1))))
    const told = [...plan.describe()]
    expect(told).toHaveLength(plan.changes)
    expect(told[0]).toEqual({ verb: 'add', object: 'table ip kube-proxy', service: undefined })
    expect(told.find(({ object }) => object === 'chain ip kube-proxy mod-1')?.verb).toBe('add')
    expect(told.at(-1)?.service).toBe('ns/web')
  })

  it('leaves the slot of a list that shrinks to the next one', () => {
    const { plane, render } = make()
    const before = render(web(3))
    const after = render(web(2), before)
    const first = finish(plane.diff(before, after))
    expect(first.complete).toBe(false)
    expect([...first.describe()].map(({ object }) => object).join()).not.toContain(
      'element ip kube-proxy endpoints-tcp',
    )
    const second = finish(plane.diff(first.after, after))
    expect([...second.describe()].map(({ verb, object }) => `${verb} ${object}`)).toEqual([
      'remove element ip kube-proxy endpoints-tcp { 8000:2000 . 2 : 10.21.0.3 . 8080 }',
    ])
    expect(second.after).toBe(after)
  })

  it('takes an endpoint from the clients that session affinity sends to it at once', () => {
    const { plane, render } = make()
    const before = render(web(2, { affinityTimeoutS: 60 }))
    const after = render(web(1, { affinityTimeoutS: 60 }), before)
    const plan = finish(plane.diff(before, after))
    const changed = [...plan.describe()].map(({ verb, object }) => `${verb} ${object}`)
    const elements = changed.filter(line => / (endpoints-tcp|slots) /.test(line))
    // A packet that reads the former number of slots finds slot 1 still, and takes slot 0 from there.
    expect(elements).toEqual([
      expect.stringMatching(/^remove element .* \. 2147483648 : 10\.21\.0\.2 \. 8080 \}$/),
    ])
    expect(plan.complete).toBe(false)
  })

  it('does not wait when nothing else is to be sent', () => {
    const { plane, render } = make()
    const before = render(web(18))
    const after = render(web(17), before)
    const plan = finish(plane.diff(before, after))
    expect(plan.empty).toBe(false)
    expect(plan.complete).toBe(true)
    expect([...plan.describe()].map(({ verb }) => verb)).toEqual(['remove'])
  })
})

describe('the plane', () => {
  it('names the Services of what the kernel refused, and none for a lack of room', async () => {
    const { client, plane, render } = make()
    const plan = finish(plane.diff(plane.empty, render(web(1))))
    const [operation] = plan.transaction
    if (operation === undefined) throw new Error('an empty transaction')
    const element = { set: 'endpoints-tcp', key: '', data: '', comment: '' }
    const error = new Error('add element: EINVAL')
    const elements = ['ns/a', 'ns/b', 'ns/a', '@dispatch'].map(group => ({ element, group }))
    const failures = [
      { operation, elements: elements.slice(0, 1), code: 'EINVAL', error },
      { operation, elements, code: 'EINVAL', error },
      { operation, elements: [], code: 'EINVAL', error },
      { operation, elements, code: 'ENFILE', error },
    ]
    client.answers.push({ outcome: 'refused', failures })
    const { refusals, outcome } = await plane.commit(plan, {})
    expect(outcome).toBe('refused')
    expect(refusals.map(({ services }) => services)).toEqual([['ns/a'], ['ns/a', 'ns/b'], [], []])
    expect(refusals.map(one => one.error.message)).toEqual([
      'Service ns/a: add element: EINVAL',
      'Services ns/a, ns/b: add element: EINVAL',
      'add element: EINVAL',
      'add element: EINVAL',
    ])
    expect(refusals[0]?.error.cause).toBe(error)
  })

  it('leaves a table alone that kube-proxy has made its own, and takes one that only shows where it was', async () => {
    const { client, plane, render } = make()
    const theirs = { name: 'service-endpoints-check', hook: undefined, rules: [] }
    const over = (services: object) =>
      render(web(1)).ruleset.tables.map(one => {
        const chains = new Map([...one.chains, [theirs.name, theirs] as const])
        const former = one.chains.get('services')
        if (former !== undefined) chains.set('services', { ...former, ...services })
        return { ...one, chains }
      })
    client.ruleset = { tables: over({ rules: [] }) }
    await plane.cleanup()
    expect(client.commits).toEqual([])
    client.ruleset = { tables: over({}) }
    await plane.cleanup()
    expect(client.commits).toHaveLength(1)
  })

  it('says what the kernel said when it cannot clean up', async () => {
    const { client, plane, render } = make()
    const state = render(web(1))
    client.ruleset = listing(state.ruleset)
    const [operation] = finish(plane.diff(plane.empty, state)).transaction
    if (operation === undefined) throw new Error('an empty transaction')
    client.answers.push({
      outcome: 'refused',
      failures: [{ operation, elements: [], code: 'EPERM', error: new Error('EPERM') }],
    })
    await expect(plane.cleanup()).rejects.toThrow('delete tables: EPERM')
  })
})
