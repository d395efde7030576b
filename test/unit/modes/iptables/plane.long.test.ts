import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { finish, systemClock } from '../../../../src/base/clock.ts'
import { createNftClient, type NftClient } from '../../../../src/kernel/nft/client.ts'
import { printRule } from '../../../../src/kernel/xt/print.ts'
import { readRule } from '../../../../src/kernel/xt/read.ts'
import type { XtRule } from '../../../../src/kernel/xt/rule.ts'
import type { ScopeOperation } from '../../../../src/kernel/xt/scope.ts'
import type { FrontendTable, ServiceFrontends } from '../../../../src/model/frontend.ts'
import { IptablesPlane } from '../../../../src/modes/iptables/plane.ts'
import { DEFAULT_IPTABLES_OPTIONS, type IptablesOptions } from '../../../../src/modes/iptables/settings.ts'
import type { IptablesState } from '../../../../src/modes/iptables/state.ts'
import { commitsBetween } from '../../../../src/reconcile/dataplane.ts'
import { ip } from '../../../support/addresses.ts'
import { FakeKernel } from '../../../support/fake-kernel/kernel.ts'
import { table } from '../../../support/frontends.ts'
import { runs } from '../../../support/runs.ts'
import { everyKind, plainService } from '../../../support/services.ts'

interface World {
  readonly kernel: FakeKernel
  readonly client: NftClient
  readonly plane: IptablesPlane
}

function world(options: Partial<IptablesOptions> = {}): World {
  const kernel = new FakeKernel()
  const client = createNftClient({ transport: kernel.open(), clock: systemClock })
  const plane = new IptablesPlane({ client, options: { ...DEFAULT_IPTABLES_OPTIONS, ...options } })
  return { kernel, client, plane }
}

async function advance(
  { plane }: World,
  from: IptablesState,
  to: FrontendTable,
  without: readonly string[] = [],
) {
  const state = finish(plane.render(to, { base: from, without: new Set(without) }))
  const plan = finish(plane.diff(from, state))
  const receipt = plan.empty ? undefined : await plane.commit(plan, {})
  expect(receipt?.refusals.map(({ error }) => error.message) ?? []).toEqual([])
  if (receipt !== undefined) expect(receipt.outcome).toBe('committed')
  return { state, plan, receipt }
}

const LISTS = new Set(['KUBE-SERVICES', 'KUBE-EXTERNAL-SERVICES', 'KUBE-NODEPORTS', 'KUBE-PROXY-FIREWALL'])
const isList = (name: string): boolean => LISTS.has(name) || /^KUBE-\S+-(?:IP|TCP|UDP|\d)/.test(name)

/** What the kernel holds as text: chains by name, rules in their order where that means something. */
async function held({ client }: World): Promise<readonly string[]> {
  const places = (['ip', 'ip6'] as const).flatMap(family =>
    ['filter', 'nat', 'mangle'].map(name => ({ family, table: name })),
  )
  const { observed } = await client.listChains(places)
  return [...observed].flatMap(([key, { chains }]) => {
    const family = key.startsWith('ip ') ? 'ip' : 'ip6'
    return [...chains.values()]
      .toSorted((a, b) => (a.name < b.name ? -1 : 1))
      .flatMap(({ name, rules }) => {
        const lines = rules.map(({ compiled }) => printRule(readRule(compiled, family), family))
        const isLast = (line: string): boolean =>
          line.includes('must be the last') || line.includes('-g KUBE')
        const ordered = isList(name)
          ? [...lines.filter(line => !isLast(line)).toSorted(), ...lines.filter(isLast)]
          : lines
        return [`${key} ${name}`, ...ordered.map(line => `${key} ${name} ${line}`)]
      })
  })
}

/** Versions of each of a few Services, of which the first is none. */
const VERSIONS: readonly (readonly (ServiceFrontends | undefined)[])[] = [
  ...everyKind(false).map(one => [undefined, one]),
  [undefined, everyKind(true)[4]],
  ...[1, 2, 3].map(n => [
    undefined,
    plainService(n, 1),
    plainService(n, 2),
    plainService(n, 2, 2),
    plainService(n, 3),
  ]),
]
/** Around the number of endpoints from which on rules carry no comments: one table in three has so many. */
const MANY: readonly ServiceFrontends[] = [plainService(200, 993), plainService(200, 1_004)]

