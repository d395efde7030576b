import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { finish } from '../../../../src/base/steps.ts'
import type { ServiceFrontends } from '../../../../src/model/frontend.ts'
import { LAYOUTS } from '../../../../src/modes/common/family.ts'
import { adoptRuleset } from '../../../../src/modes/nftables/adopt.ts'
import { type ElementContext, ElementDraft } from '../../../../src/modes/nftables/elements.ts'
import { CodeDraft, IdDraft, NO_IDS } from '../../../../src/modes/nftables/numbering.ts'
import { NOTHING, TallyDraft } from '../../../../src/modes/nftables/tally.ts'
import { UsualDraft, usualPort } from '../../../../src/modes/nftables/usual.ts'
import { backends, clusterIp, EXTERNAL, ip4, ip6, LOCAL, nodePort, service, table, vip } from './frontends.ts'
import { listing, render, tableIn } from './inspect.ts'

interface Shape {
  readonly count: number
  readonly port: number
  readonly mixed: boolean
  readonly name: string
}

const shape: fc.Arbitrary<Shape> = fc.record({
  count: fc.integer({ min: 1, max: 40 }),
  port: fc.integer({ min: 1, max: 65535 }),
  mixed: fc.boolean(),
  name: fc.constantFrom('', 'http', 'a-very-long-name'.repeat(20)),
})

function usual({ count, port, mixed, name }: Shape, index: number, v6: boolean): ServiceFrontends {
  const ip = v6 ? ip6(0x96, index) : ip4(10, 96, index >>> 8, index & 255)
  const cluster = backends(count, { v6 }).map((one, i) => (mixed && i % 3 === 0 ? { ...one, port: 9 } : one))
  return service(`ns/s${index}`, [{ v6, name, cluster, frontends: [clusterIp(ip, port)] }])
}

function context(v6: boolean, endpointComments: boolean): ElementContext {
  const layout = LAYOUTS[v6 ? 'ip6' : 'ip']
  return { layout, endpointComments, ids: new IdDraft(NO_IDS), codes: new CodeDraft(new Map()) }
}

describe('a usual Service', () => {
  it('gets the same elements, and is counted the same, whichever way', () => {
    fc.assert(
      fc.property(fc.array(shape), fc.boolean(), fc.boolean(), (shapes, v6, comments) => {
        const straight = new UsualDraft(context(v6, comments))
        const general = new ElementDraft(context(v6, comments))
        const tallies = [new TallyDraft(NOTHING), new TallyDraft(NOTHING)] as const
        shapes.forEach((one, index) => {
          const made = usual(one, index, v6)
          const port = usualPort(made)
          const group = general.make(made, undefined)
          if (port === undefined || 'reason' in group) throw new Error('not usual')
          expect(straight.make(port)).toEqual(group)
          straight.count(port)
          tallies[1].add(group)
        })
        straight.countInto(tallies[0])
        expect(tallies[0].finish()).toEqual(tallies[1].finish())
      }),
    )
  })

  it.each([
    ['affinity', { affinityTimeoutS: 60, frontends: [clusterIp(ip4(10, 96, 0, 1), 80)] }],
    ['no endpoint', { cluster: [], frontends: [clusterIp(ip4(10, 96, 0, 1), 80)] }],
    ['another policy', { frontends: [clusterIp(ip4(10, 96, 0, 1), 80, LOCAL)] }],
    ['a NodePort', { frontends: [clusterIp(ip4(10, 96, 0, 1), 80), nodePort(30001, EXTERNAL)] }],
    ['no ClusterIP', { frontends: [nodePort(30001, EXTERNAL)] }],
    [
      'source ranges',
      { frontends: [vip(ip4(10, 96, 0, 1), 80, EXTERNAL, [{ ip: ip4(0, 0, 0, 0), bits: 0 }])] },
    ],
  ])('has not %s', (_, port) => {
    expect(usualPort(service('ns/s', [{ cluster: backends(2), ...port }]))).toBeUndefined()
  })

  it('has one port', () => {
    const port = { cluster: backends(2), frontends: [clusterIp(ip4(10, 96, 0, 1), 80)] }
    expect(usualPort(service('ns/s', [port]))).toBeDefined()
    expect(usualPort(service('ns/s', [port, { ...port, name: 'b' }]))).toBeUndefined()
  })
})

describe('elements that the kernel holds', () => {
  const web = service('ns/web', [{ cluster: backends(5), frontends: [clusterIp(ip4(10, 96, 0, 1), 80)] }])
  const node = service('ns/node', [
    { cluster: backends(5), frontends: [clusterIp(ip4(10, 96, 0, 2), 80), nodePort(30001, EXTERNAL)] },
  ])
  const seen = finish(adoptRuleset(listing(render(table([web, node])).ruleset)))

  it('stay the objects that they are where they are as wanted, in whatever order', () => {
    const again = render(table([web, node]), seen)
    for (const key of ['ns/web', 'ns/node'])
      expect(tableIn(again).elements.get(key)).toBe(tableIn(seen).elements.get(key))
    expect(again.allocations.ip.tally).toEqual(render(table([web, node])).allocations.ip.tally)
  })

  it.each(['frontends', 'endpoints-tcp', 'cluster-ips'])(
    'are made anew where one of %s is not as wanted',
    set => {
      const damaged = {
        tables: listing(seen.ruleset).tables.map(one => ({
          ...one,
          elements: one.elements.with([[set, one.elements.get(set)?.slice(1)]]),
        })),
      }
      const healed = render(table([web, node]), finish(adoptRuleset(damaged)))
      const fresh = render(table([web, node]), seen)
      for (const key of ['ns/web', 'ns/node']) {
        const groups = [healed, fresh].map(state => new Set(tableIn(state).elements.get(key)))
        expect(groups[0]).toEqual(groups[1])
      }
    },
  )
})
