import { type Clock, systemClock } from '../base/clock.ts'
import { createNftClient, type NftClient } from '../kernel/nft/client.ts'
import { NETLINK_NETFILTER } from '../netlink/constants.ts'
import { openNetlink } from '../netlink/native.ts'

/** A client of this network namespace's nf_tables. Throws when the addon is missing or the socket refused. */
export function openNftClient(clock: Clock = systemClock): NftClient {
  return createNftClient({ transport: openNetlink({ protocol: NETLINK_NETFILTER }), clock })
}