const someTable = fc
  .tuple(
    fc.tuple(...VERSIONS.map(versions => fc.nat(versions.length - 1))),
    fc.constantFrom(...MANY, undefined, undefined, undefined, undefined),
  )
  .map(([choice, many]) =>
    table([
      ...choice.flatMap((version, i) => VERSIONS[i]?.[version] ?? []),
      ...(many === undefined ? [] : [many]),
    ]),
  )

describe('the iptables plane', () => {
  it.each([
    [false, runs(6)],
    [true, runs(2)],
  ])('comes to the same from what it knows as from what it reads (optimized: %s)', (optimize, numRuns) =>
    fc.assert(
      fc.asyncProperty(fc.array(someTable, { minLength: 2, maxLength: 4 }), async tables => {
        const [one, other] = [world({ optimize }), world({ optimize })]
        let known: IptablesState = (await one.plane.observe()).state
        for (const frontends of tables) {
          known = (await advance(one, known, frontends)).state
          await advance(other, (await other.plane.observe()).state, frontends)
          expect(await held(one)).toEqual(await held(other))
          const { plan } = await advance(one, (await one.plane.observe()).state, frontends)
          expect([...plan.describe()]).toEqual([])
        }
      }),
      { numRuns },
    ),
  )

  it('does not take a new order of entries for a commit of another program', async () => {
    const here = world()
    const { client, plane, kernel } = here
    const services = [1, 2, 3].map(n => plainService(n, 1))
    const observed = await plane.observe()
    const { state } = await advance(here, observed.state, table(services))
    await plane.observe()
    const before = plane.generation()
    const place = { family: 'ip', table: 'nat', chain: 'KUBE-SERVICES' } as const
    const entry = (await client.ruleCounters(place))[2]
    if (entry === undefined) throw new Error('there are three of them')
    const { handle, compiled } = entry
    const rule = { compiled, protocol: 6, protocolInverted: false }
    await client.commit([
      { verb: 'insert-rule', ...place, rule },
      { verb: 'delete-rule', ...place, handle },
    ])
    expect(commitsBetween(before, plane.generation())).toBe(1)
    plane.reordered()
    expect(plane.generation()).toBe(before)
    const none = finish(plane.render(table([]), { base: state, without: new Set() }))
    const receipt = await plane.commit(finish(plane.diff(state, none)), { generation: before })
    expect(receipt).toMatchObject({ outcome: 'committed', foreign: false })
    expect(commitsBetween(before, receipt.generation)).toBe(1)
    expect((await held(here)).filter(line => line.includes('ns/many'))).toEqual([])
    const other = createNftClient({ transport: kernel.open(), clock: systemClock })
    await other.commit([{ verb: 'flush-chain', ...place }])
    expect(commitsBetween(before, plane.generation())).toBe(2)
  })

  it('leaves Services out, and lets them in again', async () => {
    const all = world()
    const frontends = table([...everyKind(false), plainService(1, 2)])
    const { state } = await advance(all, all.plane.empty, frontends)
    const before = await held(all)
    const { state: fewer } = await advance(all, state, frontends, ['ns/local', 'ns/many-1'])
    expect((await held(all)).join('\n')).not.toContain('ns/many-1')
    await advance(all, fewer, frontends)
    expect(await held(all)).toEqual(before)
  })

  it('reads the kernel back when the outcome of a cleanup is unknown', async () => {
    const its = world()
    await advance(its, its.plane.empty, table([plainService(1, 2)]))
    const { client } = its
    const commit = client.commit.bind(client)
    client.commit = async (transaction, options) => {
      const result = await commit(transaction, options)
      return transaction.length === 0 ? result : { ...result, outcome: 'unknown' }
    }
    await its.plane.cleanup()
    expect((await held(its)).filter(line => line.includes('KUBE-SERVICES'))).toEqual([])
  })

  it('sends as much for a changed endpoint among 100 Services as among 2,000', async () => {
    const sent: number[] = []
    for (const count of [100, 2_000]) {
      const here = world()
      const services = Array.from({ length: count }, (_, n) => plainService(n, 1))
      const { state } = await advance(here, (await here.plane.observe()).state, table(services))
      const changed = table([...services.slice(0, 50), plainService(50, 1, 2), ...services.slice(51)])
      const other = { ...changed, services: table(services).services.with(changed.services.entries()) }
      const { receipt, plan } = await advance(here, state, other)
      expect(plan.changes).toBeLessThan(10)
      sent.push(receipt?.messages ?? 0)
    }
    expect(sent[0]).toBe(sent[1])
    expect(sent[0]).toBe(MESSAGES_OF_A_CHANGE)
  })

  it('writes rules of endpoints anew without comments beyond 1,000 of them, and back', async () => {
    const here = world()
    const small = table([plainService(1, 990), plainService(2, 3)])
    const large = table([plainService(1, 1_020), plainService(2, 3)])
    const { state } = await advance(here, here.plane.empty, small)
    const before = await held(here)
    const { state: grown } = await advance(here, state, large)
    expect((await held(here)).filter(line => line.includes('KUBE-SEP')).join('\n')).not.toContain(
      'ns/many-2"',
    )
    expect((await advance(here, (await here.plane.observe()).state, large)).plan.empty).toBe(true)
    await advance(here, grown, small)
    expect(await held(here)).toEqual(before)
  })

  it('writes a list anew when a Service comes or goes, with the entries of the others', async () => {
    const here = world()
    const services = [1, 2, 3].map(n => plainService(n, 1))
    const { state } = await advance(here, here.plane.empty, table(services))
    const { plan, state: fewer } = await advance(here, state, table(services.slice(1)))
    const written = plan.operations.filter(one => 'chain' in one && one.chain === 'KUBE-SERVICES')
    expect(written.map(({ verb, owner }) => `${verb} ${owner}`)).toEqual([
      'flush-chain undefined',
      'add-rule ns/many-2',
      'add-rule ns/many-3',
      'add-rule undefined',
    ])
    expect([...plan.describe()][0]).toEqual({
      verb: 'change',
      object: 'chain ip nat KUBE-SERVICES rules 4 -> 3',
      service: undefined,
    })
    const { plan: endpoint } = await advance(here, fewer, table([plainService(2, 2), ...services.slice(2)]))
    expect([...endpoint.describe()].map(({ verb, object }) => `${verb} ${object}`)).toEqual([
      expect.stringMatching(/^add chain ip nat KUBE-SEP-[A-Z2-7]{16}$/),
      expect.stringMatching(/^add rule of ip nat KUBE-SEP-\S+ -s \S+ .* -j KUBE-MARK-MASQ$/),
      expect.stringMatching(/^add rule of ip nat KUBE-SEP-\S+ -p tcp .* -j DNAT --to-destination \S+$/),
      expect.stringMatching(/^change chain ip nat KUBE-SVC-\S+ rules 1 -> 2$/),
    ])
  })

  /** With NodePorts at these addresses, in this order. */
  const answeringAt = (...addresses: readonly string[]) =>
    table(everyKind(false), {
      nodePorts: { IPv4: { kind: 'only', ips: addresses.map(ip) }, IPv6: { kind: 'all' } },
    })

  // kube-proxy writes them as they come out of a map.
  it('finds addresses of NodePorts in any order', async () => {
    const here = world()
    await advance(here, here.plane.empty, answeringAt('192.168.3.1', '192.168.1.1', '192.168.2.1'))
    const wanted = answeringAt('192.168.1.1', '192.168.2.1', '192.168.3.1')
    const { plan } = await advance(here, (await here.plane.observe()).state, wanted)
    expect(plan.operations).toEqual([])
  })

  // kubelet writes it as well: it is there once, and never goes.
  it('keeps the rule of KUBE-FIREWALL when NodePorts leave loopback, and has it once when they come back', async () => {
    const here = world()
    let state: IptablesState = here.plane.empty
    for (const frontends of [table([]), answeringAt('192.168.1.1'), table([])]) {
      state = (await advance(here, state, frontends)).plan.after
      expect((await held(here)).filter(line => line.startsWith('ip filter KUBE-FIREWALL '))).toHaveLength(1)
      const { state: found } = await here.plane.observe()
      // What was found asks for nothing either.
      expect(finish(here.plane.diff(found, state)).operations).toEqual([])
    }
  })
})

