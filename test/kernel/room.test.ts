import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { finish, systemClock } from '../../src/base/clock.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import type { FrontendTable } from '../../src/model/frontend.ts'
import { createNftablesPlane } from '../../src/modes/nftables/plane.ts'
import { DEFAULT_NFTABLES_OPTIONS } from '../../src/modes/nftables/settings.ts'
import type { NftablesState } from '../../src/modes/nftables/state.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { backends, clusterIp, ip4, service, table } from '../support/frontends.ts'
import { freshNetns } from '../support/lab/netns.ts'

const ENDPOINTS = 10
let client: NftClient

beforeAll(async () => {
  await freshNetns()
  client = createNftClient({ transport: openNetlink({ protocol: NETLINK_NETFILTER }), clock: systemClock })
})

afterAll(() => client.close())

/** Services with session affinity, whose endpoints are keyed by what they are: others take other keys. */
function sticky(services: number, from: number): FrontendTable {
  return table(
    Array.from({ length: services }, (_, index) =>
      service(`ns/s${index}`, [
        {
          name: 'http',
          affinityTimeoutS: 60,
          frontends: [clusterIp(ip4(10, 96, index >> 8, index & 255), 80)],
          cluster: backends(ENDPOINTS, { from: from + index * ENDPOINTS }),
        },
      ]),
    ),
  )
}

describe('a set that is nearly full', () => {
  it('takes the replacement of all its elements in one commit', async () => {
    const plane = createNftablesPlane({ client, options: DEFAULT_NFTABLES_OPTIONS })
    let state: NftablesState = plane.empty
    const outcomes: string[] = []
    for (const frontends of [sticky(184, 1), sticky(364, 1), sticky(364, 10_000)]) {
      const wanted = finish(plane.render(frontends, { base: state, without: new Set() }))
      const plan = finish(plane.diff(state, wanted))
      outcomes.push((await plane.commit(plan, {})).outcome)
      state = plan.after
    }
    expect(state.ruleset.tables[0]?.sets.get('endpoints-tcp')?.size).toBe(4096)
    expect(outcomes).toEqual(['committed', 'committed', 'committed'])
  })
})
