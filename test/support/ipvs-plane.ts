import { systemClock } from '../../src/base/clock.ts'
import { IpsetClient } from '../../src/kernel/ipset/client.ts'
import { IpvsClient } from '../../src/kernel/ipvs/client.ts'
import { DummyClient } from '../../src/kernel/link/dummy.ts'
import { createNftClient } from '../../src/kernel/nft/client.ts'
import { IpvsPlane } from '../../src/modes/ipvs/plane.ts'
import type { IpvsOptions } from '../../src/modes/ipvs/settings.ts'
import { NETLINK_GENERIC, NETLINK_NETFILTER, NETLINK_ROUTE } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { ipvsOptionsOf, type PipelineConfig } from './pipeline.ts'

export interface OpenIpvsPlane {
  readonly plane: IpvsPlane
  readonly ipvs: IpvsClient
  readonly close: () => Promise<void>
}

/**
 * A plane of the mode on the real kernel, in the network namespace this process is in now. Nothing looks for drift until its
 * upkeep is started.
 */
export function openIpvsPlane(config: PipelineConfig, more: Partial<IpvsOptions> = {}): OpenIpvsPlane {
  const clock = systemClock
  const ipset = new IpsetClient({ transport: openNetlink({ protocol: NETLINK_NETFILTER }), clock })
  const nft = createNftClient({
    transport: openNetlink({ protocol: NETLINK_NETFILTER }),
    clock,
    ipsets: ipset,
  })
  const ipvs = new IpvsClient({ transport: openNetlink({ protocol: NETLINK_GENERIC }), clock })
  const dummy = new DummyClient({ transport: openNetlink({ protocol: NETLINK_ROUTE }), clock })
  const options = { ...ipvsOptionsOf(config), ...more }
  const plane = new IpvsPlane({ nft, ipset, ipvs, dummy, clock, options })
  return {
    plane,
    ipvs,
    close: async () => {
      await plane.close()
      await Promise.all([nft.close(), ipset.close(), ipvs.close(), dummy.close()])
    },
  }
}
