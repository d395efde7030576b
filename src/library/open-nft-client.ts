import { type Clock, systemClock } from '../base/clock.ts'
import { createNftClient, type NftClient } from '../kernel/nft/client.ts'
import { NETLINK_NETFILTER } from '../netlink/constants.ts'
import { openNetlink } from '../netlink/native.ts'

/**
 * Opens a client of this network namespace's nf_tables. Throws if the addon is missing or the kernel denies the socket.
 */
export function openNftClient(clock: Clock = systemClock): NftClient {
  return createNftClient({ transport: openNetlink({ protocol: NETLINK_NETFILTER }), clock })
}
