import { describe, expect, it } from 'vitest'
import { adoptRuleset } from '../../../../src/modes/nftables/observe.ts'
import { backends, clusterIp, EXTERNAL, ip4, nodePort, service, table } from '../../../support/frontends.ts'
import { listing, render, tableIn } from './inspect.ts'

describe('elements that the kernel holds', () => {
  const web = service('ns/web', [{ cluster: backends(5), frontends: [clusterIp(ip4(10, 96, 0, 1), 80)] }])
  const node = service('ns/node', [
    { cluster: backends(5), frontends: [clusterIp(ip4(10, 96, 0, 2), 80), nodePort(30001, EXTERNAL)] },
  ])
  const seen = adoptRuleset(listing(render(table([web, node])).ruleset))

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
      const healed = render(table([web, node]), adoptRuleset(damaged))
      const fresh = render(table([web, node]), seen)
      for (const key of ['ns/web', 'ns/node']) {
        const groups = [healed, fresh].map(state => new Set(tableIn(state).elements.get(key)))
        expect(groups[0]).toEqual(groups[1])
      }
    },
  )
})
