import { describe, expect, it } from 'vitest'
import type { Ruleset } from '../../../../src/kernel/nft/state.ts'
import type { PortFrontends, ServiceFrontends } from '../../../../src/model/frontend.ts'
import type { BalancePolicy, PortBalance } from '../../../../src/model/service.ts'
import { slotsMax } from '../../../../src/modes/nftables/balanced-slots.ts'
import { adoptRuleset } from '../../../../src/modes/nftables/observe.ts'
import {
  backends,
  clusterIp,
  EXTERNAL_LOCAL,
  ip4,
  nodePort,
  service,
  table,
} from '../../../support/frontends.ts'
import { complaints, differences, elementsOf, lines, listing, render, routes, tableIn } from './inspect.ts'

const WEIGHTS = [3, 1, 1, 2, 1]

/** Five endpoints, of which one is on this node, at a ClusterIP and a node port of policy Local. */
function web(policy: BalancePolicy | undefined, affinityTimeoutS = 0): ServiceFrontends {
  const isWeighted = policy === 'random' || policy === 'local-first'
  const cluster = [...backends(1, { local: true }), ...backends(4)].map((its, at) =>
    isWeighted ? { ...its, weight: WEIGHTS[at] ?? 1 } : its,
  )
  const frontends = [clusterIp(ip4(10, 96, 0, 1), 80), nodePort(30_001, EXTERNAL_LOCAL)]
  const made = service('ns/web', [{ affinityTimeoutS, frontends, cluster, local: cluster.slice(0, 1) }])
  if (policy === undefined) return made
  const balance: PortBalance = { policy, weights: [], seed: 41 }
  return { ...made, ports: made.ports.map((port): PortFrontends => ({ ...port, balance })) }
}

/** As a kernel lists the rules of a release that names chains in another way. */
function renamed(ruleset: Ruleset): Ruleset {
  const text = JSON.stringify(listing(ruleset).tables.map(({ chains }) => [...chains.values()]))
  const later = (name: string) => name.replace(/-1019h/g, '-1019z')
  expect(text).toContain('mod-1019h')
  return {
    tables: listing(ruleset).tables.map(its => ({
      ...its,
      chains: new Map(
        [...its.chains.values()].map(chain => {
          const name = later(chain.name)
          return [name, JSON.parse(later(JSON.stringify({ ...chain, name })))]
        }),
      ),
      elements: its.elements.with(
        [...its.elements.entries()].map(([group, list]) => [
          group,
          list.map(element =>
            typeof element.data === 'object'
              ? { ...element, data: { ...element.data, chain: later(element.data.chain ?? '') } }
              : element,
          ),
        ]),
      ),
    })),
  }
}

describe('a table with policies', () => {
  it.each([
    ['random', 0],
    ['random', 60],
    ['maglev', 0],
    ['maglev', 60],
    ['maglev/5-tuple', 0],
    ['local-first', 0],
  ] as const)(
    'is adopted by the next start, which writes nothing: %s, affinity of %i s',
    (policy, affinityS) => {
      // The slots of weights depend on what was there before.
      const state = render(table([web(policy, affinityS)]), render(table([web(undefined, affinityS)])))
      expect(complaints(state)).toEqual([])
      const base = adoptRuleset(listing(state.ruleset))
      expect(differences(base, render(table([web(policy, affinityS)]), base))).toEqual([])
    },
  )

  it('holds together at each of a hundred changes of the annotation, and keeps nothing of them', () => {
    const flaps = Array.from({ length: 100 }, (_, at) => web(at % 2 === 0 ? 'maglev' : 'random'))
    let state = render(table([web('random')]))
    const before = lines(tableIn(state), 'endpoints-tcp')
    let codes = 0
    for (const flap of flaps) {
      state = render(table([flap]), state)
      expect(complaints(state)).toEqual([])
      codes = Math.max(codes, state.allocations.ip.codes.size)
    }
    expect(lines(tableIn(state), 'endpoints-tcp')).toHaveLength(before.length)
    expect(codes).toBeLessThanOrEqual(6)
    const chains = [...tableIn(state).chains.keys()].filter(name => /^(l?mod|loc)-/.test(name))
    expect(chains.sort()).toEqual([
      'lmod-1',
      'loc-1019h-1',
      'loc-8-1',
      'mod-1',
      'mod-1019h',
      'mod-8',
      'mod-9',
    ])
  })

  it('is replaced in one transaction by a release that does not know its chains', () => {
    const base = adoptRuleset(renamed(render(table([web('maglev')])).ruleset))
    const again = render(table([web(undefined)]), base)
    expect(complaints(again)).toEqual([])
    expect(routes(tableIn(again))).toEqual(routes(tableIn(render(table([web(undefined)])))))
    expect([...tableIn(again).chains.keys()].filter(name => name.includes('1019'))).toEqual([])
    const transaction = differences(base, again).join('\n')
    expect(transaction).toContain('mod-1019z')
    expect(transaction).toContain('mod-5')
  })
})

describe('the slots of a list', () => {
  it('are those of a list without a policy where there is one endpoint', () => {
    const balance: PortBalance = { policy: 'maglev', weights: [], seed: 41 }
    const one = service('ns/one', [{ frontends: [clusterIp(ip4(10, 96, 0, 2), 80)], cluster: backends(1) }])
    const state = render(table([{ ...one, ports: one.ports.map(port => ({ ...port, balance })) }]))
    expect(elementsOf(tableIn(state)).filter(({ set }) => set === 'endpoints-tcp')).toHaveLength(1)
    expect(routes(tableIn(state))[0]).toMatch(/ -> mod-1$/)
  })

  it.each([
    [{ policy: 'maglev', weights: [] }, 5, 1_019],
    [{ policy: 'maglev', weights: [{ kind: 'zone', name: 'a', weight: 100 }] }, 5, 4_091],
    [{ policy: 'random', weights: [{ kind: 'zone', name: 'a', weight: 3 }] }, 5, 15],
    [{ policy: 'random', weights: [{ kind: 'zone', name: 'a', weight: 100 }] }, 1_000, 16_000],
    [{ policy: 'local-first', weights: [] }, 10, 100],
    [{ policy: 'maglev', weights: [] }, 1, 1],
  ] as const)('of %j are bounded by what its memory is counted by', (settings, endpoints, most) => {
    expect(slotsMax(endpoints, settings)).toBe(most)
  })
})
