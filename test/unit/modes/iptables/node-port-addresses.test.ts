import { describe, expect, it } from 'vitest'
import { finish, systemClock } from '../../../../src/base/clock.ts'
import { createNftClient } from '../../../../src/kernel/nft/client.ts'
import type { FrontendTable } from '../../../../src/model/frontend.ts'
import { IptablesPlane } from '../../../../src/modes/iptables/plane.ts'
import { DEFAULT_IPTABLES_OPTIONS } from '../../../../src/modes/iptables/settings.ts'
import type { IptablesState } from '../../../../src/modes/iptables/state.ts'
import { FakeKernel } from '../../../support/fake-kernel/kernel.ts'
import { table } from '../../../support/frontends.ts'
import { ip } from '../../../support/pipeline.ts'
import { everyKind } from '../../../support/services.ts'

/** With NodePorts at these addresses, in this order. */
function answeringAt(...addresses: readonly string[]): FrontendTable {
  return table(everyKind(false), {
    nodePorts: { IPv4: { kind: 'only', ips: addresses.map(ip) }, IPv6: { kind: 'all' } },
  })
}

/** What there is to do when the one is there, and the other is wanted. */
async function operations(there: FrontendTable, wanted: FrontendTable): Promise<readonly string[]> {
  const client = createNftClient({ transport: new FakeKernel().open(), clock: systemClock })
  const plane = new IptablesPlane({ client, options: DEFAULT_IPTABLES_OPTIONS })
  const render = (frontends: FrontendTable) =>
    finish(plane.render(frontends, { base: plane.empty, without: new Set() }))
  const { outcome } = await plane.commit(finish(plane.diff(plane.empty, render(there))), {})
  expect(outcome).toBe('committed')
  const { state } = await plane.observe()
  return [...finish(plane.diff(state, render(wanted))).operations].map(({ verb }) => verb)
}

describe('addresses of NodePorts that are found in the kernel', () => {
  // kube-proxy writes them as they come out of a map.
  it('may be there in any order', async () => {
    const there = answeringAt('192.168.3.1', '192.168.1.1', '192.168.2.1')
    const wanted = answeringAt('192.168.1.1', '192.168.2.1', '192.168.3.1')
    expect(await operations(there, wanted)).toEqual([])
  })
})

describe('the rule of KUBE-FIREWALL', () => {
  // kubelet writes it as well: it is there once, and never goes.
  it('stays when NodePorts leave loopback, and is not there twice when they come back', async () => {
    const client = createNftClient({ transport: new FakeKernel().open(), clock: systemClock })
    const plane = new IptablesPlane({ client, options: DEFAULT_IPTABLES_OPTIONS })
    const [everywhere, elsewhere] = [table([], {}), answeringAt('192.168.1.1')]
    let state: IptablesState = plane.empty
    for (const frontends of [everywhere, elsewhere, everywhere]) {
      const plan = finish(
        plane.diff(state, finish(plane.render(frontends, { base: state, without: new Set() }))),
      )
      expect((await plane.commit(plan, {})).outcome).toBe('committed')
      state = plan.after
      const { state: found } = await plane.observe()
      if (found.kind !== 'observed') throw new Error('not observed')
      const chain = found.observed.get('ip filter')?.chains.get('KUBE-FIREWALL')
      expect(chain?.rules).toHaveLength(1)
      // What was found asks for nothing either.
      expect([...finish(plane.diff(found, state)).operations]).toEqual([])
    }
  })
})
