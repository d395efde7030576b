import { systemClock } from '../../src/base/clock.ts'
import { IpsetClient } from '../../src/kernel/ipset/client.ts'
import type { IpsetNames } from '../../src/kernel/nft/ipset-match.ts'
import type { Transport } from '../../src/netlink/transport.ts'

/** Names and numbers of ipsets, as the client of ipsets asks for them, which a suite of its own compares with the kernel. */
export function ipsetNames(transport: Transport): IpsetNames {
  const client = new IpsetClient({ transport, clock: systemClock })
  return { indexOf: name => client.indexOf(name), nameOf: index => client.nameOf(index) }
}