/** Begin, end; the new endpoint's chain and its two rules; the Service's chain emptied and its rule; two for the old chain. */
const MESSAGES_OF_A_CHANGE = 9

describe('the order of what is written', () => {
  const before = table([...everyKind(false), plainService(1, 3), plainService(2, 1)])
  const after = table([...everyKind(false).slice(2), plainService(1, 2, 2), plainService(3, 4)])

  it.each([
    ['from nothing', table([]), after, true],
    ['from one state to another', before, after, false],
    ['to nothing', before, table([]), false],
  ])(
    'lets no packet into a chain that is not filled, wherever it is cut off: %s',
    async (_, from, to, strictly) => {
      const here = world()
      const { plane } = here
      const { state } = await advance(here, (await plane.observe()).state, from)
      const start = from.services.size === 0 && strictly ? plane.empty : state
      const chains = new Map<string, XtRule[]>()
      const first = finish(plane.diff(plane.empty, state))
      if (start !== plane.empty) for (const operation of first.operations) apply(chains, operation)
      const wanted = finish(plane.render(to, { base: state, without: new Set() }))
      const { operations } = finish(plane.diff(start, wanted))
      expect(operations.length).toBeGreaterThan(20)
      const rewritten = new Set(operations.flatMap(one => (one.verb === 'flush-chain' ? [one.chain] : [])))
      for (const [i, operation] of operations.entries()) {
        apply(chains, operation)
        const unfilled = new Set(
          operations
            .slice(i + 1)
            .flatMap(one => (one.verb === 'add-rule' ? [`${one.family} ${one.table} ${one.chain}`] : [])),
        )
        for (const key of reachable(chains)) {
          const name = key.split(' ')[2] ?? ''
          if (strictly || !rewritten.has(name))
            expect({ key, i, filled: !unfilled.has(key) }).toEqual({ key, i, filled: true })
          expect({ key, i, there: chains.has(key) }).toEqual({ key, i, there: true })
        }
      }
      if (!strictly) expect(rewritten.size).toBeGreaterThan(0)
    },
  )
})

