import { expect, it } from 'vitest'
import { finish, systemClock } from '../../../src/base/clock.ts'
import { createNftClient, type NftClient } from '../../../src/kernel/nft/client.ts'
import { IptablesPlane } from '../../../src/modes/iptables/plane.ts'
import { DEFAULT_IPTABLES_OPTIONS } from '../../../src/modes/iptables/settings.ts'
import { IpvsPlane } from '../../../src/modes/ipvs/plane.ts'
import { DEFAULT_IPVS_OPTIONS } from '../../../src/modes/ipvs/settings.ts'
import { createNftablesPlane } from '../../../src/modes/nftables/plane.ts'
import { DEFAULT_NFTABLES_OPTIONS } from '../../../src/modes/nftables/settings.ts'
import { UserspacePlane } from '../../../src/modes/userspace/plane.ts'
import { DEFAULT_USERSPACE_OPTIONS } from '../../../src/modes/userspace/settings.ts'
import { type Dataplane, differenceOf, type Plan } from '../../../src/reconcile/dataplane.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { table } from '../../support/frontends.ts'
import { IpvsNode } from '../../support/ipvs-node.ts'
import { ipvsKernelOf } from '../../support/ipvs-rig.ts'

const SLICING = { sliceMs: 10, nowMs: systemClock.nowMs, breathe: systemClock.breathe }
const OTHER = { verb: 'add-table', family: 'ip', table: 'other', flags: 0, comment: undefined } as const

async function isForeign<State, P extends Plan<State>>(plane: Dataplane<State, P>, other: NftClient) {
  const wanted = table([])
  const { state } = await plane.observe()
  const rendered = finish(plane.render(wanted, { base: state, without: new Set() }))
  await other.commit([OTHER])
  const { lines } = await differenceOf(plane, wanted, SLICING)
  expect(lines.length).toBeGreaterThan(0)
  return (await plane.commit(finish(plane.diff(state, rendered)), {})).foreign
}

it.each(['nftables', 'iptables', 'userspace', 'ipvs'])(
  'a read for display hides no commit of another program from the next commit of %s mode',
  async mode => {
    const clock = new FakeClock()
    const node = new IpvsNode({ nowMs: () => clock.nowMs() })
    const kernel = ipvsKernelOf(node, clock)
    const { nft: client } = kernel
    const other = createNftClient({ transport: node.open('nft'), clock })
    if (mode === 'nftables') {
      const plane = createNftablesPlane({ client, options: DEFAULT_NFTABLES_OPTIONS })
      expect(await isForeign(plane, other)).toBe(true)
    } else if (mode === 'iptables') {
      const plane = new IptablesPlane({ client, options: DEFAULT_IPTABLES_OPTIONS })
      expect(await isForeign(plane, other)).toBe(true)
    } else if (mode === 'userspace') {
      const plane = new UserspacePlane({ client, clock, options: DEFAULT_USERSPACE_OPTIONS })
      plane.startForwarding()
      expect(await isForeign(plane, other)).toBe(true)
    } else {
      const plane = new IpvsPlane({ ...kernel, clock, options: DEFAULT_IPVS_OPTIONS })
      expect(await isForeign(plane, other)).toBe(true)
    }
  },
)