function apply(chains: Map<string, XtRule[]>, operation: ScopeOperation): void {
  if (operation.verb === 'add-table') return
  const key = `${operation.family} ${operation.table} ${operation.chain}`
  const rules = chains.get(key) ?? []
  switch (operation.verb) {
    case 'add-chain':
    case 'flush-chain':
      chains.set(key, [])
      break
    case 'delete-chain':
      expect(rules).toEqual([])
      chains.delete(key)
      break
    case 'add-rule':
      chains.set(key, [...rules, operation.rule])
      break
    case 'insert-rule':
      chains.set(key, [operation.rule, ...rules])
      break
    case 'delete-rule':
      throw new Error('a jump is only deleted where one was read twice')
  }
}

/** Chains that packets may come to, those among them that are not there as well. */
function reachable(chains: ReadonlyMap<string, readonly XtRule[]>): ReadonlySet<string> {
  const queue = [...chains.keys()].filter(
    key => /(?:INPUT|OUTPUT|FORWARD|ROUTING)$/.test(key) && !key.includes('KUBE'),
  )
  const reached = new Set<string>()
  for (let key = queue.pop(); key !== undefined; key = queue.pop()) {
    if (reached.has(key)) continue
    reached.add(key)
    const place = key.split(' ').slice(0, 2).join(' ')
    for (const { target } of chains.get(key) ?? [])
      if (target?.kind === 'jump' || target?.kind === 'goto') queue.push(`${place} ${target.chain}`)
  }
  return reached
}
